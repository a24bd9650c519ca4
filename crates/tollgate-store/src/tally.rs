//! What a stack of wrappers did, for whoever watches: counters and one state, no clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counted by the wrappers of one stack, which share it.
#[derive(Debug, Default)]
pub struct Tally {
    asked: AtomicU64,
    failed: AtomicU64,
    remembered: AtomicU64,
    together: AtomicU64,
    leased: AtomicU64,
    broken: AtomicU64,
    open: AtomicBool,
    trouble: Mutex<Option<String>>,
}

/// Something that a wrapper did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A round trip to the store.
    Asked,
    /// One that failed or came too late.
    Failed,
    /// A refusal that was remembered.
    Remembered,
    /// A check that went along with another of its key.
    Together,
    /// A unit that was spent from a lease.
    Leased,
    /// A check that was not asked, the store being given up for the moment.
    Broken,
}

impl Event {
    /// All of them.
    pub const ALL: [Event; 6] =
        [Event::Asked, Event::Failed, Event::Remembered, Event::Together, Event::Leased, Event::Broken];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Event::Asked => "asked",
            Event::Failed => "failed",
            Event::Remembered => "remembered",
            Event::Together => "together",
            Event::Leased => "leased",
            Event::Broken => "broken",
        }
    }
}

impl Tally {
    fn counter(&self, event: Event) -> &AtomicU64 {
        match event {
            Event::Asked => &self.asked,
            Event::Failed => &self.failed,
            Event::Remembered => &self.remembered,
            Event::Together => &self.together,
            Event::Leased => &self.leased,
            Event::Broken => &self.broken,
        }
    }

    /// How often it happened.
    pub fn count(&self, event: Event) -> u64 {
        self.counter(event).load(Ordering::Relaxed)
    }

    /// It happened `times` times.
    pub fn add(&self, event: Event, times: u64) {
        self.counter(event).fetch_add(times, Ordering::Relaxed);
    }

    /// Whether the store is given up for the moment.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// The store is given up for the moment, or not any longer.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// The last thing that went wrong, in the store's words, once.
    pub fn take_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps what went wrong, until somebody takes it.
    pub fn set_trouble(&self, trouble: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
    }
}

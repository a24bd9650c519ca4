//! A store that keeps failing is not asked by everyone: one check now and then asks whether it is back, the others are told
//! at once that it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::{Answer, Demand, Event, Store, Tally, Unanswered};

/// Failures in a row after which a store is given up for the moment.
pub const PATIENCE: u32 = 5;

/// The longest pause between two checks that ask whether it is back.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const FIRST_PAUSE: u64 = 100_000_000;

/// A store that is given up when it fails [`PATIENCE`] times in a row. Pauses double from 100 ms to [`LONGEST_PAUSE`], and each
/// is cut by a random part of up to half, so that a fleet does not return as one. A caller that leaves is no verdict.
#[derive(Debug)]
pub struct Breaker<S> {
    inner: S,
    tally: Arc<Tally>,
    failures: AtomicU32,
    /// When the next check may ask, by the callers' time; 0 while everybody may.
    again: AtomicU64,
    pause: AtomicU64,
    /// How often it was given up: what began before has nothing new to say.
    given_up: AtomicU32,
}

impl<S> Breaker<S> {
    /// Gives `inner` up when it fails, and finds it again.
    pub const fn new(inner: S, tally: Arc<Tally>) -> Self {
        let (failures, given_up) = (AtomicU32::new(0), AtomicU32::new(0));
        let (again, pause) = (AtomicU64::new(0), AtomicU64::new(FIRST_PAUSE));
        Breaker { inner, tally, failures, again, pause, given_up }
    }

    /// Whether this check may ask. Of those that come when it is time, one.
    fn may_ask(&self, now: u64) -> bool {
        let again = self.again.load(Ordering::Acquire);
        // Should its caller leave, the next may ask after the longest pause.
        let next = now.saturating_add(longest());
        again == 0
            || (now >= again
                && self.again.compare_exchange(again, next, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    fn succeeded(&self) {
        let was = self.failures.swap(0, Ordering::Relaxed) > 0 || self.tally.is_open();
        if was || self.again.load(Ordering::Relaxed) > 0 {
            self.again.store(0, Ordering::Release);
            self.pause.store(FIRST_PAUSE, Ordering::Relaxed);
            self.tally.set_open(false);
        }
    }

    fn failed(&self, began: u32, now: u64) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let next = began.wrapping_add(1);
        if failures < PATIENCE
            || self.given_up.compare_exchange(began, next, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store(pause.saturating_mul(2).min(longest()), Ordering::Relaxed);
        let jittered = pause.saturating_sub(fastrand::u64(0..=pause / 2));
        self.again.store(now.saturating_add(jittered), Ordering::Release);
        self.tally.set_open(true);
    }
}

fn longest() -> u64 {
    u64::try_from(LONGEST_PAUSE.as_nanos()).unwrap_or(u64::MAX)
}

impl<S: Store> Store for Breaker<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if !self.may_ask(now) {
            self.tally.add(Event::Broken, 1);
            return Err(Unanswered::Unavailable);
        }
        let began = self.given_up.load(Ordering::Acquire);
        let answer = self.inner.decide(demand, now).await;
        match &answer {
            Err(Unanswered::Unavailable) => self.failed(began, now),
            _ => self.succeeded(),
        }
        answer
    }
}

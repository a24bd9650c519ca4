//! Shedding: how much is under way at once is bounded, whoever asks. It has nothing to do with anybody's limit.

mod adaptive;
mod layer;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::Clock;

pub use adaptive::{Adaptive, TOLERANCE};
pub use layer::{ShedFuture, ShedLayer, Shedding, SlotBody};

/// The most classes: of each, a tenth less of the limit is there than of the one before.
pub const MAX_CLASSES: usize = 8;

/// How many may be under way at once, of a service or origin.
#[derive(Debug)]
pub struct Shed {
    limit: AtomicUsize,
    under_way: AtomicUsize,
    turned_away: AtomicU64,
    adaptive: Option<Mutex<Adaptive>>,
    clock: Clock,
}

impl Shed {
    /// At most so many.
    pub fn fixed(limit: usize, clock: Clock) -> Arc<Self> {
        Shed::with(limit, None, clock)
    }

    /// As many as it turns out to be good for: see [`Adaptive`].
    pub fn adaptive(least: usize, initial: usize, most: usize, clock: Clock) -> Arc<Self> {
        let adaptive = Adaptive::new(least, initial, most, clock.now());
        Shed::with(adaptive.limit(), Some(Mutex::new(adaptive)), clock)
    }

    fn with(limit: usize, adaptive: Option<Mutex<Adaptive>>, clock: Clock) -> Arc<Self> {
        let (limit, under_way) = (AtomicUsize::new(limit), AtomicUsize::new(0));
        Arc::new(Shed { limit, under_way, turned_away: AtomicU64::new(0), adaptive, clock })
    }

    /// How many may be under way.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// How many are.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// How many were turned away.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// What of the limit is there for a class: all of it for the first, 0, and a tenth less for each after it.
    pub fn share(&self, class: usize) -> usize {
        let limit = self.limit();
        limit.saturating_sub(limit.saturating_mul(class.min(MAX_CLASSES - 1)).div_ceil(10)).max(1)
    }

    /// Whether there is room for one of this class just now.
    pub fn has_room(&self, class: usize) -> bool {
        self.under_way() < self.share(class)
    }

    /// Takes a slot, if there is room for one of this class.
    pub fn enter(self: &Arc<Self>, class: usize) -> Option<Slot> {
        let share = self.share(class);
        let room = |under_way: usize| (under_way < share).then(|| under_way.saturating_add(1));
        match self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(before) => {
                let crowd = before.saturating_add(1);
                Some(Slot { shed: Arc::clone(self), began: self.clock.now(), crowd })
            }
            Err(_) => {
                self.turn_away();
                None
            }
        }
    }

    /// Counts one that is not even let try.
    pub fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    fn answered(&self, began: u64, crowd: usize) {
        let Some(adaptive) = &self.adaptive else { return };
        let now = self.clock.now();
        let mut adaptive = adaptive.lock().unwrap_or_else(PoisonError::into_inner);
        adaptive.answered(now.saturating_sub(began), crowd, now);
        self.limit.store(adaptive.limit(), Ordering::Relaxed);
    }
}

/// One that is under way. Its place is given back when it is dropped, whatever becomes of its request.
#[derive(Debug)]
pub struct Slot {
    shed: Arc<Shed>,
    began: u64,
    /// How many were under way with it.
    crowd: usize,
}

impl Slot {
    /// The answer has begun, or it took longer than anybody waits: the limit goes by how long that was. Not for answers that say
    /// nothing about it, such as errors.
    pub fn answered(&self) {
        self.shed.answered(self.began, self.crowd);
    }

    /// For how many nanoseconds it has been under way.
    pub fn held(&self) -> u64 {
        self.shed.clock.now().saturating_sub(self.began)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shed.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

//! Shedding: how much is under way at once is bounded, whoever asks. It has nothing to do with anybody's limit.

mod adaptive;
mod layer;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::Clock;

pub use adaptive::{Adaptive, TOLERANCE};
pub use layer::{ShedFuture, ShedLayer, Shedding, SlotBody};

/// The most classes: of each, a tenth less of the limit is there than of the one before.
pub const MAX_CLASSES: usize = 8;

/// How long a slot is held at most, unless somebody says otherwise.
pub const LEASE: Duration = Duration::from_secs(60);

/// How many may be under way at once, of a service or origin.
#[derive(Debug)]
pub struct Shed {
    limit: AtomicUsize,
    under_way: AtomicUsize,
    turned_away: AtomicU64,
    adaptive: Option<Mutex<Adaptive>>,
    lease: u64,
    /// When slots were taken, the oldest first, and whether they still are.
    leases: Mutex<VecDeque<(u64, Arc<AtomicBool>)>>,
    clock: Clock,
}

impl Shed {
    /// At most so many, each for so long at most.
    pub fn fixed(limit: usize, lease: Duration, clock: Clock) -> Arc<Self> {
        Shed::with(limit, None, lease, clock)
    }

    /// As many as it turns out to be good for: see [`Adaptive`].
    pub fn adaptive(least: usize, initial: usize, most: usize, lease: Duration, clock: Clock) -> Arc<Self> {
        let adaptive = Adaptive::new(least, initial, most, clock.now());
        Shed::with(adaptive.limit(), Some(Mutex::new(adaptive)), lease, clock)
    }

    fn with(limit: usize, adaptive: Option<Mutex<Adaptive>>, lease: Duration, clock: Clock) -> Arc<Self> {
        Arc::new(Shed {
            limit: AtomicUsize::new(limit),
            under_way: AtomicUsize::new(0),
            turned_away: AtomicU64::new(0),
            adaptive,
            lease: u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX),
            leases: Mutex::default(),
            clock,
        })
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
        let room = || self.under_way() < self.share(class);
        room() || (self.lapse() && room())
    }

    /// Takes a slot, if there is room for one of this class.
    pub fn enter(self: &Arc<Self>, class: usize) -> Option<Slot> {
        let share = self.share(class);
        let room = |under_way: usize| (under_way < share).then(|| under_way.saturating_add(1));
        let take = || self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok();
        let Some(before) = take().or_else(|| if self.lapse() { take() } else { None }) else {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let (began, held) = (self.clock.now(), Arc::new(AtomicBool::new(true)));
        let mut leases = self.leases();
        while leases.front().is_some_and(|(_, held)| !held.load(Ordering::Relaxed)) {
            leases.pop_front();
        }
        // One that is held for long must not keep those behind it from being forgotten.
        if leases.len() > self.under_way().saturating_mul(2).saturating_add(64) {
            leases.retain(|(_, held)| held.load(Ordering::Relaxed));
        }
        leases.push_back((began, Arc::clone(&held)));
        drop(leases);
        let (crowd, sent) = (before.saturating_add(1), Arc::new(AtomicU64::new(began)));
        Some(Slot { shed: Arc::clone(self), sent, crowd, held })
    }

    fn leases(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<AtomicBool>)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back the slots that are held for too long, whatever holds them. Whether there was one.
    fn lapse(&self) -> bool {
        let now = self.clock.now();
        let mut lapsed = false;
        let mut leases = self.leases();
        while let Some((_, held)) =
            leases.front().filter(|(began, _)| now.saturating_sub(*began) > self.lease)
        {
            lapsed |= self.release(held);
            leases.pop_front();
        }
        lapsed
    }

    /// Gives a slot back, once. Whether it was held.
    fn release(&self, held: &AtomicBool) -> bool {
        let was = held.swap(false, Ordering::Relaxed);
        self.under_way.fetch_sub(usize::from(was), Ordering::Relaxed);
        was
    }

    fn answered(&self, began: u64, crowd: usize) {
        let Some(adaptive) = &self.adaptive else { return };
        let now = self.clock.now();
        let mut adaptive = adaptive.lock().unwrap_or_else(PoisonError::into_inner);
        adaptive.answered(now.saturating_sub(began), crowd, now);
        self.limit.store(adaptive.limit(), Ordering::Relaxed);
    }
}

/// One that is under way. Its place is given back when it is dropped, whatever becomes of its request, or when its lease is over.
#[derive(Debug)]
pub struct Slot {
    shed: Arc<Shed>,
    /// When the request was with the service; 0 while its body is on its way.
    sent: Arc<AtomicU64>,
    /// How many were under way with it.
    crowd: usize,
    held: Arc<AtomicBool>,
}

impl Slot {
    /// The request has a body, which its client may take any time to send. What this gives is called when that is through; until then
    /// nothing is learned from its answer.
    pub fn sending(&self) -> impl FnOnce() + Send + 'static {
        self.sent.store(0, Ordering::Relaxed);
        let (sent, clock) = (Arc::clone(&self.sent), self.shed.clock.clone());
        move || sent.store(clock.now(), Ordering::Relaxed)
    }

    /// The answer has begun, or it took longer than anybody waits: the limit goes by how long that was. Not for answers that say
    /// nothing about it, such as errors and refusals.
    pub fn answered(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        if sent > 0 {
            self.shed.answered(sent, self.crowd);
        }
    }

    /// Whether the status of an answer says how much there is to do.
    pub fn tells(status: http::StatusCode) -> bool {
        !status.is_server_error() && status != http::StatusCode::TOO_MANY_REQUESTS
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shed.release(&self.held);
    }
}

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
/// is cut by a random part of up to half, so that a fleet does not return as one.
#[derive(Debug)]
pub struct Breaker<S> {
    inner: S,
    tally: Arc<Tally>,
    failures: AtomicU32,
    /// When the next check may ask, by the callers' time; 0 while everybody may.
    again: AtomicU64,
    pause: AtomicU64,
}

impl<S> Breaker<S> {
    /// Gives `inner` up when it fails, and finds it again.
    pub const fn new(inner: S, tally: Arc<Tally>) -> Self {
        let (failures, again, pause) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU64::new(FIRST_PAUSE));
        Breaker { inner, tally, failures, again, pause }
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

    fn learn(&self, failed: bool, now: u64) {
        if !failed {
            if self.failures.swap(0, Ordering::Relaxed) > 0 || self.again.load(Ordering::Relaxed) > 0 {
                self.again.store(0, Ordering::Release);
                self.pause.store(FIRST_PAUSE, Ordering::Relaxed);
                self.tally.set_open(false);
            }
            return;
        }
        if self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1) < PATIENCE {
            return;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        // Those that were under way when it was given up have nothing new to say.
        if now < self.again.load(Ordering::Acquire).saturating_sub(longest()) {
            return;
        }
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
        let mut left = Left { breaker: self, now, waiting: true };
        let answer = self.inner.decide(demand, now).await;
        left.waiting = false;
        self.learn(answer == Err(Unanswered::Unavailable), now);
        answer
    }
}

/// A check whose caller does not wait any longer has failed: that is how a deadline ends it.
struct Left<'b, S> {
    breaker: &'b Breaker<S>,
    now: u64,
    waiting: bool,
}

impl<S> Drop for Left<'_, S> {
    fn drop(&mut self) {
        if self.waiting {
            self.breaker.learn(true, self.now);
        }
    }
}

//! The sliding window counter: two counts, the earlier one weighted by its overlap with the trailing window.
//!
//! The estimate at `e` into the window is `current + previous * (window - e) / window`; a charge is admitted when it
//! keeps the estimate at or below the limit. Any interval of length d then sees at most `limit * (1 + d / window)`.

use core::num::NonZeroU64;

use crate::Words;
use crate::line::Refused;

/// The state, rolled forward to a time. Stored as: the end of the next window, previous count, current count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    limit: u64,
    window: NonZeroU64,
    /// Where the current window began.
    start: u64,
    previous: u64,
    current: u64,
    /// The time that is decided at: never before `start`, even when the clock is.
    at: u64,
}

impl Counter {
    pub(crate) const WORDS: usize = 3;

    /// Reads the state as of `now`; a clock behind the state's window reads as that window's start.
    pub(crate) fn load(
        limit: u64,
        window: NonZeroU64,
        phase: u64,
        state: &(impl Words + ?Sized),
        now: u64,
    ) -> Self {
        let since = now.saturating_sub(phase);
        let start = now.saturating_sub(since.checked_rem(window.get()).unwrap_or(0));
        let stored = state.get(0).saturating_sub(window.get()).saturating_sub(window.get());
        let (start, previous, current) = if stored >= start {
            (stored, state.get(1), state.get(2))
        } else if stored.saturating_add(window.get()) == start {
            (start, state.get(2), 0)
        } else if state.get(0) > now {
            // Written with other edges (keys that share a state): all of it counts, which is never too little.
            (start, 0, state.get(1).saturating_add(state.get(2)))
        } else {
            (start, 0, 0)
        };
        Counter { limit, window, start, previous, current, at: now.max(start) }
    }

    pub(crate) fn save(&self, state: &mut (impl Words + ?Sized)) {
        let window = self.window.get();
        state.set(0, self.start.saturating_add(window).saturating_add(window));
        state.set(1, self.previous);
        state.set(2, self.current);
    }

    fn wide(count: u64) -> u128 {
        u128::from(count)
    }

    /// Room in the estimate, in units times nanoseconds of the window.
    fn room(&self) -> u128 {
        let window = Counter::wide(self.window.get());
        let left = self.window.get().saturating_sub(self.at.saturating_sub(self.start));
        let used = Counter::wide(self.current)
            .saturating_mul(window)
            .saturating_add(Counter::wide(self.previous).saturating_mul(Counter::wide(left)));
        Counter::wide(self.limit).saturating_mul(window).saturating_sub(used)
    }

    /// How many charges of `cost` fit that leave `spare` units over, up to `most`.
    pub(crate) fn fit(&self, (cost, spare): (u64, u64), most: u64) -> u64 {
        let times_window = |units| Counter::wide(units).saturating_mul(Counter::wide(self.window.get()));
        let each = times_window(cost);
        let Some(room) = self.room().checked_sub(times_window(spare)) else { return 0 };
        room.checked_div(each).map_or(most, |fit| u64::try_from(fit).unwrap_or(u64::MAX).min(most))
    }

    pub(crate) fn judge(&self, cost: u64) -> Result<Counter, Refused> {
        if cost > self.limit {
            return Err(Refused::Never);
        }
        if self.fit((cost, 0), 1) == 1 {
            return Ok(Counter { current: self.current.saturating_add(cost), ..*self });
        }
        Err(Refused::Until(self.admitted_at(cost)))
    }

    /// With `cost` more units, whatever it comes to.
    pub(crate) fn owing(&self, cost: u64) -> Counter {
        Counter { current: self.current.saturating_add(cost), ..*self }
    }

    /// The first time at which `cost` fits, if nothing else is charged.
    fn admitted_at(&self, cost: u64) -> u64 {
        let spare = self.limit.saturating_sub(cost);
        if let Some(spare) = spare.checked_sub(self.current) {
            let into = Counter::fits_at(self.window.get(), spare, self.previous);
            return self.start.saturating_add(into);
        }
        let next = self.start.saturating_add(self.window.get());
        next.saturating_add(Counter::fits_at(self.window.get(), spare, self.current))
    }

    /// How far into a window `previous * (window - e) <= spare * window` first holds.
    fn fits_at(window: u64, spare: u64, previous: u64) -> u64 {
        let most = Counter::wide(spare).saturating_mul(Counter::wide(window));
        let left = most.checked_div(Counter::wide(previous)).unwrap_or(u128::MAX);
        window.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Gives `cost` back to the window in which it was charged.
    pub(crate) fn refund(&self, cost: u64, charged: u64) -> Counter {
        if charged >= self.start {
            Counter { current: self.current.saturating_sub(cost), ..*self }
        } else if charged.saturating_add(self.window.get()) >= self.start {
            Counter { previous: self.previous.saturating_sub(cost), ..*self }
        } else {
            *self
        }
    }

    /// Units left, and nanoseconds after `now` until all are back.
    pub(crate) fn standing(&self, now: u64) -> (u64, u64) {
        let window = self.window.get();
        let full = match (self.previous, self.current) {
            (0, 0) => 0,
            (_, 0) => self.start.saturating_add(window),
            _ => self.start.saturating_add(window).saturating_add(window),
        };
        (self.fit((1, 0), u64::MAX), full.saturating_sub(now))
    }
}

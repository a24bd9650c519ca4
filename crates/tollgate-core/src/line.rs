//! The one inequality behind six of the seven algorithms.
//!
//! ```text
//! next  = max(cell, anchor) + cost * interval
//! admit if next <= anchor + capacity        (and then cell = next)
//! ```
//!
//! A cell is a time: the moment at which it may be forgotten. Cells only grow, so a key refused until `x` is refused
//! until `x`, and a clock that steps back finds the later cell and mints nothing.

use core::num::NonZeroU64;

/// What the cell is measured from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    /// The present: GCRA and its kin.
    Now,
    /// The end of the window in which the present lies; windows begin at `phase` after the epoch.
    WindowEnd { window: NonZeroU64, phase: u64 },
}

impl Anchor {
    /// The latest edge at or before `time`.
    fn edge(window: NonZeroU64, phase: u64, time: u64) -> u64 {
        let since = time.saturating_sub(phase);
        time.saturating_sub(since.checked_rem(window.get()).unwrap_or(0))
    }

    fn at(self, now: u64) -> u64 {
        match self {
            Anchor::Now => now,
            Anchor::WindowEnd { window, phase } => {
                Anchor::edge(window, phase, now).saturating_add(window.get())
            }
        }
    }
}

/// The inequality's parameters, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) anchor: Anchor,
    /// What one unit moves the cell.
    pub(crate) interval: NonZeroU64,
    /// How far ahead of the anchor the cell may be.
    pub(crate) capacity: u64,
    /// How far ahead of the anchor a charge may end without a wait.
    pub(crate) unhurried: u64,
}

impl Line {
    /// The cell after `cost` units: `Ok` when they are admitted.
    pub(crate) fn judge(&self, cell: u64, now: u64, cost: u64) -> Result<u64, Refused> {
        if cost == 0 {
            return Ok(cell);
        }
        let anchor = self.anchor.at(now);
        let Some(increment) = cost.checked_mul(self.interval.get()).filter(|i| *i <= self.capacity) else {
            return Err(Refused::Never);
        };
        let next = cell.max(anchor).saturating_add(increment);
        if next <= anchor.saturating_add(self.capacity) {
            return Ok(next);
        }
        let until = match self.anchor {
            Anchor::Now => next.saturating_sub(self.capacity),
            // The cell is its window's end plus what was used, which is less than a window.
            Anchor::WindowEnd { window, phase } => Anchor::edge(window, phase, cell.saturating_sub(1)),
        };
        Err(Refused::Until(until))
    }

    /// The cell after `cost` units, wherever that is.
    pub(crate) fn after(&self, cell: u64, now: u64, cost: u64) -> u64 {
        cell.max(self.anchor.at(now)).saturating_add(cost.saturating_mul(self.interval.get()))
    }

    /// The cell after `cost` units that are owed, however far ahead that is (at most the longest span there is).
    pub(crate) fn owed(&self, cell: u64, now: u64, cost: u64) -> u64 {
        let anchor = self.anchor.at(now);
        let next = self.after(cell, now, cost);
        match self.anchor {
            Anchor::Now => next.min(anchor.saturating_add(crate::MAX_SPAN)),
            // Used up is used up: beyond that the cell would reach into the next window.
            Anchor::WindowEnd { .. } => next.min(anchor.saturating_add(self.capacity).max(cell)),
        }
    }

    /// How long the charge that moved the cell to `next` has to wait.
    pub(crate) fn wait(&self, next: u64, now: u64) -> u64 {
        next.saturating_sub(self.anchor.at(now)).saturating_sub(self.unhurried)
    }

    /// How many charges of `cost` fit that leave `spare` units over, up to `most`.
    pub(crate) fn fit(&self, cell: u64, now: u64, (cost, spare): (u64, u64), most: u64) -> u64 {
        let anchor = self.anchor.at(now);
        let room = anchor.saturating_add(self.capacity).saturating_sub(cell.max(anchor));
        let Some(room) = room.checked_sub(spare.saturating_mul(self.interval.get())) else { return 0 };
        match cost.saturating_mul(self.interval.get()) {
            0 => most,
            increment => room.checked_div(increment).unwrap_or(0).min(most),
        }
    }

    /// The cell after the return of `cost` units that were charged at `charged`.
    ///
    /// Of the debt that a charge makes, what has leaked away since cannot be given back: it would be counted twice. Where
    /// in the queue of debts it stood is not known (refunds of others may have moved it), save that it cannot have
    /// begun to leak before it was made. So it gives back its length less its age. In a fixed window nothing leaks, and
    /// all of it comes back until the window is over.
    pub(crate) fn refund(&self, cell: u64, now: u64, cost: u64, charged: u64) -> u64 {
        let anchor = self.anchor.at(now);
        let increment = cost.saturating_mul(self.interval.get()).min(self.capacity);
        let owed = match self.anchor {
            Anchor::Now => increment.saturating_sub(now.saturating_sub(charged)),
            Anchor::WindowEnd { .. } if self.anchor.at(charged) == anchor => increment,
            Anchor::WindowEnd { .. } => 0,
        };
        if cell <= anchor { cell } else { cell.saturating_sub(owed).max(anchor) }
    }

    /// Units left, and nanoseconds until all are back.
    pub(crate) fn standing(&self, cell: u64, now: u64) -> (u64, u64) {
        let anchor = self.anchor.at(now);
        let remaining = self.fit(cell, now, (1, 0), u64::MAX);
        let reset = match self.anchor {
            _ if cell <= anchor => 0,
            Anchor::Now => cell.saturating_sub(now),
            Anchor::WindowEnd { window, phase } => {
                Anchor::edge(window, phase, cell.saturating_sub(1)).saturating_sub(now)
            }
        };
        (remaining, reset)
    }

    /// How far the cell is ahead of its anchor, in nanoseconds, at most the capacity.
    pub(crate) fn debt(&self, cell: u64, now: u64) -> u64 {
        cell.saturating_sub(self.anchor.at(now)).min(self.capacity)
    }

    /// The cell that is `debt` nanoseconds ahead of its anchor.
    pub(crate) fn indebted(&self, debt: u64, now: u64) -> u64 {
        if debt == 0 { 0 } else { self.anchor.at(now).saturating_add(debt.min(self.capacity)) }
    }
}

/// Why a charge was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It will be, at this time.
    Until(u64),
    /// It costs more than can ever be there.
    Never,
}

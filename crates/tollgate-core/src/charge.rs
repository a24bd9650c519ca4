//! One debit of one key: the verb that everything else calls.

use core::fmt;

use crate::counter::Counter;
use crate::line::Refused;
use crate::log::{self, Log};
use crate::{Rule, Shape, Words};

/// The keyed hash of a key: policy name and subject under the deployment's salt. The only form of a key that is stored,
/// logged or shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Fingerprint {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One debit of one key. Cost 0 looks and writes nothing; with `spare` units it asks whether those are there.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Which policy of the configuration, for stores that keep policies apart.
    pub policy: u16,
    /// Who is charged.
    pub key: Fingerprint,
    /// Under which rule.
    pub rule: &'a Rule,
    /// How many units.
    pub cost: u64,
    /// Units that must be there beyond the cost, and are not taken: 0 for all but questions such as whether a key is at rest.
    pub spare: u64,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Go on, after `wait` nanoseconds (0 for everything but a leaky queue).
    Admit {
        /// Nanoseconds to wait first.
        wait: u64,
    },
    /// Not before `retry_after` nanoseconds have passed.
    Refuse {
        /// Nanoseconds until the same charge is admitted, if nothing else is charged.
        retry_after: u64,
    },
    /// Not ever: the cost is above the capacity.
    Never,
    /// The table has no room to count this key, and its policy refuses then. The fault is ours.
    Full {
        /// Nanoseconds until the first slot may be free.
        retry_after: u64,
    },
    /// Nobody looked: another charge of the same demand had been refused already.
    Unasked,
}

impl Verdict {
    /// Whether the answer is yes.
    pub const fn is_admit(&self) -> bool {
        matches!(self, Verdict::Admit { .. })
    }
}

/// A verdict, and where the key stands after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Yes or no.
    pub verdict: Verdict,
    /// The capacity in units: what a rested key may spend at once.
    pub limit: u64,
    /// Units that could be spent now.
    pub remaining: u64,
    /// Nanoseconds until the key is as good as new, 0 when it is.
    pub reset_after: u64,
    /// The first word of the state after the verdict: when it may be forgotten.
    pub cell: u64,
}

impl Charge<'_> {
    /// The time of a charge whose time is not known: see [`Charge::refund`].
    pub const LATELY: u64 = u64::MAX;

    /// Decides at `now`, and moves the state if and only if the verdict is to admit and the cost is above 0.
    pub fn decide<W: Words + ?Sized>(&self, state: &mut W, now: u64) -> Outcome {
        let verdict = self.judge(state, now);
        if verdict.is_admit() {
            self.apply(state, now);
        }
        self.outcome(verdict, state, now)
    }

    /// Whether it is admitted whatever the standing.
    #[inline]
    pub const fn only_looks(&self) -> bool {
        self.cost == 0 && self.spare == 0
    }

    /// Whether it can never be admitted: it asks for more than the capacity.
    pub fn is_never(&self) -> bool {
        self.cost.saturating_add(self.spare) > self.rule.capacity()
    }

    /// The verdict at `now`, without touching the state.
    #[inline]
    pub fn judge<W: Words + ?Sized>(&self, state: &W, now: u64) -> Verdict {
        if self.only_looks() {
            return Verdict::Admit { wait: 0 };
        }
        let needed = self.cost.saturating_add(self.spare);
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        let judged = match self.rule.shape() {
            Shape::Cell => {
                let line = self.rule.line(self.phase());
                let waits = |_| {
                    if self.cost == 0 { 0 } else { line.wait(line.after(state.get(0), now, self.cost), now) }
                };
                line.judge(state.get(0), now, needed).map(waits)
            }
            Shape::Counter => Counter::load(limit, window, self.phase(), state, now).judge(needed).map(|_| 0),
            Shape::Log => Log::load(limit, window.get(), state, now).judge(needed).map(|()| 0),
        };
        match judged {
            Ok(wait) => Verdict::Admit { wait },
            Err(Refused::Never) => Verdict::Never,
            Err(Refused::Until(time)) => Verdict::Refuse { retry_after: time.saturating_sub(now).max(1) },
        }
    }

    /// Charges the state if the cost is admitted at `now`, else does nothing.
    #[inline]
    pub fn apply<W: Words + ?Sized>(&self, state: &mut W, now: u64) {
        if self.cost == 0 {
            return;
        }
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        match self.rule.shape() {
            Shape::Cell => {
                if let Ok(next) = self.rule.line(self.phase()).judge(state.get(0), now, self.cost) {
                    state.set(0, next);
                }
            }
            Shape::Counter => {
                if let Ok(next) = Counter::load(limit, window, self.phase(), state, now).judge(self.cost) {
                    next.save(state);
                }
            }
            Shape::Log => {
                let log = Log::load(limit, window.get(), state, now);
                if log.judge(self.cost).is_ok() {
                    log.entry(self.cost).write(state);
                }
            }
        }
    }

    /// How many equal charges would be admitted at `now`, up to `most`.
    pub fn fit<W: Words + ?Sized>(&self, state: &W, now: u64, most: u64) -> u64 {
        if self.only_looks() {
            return most;
        }
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        match self.rule.shape() {
            Shape::Cell => self.rule.line(self.phase()).fit(state.get(0), now, (self.cost, self.spare), most),
            Shape::Counter => {
                Counter::load(limit, window, self.phase(), state, now).fit((self.cost, self.spare), most)
            }
            Shape::Log => Log::load(limit, window.get(), state, now).fit((self.cost, self.spare), most),
        }
    }

    /// Gives back what this charge took when it was admitted at `charged`, as far as time has not given it back already.
    /// Never more, in whatever order refunds come, so that they cannot loosen the bound; a little less when the refund
    /// comes late and other debts stand. A time that has not come yet ([`Charge::LATELY`]) stands for one that is not known:
    /// then units are worth what a charge of this moment is, and what was admitted less what was given back keeps the bound.
    pub fn refund<W: Words + ?Sized>(&self, state: &mut W, charged: u64, now: u64) {
        if self.cost == 0 {
            return;
        }
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        let (known, charged) = (charged <= now, charged.min(now));
        match self.rule.shape() {
            Shape::Cell => {
                let line = self.rule.line(self.phase());
                let cell = line.refund(state.get(0), now, self.cost, charged);
                state.set(0, cell);
            }
            Shape::Counter if state.get(0) != 0 => {
                Counter::load(limit, window, self.phase(), state, now).refund(self.cost, charged).save(state);
            }
            Shape::Counter => {}
            Shape::Log if known => log::refund(state, window.get(), self.cost, charged, now),
            Shape::Log => log::refund_newest(state, window.get(), self.cost, now),
        }
    }

    /// Charges the state whatever it comes to: what was admitted elsewhere is owed here. A log keeps the newest.
    pub fn owe<W: Words + ?Sized>(&self, state: &mut W, now: u64) {
        if self.cost == 0 {
            return;
        }
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        match self.rule.shape() {
            Shape::Cell => {
                let next = self.rule.line(self.phase()).owed(state.get(0), now, self.cost);
                state.set(0, next);
            }
            Shape::Counter => {
                Counter::load(limit, window, self.phase(), state, now).owing(self.cost).save(state);
            }
            Shape::Log => Log::load(limit, window.get(), state, now).owing(self.cost).write(state),
        }
    }

    /// Of `admitted` equal charges that were admitted at once at `now` with this outcome for all of them, what the `nth` (from
    /// 1) would have been told alone. One beyond those that were admitted is told the outcome as it is: it was refused.
    #[must_use]
    pub fn nth(&self, outcome: &Outcome, admitted: u64, nth: u64, now: u64) -> Outcome {
        if nth > admitted || self.cost == 0 {
            return *outcome;
        }
        let later = admitted.saturating_sub(nth).saturating_mul(self.cost);
        if self.rule.shape() != Shape::Cell {
            let remaining = outcome.remaining.saturating_add(later).min(outcome.limit);
            return Outcome { verdict: Verdict::Admit { wait: 0 }, remaining, ..*outcome };
        }
        let line = self.rule.line(self.phase());
        let cell = outcome.cell.saturating_sub(later.saturating_mul(line.interval.get()));
        let verdict = Verdict::Admit { wait: line.wait(cell, now) };
        let (remaining, reset_after) = line.standing(cell, now);
        Outcome { verdict, limit: outcome.limit, remaining, reset_after, cell }
    }

    /// The outcome of a charge that nobody looked at, for another of its demand was refused already.
    pub fn unasked(&self) -> Outcome {
        Outcome {
            verdict: Verdict::Unasked,
            limit: self.rule.capacity(),
            remaining: 0,
            reset_after: 0,
            cell: 0,
        }
    }

    /// A verdict together with the standing of the key at `now`.
    #[inline]
    pub fn outcome<W: Words + ?Sized>(&self, verdict: Verdict, state: &W, now: u64) -> Outcome {
        let (limit, window) = (self.rule.quota().limit(), self.rule.quota().window_nz());
        let (remaining, reset_after) = match self.rule.shape() {
            Shape::Cell => self.rule.line(self.phase()).standing(state.get(0), now),
            Shape::Counter => Counter::load(limit, window, self.phase(), state, now).standing(now),
            Shape::Log => Log::load(limit, window.get(), state, now).standing(now),
        };
        Outcome { verdict, limit: self.rule.capacity(), remaining, reset_after, cell: state.get(0) }
    }

    /// Where this key's window edges lie, in nanoseconds after the calendar's: for stores that decide elsewhere.
    #[allow(clippy::cast_possible_truncation, reason = "half of a hash is as good a hash")]
    pub fn phase(&self) -> u64 {
        if !self.rule.jittered_edges() {
            return 0;
        }
        ((self.key.0 >> 64) as u64).checked_rem(self.rule.quota().window()).unwrap_or(0)
    }
}

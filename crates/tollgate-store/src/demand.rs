//! All debits of one request, and what the store answers.

use std::fmt;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Outcome};

/// The most charges that one demand may hold.
pub const MAX_CHARGES: usize = 8;

/// What is to become of a demand's charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Decide them together, up to so many times at once, and charge what is admitted.
    Take {
        /// How many times.
        times: u64,
    },
    /// Charge them, whatever it comes to: they were admitted elsewhere.
    Owe,
    /// Give them back: they were charged at this time, and not used. See [`Charge::refund`].
    GiveBack {
        /// When they were charged, by the store's time; [`Charge::LATELY`] when that is not known.
        charged: u64,
    },
    /// Forget their keys, so that they are as new. The answer's `admitted` is how many were known.
    Forget,
}

/// One to eight charges that are admitted together or not at all. Keys are distinct: charges of one key are added up.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    charges: ArrayVec<Charge<'a>, MAX_CHARGES>,
    intent: Intent,
    fleeting: bool,
}

impl Default for Demand<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Demand<'a> {
    /// No charge yet; to be decided once.
    pub const fn new() -> Self {
        Demand { charges: ArrayVec::new_const(), intent: Intent::Take { times: 1 }, fleeting: false }
    }

    /// Asks for the whole demand up to `times` times at once.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        self.to(Intent::Take { times })
    }

    /// The same charges for another purpose.
    #[must_use]
    pub fn to(mut self, intent: Intent) -> Self {
        self.intent = intent;
        self
    }

    /// Says that what is refused may be taken back early, by a refund or by hand, also elsewhere: so that nobody remembers it for longer
    /// than a moment.
    #[must_use]
    pub fn fleeting(mut self, fleeting: bool) -> Self {
        self.fleeting = fleeting;
        self
    }

    /// Whether a refusal may be taken back early.
    pub const fn is_fleeting(&self) -> bool {
        self.fleeting
    }

    /// One charge, to be decided once.
    pub fn of(charge: Charge<'a>) -> Self {
        Demand { charges: ArrayVec::from_iter([charge]), ..Demand::new() }
    }

    /// Adds a charge, and gives its place. One of a key that is already in is added to it.
    ///
    /// # Errors
    /// [`TooManyCharges`] beyond [`MAX_CHARGES`] different keys.
    pub fn push(&mut self, charge: Charge<'a>) -> Result<usize, TooManyCharges> {
        let same = |c: &Charge<'a>| c.key == charge.key && c.policy == charge.policy;
        if let Some(place) = self.charges.iter().position(same) {
            let earlier = &mut self.charges[place];
            // What one of them takes is there for the other to see.
            let needed = |charge: &Charge<'_>| charge.cost.saturating_add(charge.spare);
            let needed = needed(earlier).max(needed(&charge));
            earlier.cost = earlier.cost.saturating_add(charge.cost);
            earlier.spare = needed.saturating_sub(earlier.cost);
            return Ok(place);
        }
        self.charges.try_push(charge).map_err(|_| TooManyCharges)?;
        Ok(self.charges.len() - 1)
    }

    /// The charges, in the order in which they were added.
    pub fn charges(&self) -> &[Charge<'a>] {
        &self.charges
    }

    /// What is to become of them.
    pub const fn intent(&self) -> Intent {
        self.intent
    }

    /// How many times the demand is to be decided at once: 0 when it is not to be decided.
    pub const fn asked(&self) -> u64 {
        if let Intent::Take { times } = self.intent { times } else { 0 }
    }
}

/// More than [`MAX_CHARGES`] keys in one demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCharges;

impl fmt::Display for TooManyCharges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one request may charge at most {MAX_CHARGES} keys")
    }
}

impl std::error::Error for TooManyCharges {}

/// What a store decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The time that was decided at, in nanoseconds since the Unix epoch.
    pub now: u64,
    /// When what was charged was charged, which is not later: what a refund says ([`Intent::GiveBack`]).
    pub charged: u64,
    /// How many times the demand was admitted and charged: 0 or 1, unless more was asked for.
    pub admitted: u64,
    outcomes: ArrayVec<Outcome, MAX_CHARGES>,
}

impl Answer {
    /// An answer at `now` that admits `admitted` times, with no outcome yet.
    pub const fn new(now: u64, admitted: u64) -> Self {
        Answer { now, charged: now, admitted, outcomes: ArrayVec::new_const() }
    }

    /// The same, charged at another time.
    #[must_use]
    pub fn charged_at(mut self, charged: u64) -> Self {
        self.charged = charged;
        self
    }

    /// Adds the outcome of the next charge. Beyond [`MAX_CHARGES`] it is dropped, which no demand can reach.
    pub fn push(&mut self, outcome: Outcome) {
        let _dropped = self.outcomes.try_push(outcome);
    }

    /// Whether the demand was admitted, at least once.
    pub const fn is_admit(&self) -> bool {
        self.admitted > 0
    }

    /// One outcome per charge, in the demand's order. When the demand was refused, a charge that would have been
    /// admitted alone says so in its verdict, and was not charged. When less was admitted than was asked for, the verdict is
    /// that of the first time that was refused.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }
}

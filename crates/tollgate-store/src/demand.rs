//! All debits of one request, and what the store answers.

use std::fmt;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Outcome};

/// The most charges that one demand may hold.
pub const MAX_CHARGES: usize = 8;

/// One to eight charges that are admitted together or not at all. Keys are distinct: charges of one key are added up.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    charges: ArrayVec<Charge<'a>, MAX_CHARGES>,
    times: u64,
}

impl Default for Demand<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Demand<'a> {
    /// No charge yet; to be decided once.
    pub const fn new() -> Self {
        Demand { charges: ArrayVec::new_const(), times: 1 }
    }

    /// Asks for the whole demand up to `times` times at once.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Adds a charge, and gives its place. One of a key that is already in is added to it.
    ///
    /// # Errors
    /// [`TooManyCharges`] beyond [`MAX_CHARGES`] different keys.
    pub fn push(&mut self, charge: Charge<'a>) -> Result<usize, TooManyCharges> {
        let same = |c: &Charge<'a>| c.key == charge.key && c.policy == charge.policy;
        if let Some(place) = self.charges.iter().position(same) {
            let earlier = &mut self.charges[place];
            earlier.cost = earlier.cost.saturating_add(charge.cost);
            return Ok(place);
        }
        self.charges.try_push(charge).map_err(|_| TooManyCharges)?;
        Ok(self.charges.len() - 1)
    }

    /// The charges, in the order in which they were added.
    pub fn charges(&self) -> &[Charge<'a>] {
        &self.charges
    }

    /// How many times the demand is asked for.
    pub const fn asked(&self) -> u64 {
        self.times
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
    /// How many times the demand was admitted and charged: 0 or 1, unless more was asked for.
    pub admitted: u64,
    outcomes: ArrayVec<Outcome, MAX_CHARGES>,
}

impl Answer {
    /// An answer at `now` that admits `admitted` times, with no outcome yet.
    pub const fn new(now: u64, admitted: u64) -> Self {
        Answer { now, admitted, outcomes: ArrayVec::new_const() }
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
    /// admitted alone says so in its verdict, and was not charged.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }
}

//! Where the count lives.
//!
//! A [`Store`] has one verb: it decides a [`Demand`], all or nothing, and answers with an [`Answer`]. [`Memory`] is the
//! store in this process: one [`Table`] of fixed size per policy, a decision in one cache miss, no allocation.
//!
//! ```
//! use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule};
//! use tollgate_store::{Demand, Memory, Table, WhenFull};
//!
//! let rule = Rule::new("10/s".parse::<Quota>()?, Algorithm::Gcra)?;
//! let memory = Memory::new(vec![Table::new(1_000, rule.words(), WhenFull::Share)]);
//! let mut demand = Demand::new();
//! demand.push(Charge { policy: 0, key: Fingerprint(7), rule: &rule, cost: 4, spare: 0 })?;
//! let answer = memory.decide(&demand, 1_000_000_000).expect("nobody moved it");
//! assert!(answer.is_admit());
//! assert_eq!(answer.outcomes()[0].remaining, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "redis")]
mod address;
#[cfg(feature = "shared")]
pub mod around;
mod bucket;
mod carry;
mod demand;
#[cfg(feature = "sqlite")]
pub mod durable;
#[cfg(feature = "sqlite")]
mod groups;
#[cfg(feature = "sqlite")]
mod journal;
mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "shared")]
mod remote;
#[cfg(feature = "postgres")]
mod rows;
mod shared;
mod table;
mod tally;
#[cfg(feature = "redis")]
mod wire;

pub use bucket::Moved;
pub use carry::Rules;
pub use demand::{Answer, Demand, Intent, MAX_CHARGES, TooManyCharges};
pub use memory::Memory;
#[cfg(feature = "shared")]
pub use remote::Remote;
pub use shared::Shared;
pub use table::{Events, MAX_KEYS, Table, WhenFull};
pub use tally::{Event, Tally};

use std::fmt;
use std::future::Future;

/// Something that counts.
///
/// The one verb: decide a demand, all or nothing, and charge it if it is admitted (or do what else its [`Intent`] says). `now` is the caller's time in
/// nanoseconds since the Unix epoch; a store that is an authority of its own (a server with a clock) decides by its own
/// time and says so in [`Answer::now`]. In-process stores answer with a ready future, which costs nothing to await.
pub trait Store: Send + Sync {
    /// Decides `demand`, or says why it could not.
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + Send;
}

/// Why a store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The states are in another store by now: ask that of the next generation of policies. Nothing was admitted.
    Moved,
    /// The count is out of reach. Nothing was admitted; whether something was charged is not known.
    Unavailable,
    /// Others kept writing the same key in between (instances whose policies differ, while they are exchanged). Nothing was
    /// admitted or charged.
    Contended,
}

impl From<Moved> for Unanswered {
    fn from(_: Moved) -> Self {
        Unanswered::Moved
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unanswered::Moved => "the count is kept by the next generation of policies",
            Unanswered::Unavailable => "the count is out of reach",
            Unanswered::Contended => "others kept writing the same key",
        })
    }
}

impl std::error::Error for Unanswered {}

/// A store whose states are in this process's tables.
pub trait InProcess: Store {
    /// The tables.
    fn memory(&self) -> &Memory;

    /// The same store over other tables, for the next generation of policies. Those with a name are
    /// to be kept where the store keeps things; the others are counted in this process and nowhere else.
    #[must_use]
    fn over(&self, memory: Memory, policies: &[Option<&str>]) -> Self;
}

impl InProcess for Memory {
    fn memory(&self) -> &Memory {
        self
    }

    fn over(&self, memory: Memory, _policies: &[Option<&str>]) -> Self {
        memory
    }
}

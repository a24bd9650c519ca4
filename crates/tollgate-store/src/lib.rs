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
//! demand.push(Charge { policy: 0, key: Fingerprint(7), rule: &rule, cost: 4 })?;
//! let answer = memory.decide(&demand, 1_000_000_000).expect("nobody moved it");
//! assert!(answer.is_admit());
//! assert_eq!(answer.outcomes()[0].remaining, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bucket;
mod demand;
mod memory;
mod table;

pub use bucket::Moved;
pub use demand::{Answer, Demand, MAX_CHARGES, TooManyCharges};
pub use memory::Memory;
pub use table::{Events, MAX_KEYS, Rules, Table, WhenFull};

use std::future::Future;

/// Something that counts.
///
/// The one verb: decide a demand, all or nothing, and charge it if it is admitted. `now` is the caller's time in
/// nanoseconds since the Unix epoch; a store that is an authority of its own (a server with a clock) decides by its own
/// time and says so in [`Answer::now`]. In-process stores answer with a ready future, which costs nothing to await.
pub trait Store: Send + Sync {
    /// Decides `demand`. [`Moved`] says that its states are in another store by now, and that nothing was charged.
    fn decide(&self, demand: &Demand<'_>, now: u64) -> impl Future<Output = Result<Answer, Moved>> + Send;
}

//! Wrappers: each is a store around a store, and knows one thing. [`stack`] puts them around a store in the order that is
//! asked for.

use std::sync::Arc;
use std::time::Duration;

use crate::Shared;

mod approximate;
mod breaker;
mod coalescing;
mod deadline;
mod leases;
mod refusals;
mod singly;

pub use approximate::Approximate;
pub use breaker::{Breaker, LONGEST_PAUSE, PATIENCE};
pub use coalescing::Coalescing;
pub use deadline::Deadline;
pub use leases::Leases;
pub use refusals::Refusals;
pub use singly::Singly;

/// A wrapper, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapper {
    /// [`Singly`].
    Singly,
    /// [`Refusals`].
    Refusals,
    /// [`Deadline`], of so long.
    Deadline(Duration),
    /// [`Coalescing`].
    Coalescing,
    /// [`Leases`], of so many units at most.
    Leases(u64),
    /// [`Approximate`], reporting so often.
    Approximate(Duration),
    /// [`Breaker`].
    Breaker,
}

/// A clock, in nanoseconds: what is reckoned from it is how long something took.
pub type Now = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Puts wrappers around a store, the first of them outermost. Without a clock they reckon by the times at which callers came.
pub fn stack(store: Shared, wrappers: &[Wrapper], now: Option<&Now>) -> Shared {
    wrappers.iter().rev().fold(store, |inner, wrapper| inner.within(*wrapper, now.cloned()))
}

impl Shared {
    fn within(self, wrapper: Wrapper, now: Option<Now>) -> Shared {
        let (tally, also) = (self.tally_of(), self.tally_of());
        match wrapper {
            Wrapper::Singly => Shared::new(Singly::new(self), tally),
            Wrapper::Refusals => Shared::new(Refusals::new(self, also).by(now), tally),
            Wrapper::Deadline(deadline) => Shared::new(Deadline::new(self, deadline, also), tally),
            Wrapper::Coalescing => Shared::new(Coalescing::new(self, also), tally),
            Wrapper::Leases(most) => Shared::new(Leases::new(self, most, also).by(now), tally),
            Wrapper::Approximate(every) => Shared::new(Approximate::new(self, every, also), tally),
            Wrapper::Breaker => Shared::new(Breaker::new(self, also), tally),
        }
    }
}

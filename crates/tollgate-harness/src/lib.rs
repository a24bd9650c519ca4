//! What tries to break the promises.
//!
//! * [`arrivals`]: when requests come, from a seed: Poisson, bursts, a metronome, the edge of a window;
//! * [`Model`]: each algorithm once more, as a brute force over everything that was ever admitted;
//! * [`Admissions`]: the log of what was admitted, and whether any interval saw more than its bound;
//! * [`laws`]: the conformance suite. A store is a value fed to it, each law a test named as a sentence: see
//!   [`conformance`].
//!
//! * [`VirtualClock`]: true time beside what a limiter is shown of it, stepped back or drifting.
//!
//! Time is virtual everywhere: a number that the caller moves.

pub mod arrivals;
mod faulty;
mod invariant;
pub mod laws;
mod model;
mod scene;
pub mod servers;
mod time;

pub use faulty::{Faults, Faulty};
pub use invariant::{Admissions, Breach};
pub use model::Model;
pub use scene::Scene;
pub use servers::{Blocking, PostgresServer, RedisServer};
pub use time::VirtualClock;

/// Hands the names of all laws to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! with_laws {
    ($with:ident!($($before:tt)*)) => {
        $with! {
            $($before)*
            burst_is_exactly_b_from_cold,
            the_bound_holds_in_every_interval,
            a_refusal_charges_nothing,
            a_refusal_keeps_its_promise,
            a_clock_that_steps_back_mints_nothing,
            a_drifting_clock_mints_its_drift_and_no_more,
            forgetting_spent_state_changes_nothing,
            a_demand_is_all_or_none,
            cost_zero_only_looks,
            a_cost_above_the_capacity_is_never,
            spare_units_must_be_there_and_are_not_taken,
            many_threads_admit_exactly_the_limit,
            crossing_demands_neither_deadlock_nor_exceed,
            it_agrees_with_the_model_on_random_sequences,
            up_to_n_is_n_times_one,
            every_intent_does_what_the_core_does,
            keys_and_policies_do_not_share_a_count,
        }
    };
}

/// Makes one test per law for a store. `$make` is a function from the rules (policy `n` is counted under rule `n`) to the
/// store.
#[macro_export]
macro_rules! conformance {
    (@tests $make:expr; $($law:ident,)*) => {
        $(#[test] fn $law() { $crate::laws::$law(&$make); })*
    };
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;
            use $crate::conformance;
            $crate::with_laws!(conformance!(@tests $make;));
        }
    };
}

//! The decision, and nothing else: integers in, integers out.
//!
//! A rate limiter answers one question: may this key spend this cost now? This crate holds the whole answer as pure
//! functions. It has no clock (time is an argument, in nanoseconds since the Unix epoch), no I/O, no allocation and no
//! dependency. Nothing here panics, and no float takes part in a decision.
//!
//! The story in four types:
//!
//! * a [`Quota`] is what people write: `100/60s burst 20`. One that exists is valid;
//! * a [`Rule`] is a quota under an [`Algorithm`], compiled to integers;
//! * a [`Charge`] is one debit of one key under a rule;
//! * the state of a key is a few [`Words`], all zero when it is new, and **the first word is the time at which the
//!   state may be forgotten**. [`Charge::decide`] reads and moves them.
//!
//! ```
//! use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, Verdict};
//!
//! let quota: Quota = "2/1s".parse()?;
//! let rule = Rule::new(quota, Algorithm::Gcra)?;
//! let charge = Charge { policy: 0, key: Fingerprint(7), rule: &rule, cost: 1, spare: 0 };
//! let mut cell = [0_u64; 1];
//! let now = 1_000_000_000;
//! assert_eq!(charge.decide(&mut cell, now).remaining, 1);
//! assert_eq!(charge.decide(&mut cell, now).remaining, 0);
//! assert_eq!(charge.decide(&mut cell, now).verdict, Verdict::Refuse { retry_after: 500_000_000 });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

mod bound;
mod carry;
mod charge;
mod counter;
mod line;
mod log;
mod quota;
mod rule;
mod text;
mod words;

pub use bound::Bound;
pub use carry::carry;
pub use charge::{Charge, Fingerprint, Outcome, Verdict};
pub use quota::{MAX_SPAN, MAX_WINDOW, Quota, QuotaError, Rate};
pub use rule::{Algorithm, MAX_LOG_LIMIT, Rule, RuleError, Shape};
pub use text::{TextError, duration as parse_duration, show_duration};
pub use words::Words;

/// One second, in the crate's unit of time.
pub const SECOND: u64 = 1_000_000_000;

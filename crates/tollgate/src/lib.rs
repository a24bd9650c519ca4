//! A rate limiter that keeps its word: the number published is the number enforced.
//!
//! # One quota
//!
//! ```
//! use tollgate::{Capacity, Decision, Limiter, Quota};
//!
//! let limiter = Limiter::in_process(Quota::per_minute(100).burst(20)?, Capacity::keys(1_000_000));
//! match limiter.check("alice") {
//!     Decision::Admit(standing) => assert_eq!(standing.remaining, 19),
//!     Decision::Refuse(refusal) => println!("come back in {:?}", refusal.retry_after),
//! }
//! # Ok::<(), tollgate::QuotaError>(())
//! ```
//!
//! [`Limiter::check`] neither awaits nor allocates. At most `burst + rate * t` units are admitted to a subject in any interval
//! of length t, whatever the threads, bursts and clock steps: see [`Bound`].
//!
//! # Policies
//!
//! What is counted and how can be written down in a file, and be about many kinds of requests at once:
//!
//! ```
//! use http::HeaderMap;
//! use tollgate::{Limiter, Request};
//!
//! let limiter = Limiter::from_toml(r#"
//!     [[policy]]
//!     name = "login"
//!     match = { method = "POST", path = "/login" }
//!     subject = ["header:x-user-id", "address"]
//!     quota = "5/1m"
//! "#)?;
//! let headers = HeaderMap::new();
//! let request = Request {
//!     method: "POST",
//!     host: "example.com",
//!     path: "/login",
//!     query: None,
//!     headers: &headers,
//!     address: Some([192, 0, 2, 1].into()),
//!     size: None,
//! };
//! # pollster::block_on(async {
//! let ruling = limiter.decide(&request).await;
//! assert!(ruling.is_admit());
//! # });
//! # Ok::<(), tollgate::Problems>(())
//! ```
//!
//! All policies that a request meets are decided together: all admit and are charged, or none is charged. A decision is
//! total; what went wrong is in it.

mod asked;
mod bans;
mod beside;
pub mod client;
mod clock;
pub mod config;
pub mod contract;
mod decision;
mod descriptor;
#[cfg(feature = "sqlite")]
mod durable;
mod key;
mod limiter;
mod matching;
mod meanwhile;
mod named;
mod placement;
mod places;
mod plan;
mod policies;
mod policy;
mod ready;
mod request;
mod reserve;
mod response;
mod settle;
#[cfg(feature = "shared")]
mod stacks;
mod tables;
mod token;

pub use asked::{Asked, Check, Descriptor, MAX_ASKED, Reserved, Stated, Throttle};
pub use beside::{Ban, MAX_BAR_MS};
pub use clock::Clock;
pub use config::{Problem, Problems};
pub use decision::{Decision, MAX_SHADOWS, Part, Reason, Refusal, Ruling, Standing, Turn};
pub use descriptor::{Entry, MAX_ENTRIES, Pattern, Value};
#[cfg(feature = "sqlite")]
pub use durable::Restored;
pub use key::{Keys, MAX_SUBJECT_BYTES, Prefixes, Salt, fold, fold_network};
pub use limiter::{Capacity, Limiter};
pub use matching::{About, Match, path_matches};
pub use placement::{DEFAULT_SHARDS, Placement};
pub use places::{ReadCap, Stacks};
pub use policies::{MAX_POLICIES, Policies, PolicySet};
pub use policy::{Class, Cost, DEFAULT_KEYS, Direction, List, Missing, Policy, Subject, Tier};
pub use ready::Ready;
pub use request::{Request, Said};
pub use reserve::{MAX_ID_BYTES, MAX_RESERVATION, Reservation, Reserve, Settled};
pub use response::{OnResponse, Response};
pub use settle::RESPONSE_GRACE;
#[cfg(feature = "shared")]
pub use stacks::{Around, WRAPPERS};
pub use token::Verifier;

pub use tollgate_core::{
    Algorithm, Bound, Charge, Fingerprint, Outcome, Quota, QuotaError, Rate, Rule, RuleError, SECOND,
    Verdict, parse_duration, show_duration,
};
#[cfg(feature = "sqlite")]
pub use tollgate_store::durable::{Durability, Durable, JournalError, Opened};
#[cfg(feature = "postgres")]
pub use tollgate_store::postgres;
#[cfg(feature = "redis")]
pub use tollgate_store::redis;
pub use tollgate_store::{
    Answer, Demand, Event, Events, InProcess, Intent, MAX_CHARGES, MAX_KEYS, Memory, Moved, Shared, Store,
    Table, Tally, Unanswered, WhenFull,
};
#[cfg(feature = "shared")]
pub use tollgate_store::{Remote, around};

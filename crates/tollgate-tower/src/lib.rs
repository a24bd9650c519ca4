//! Tollgate in a tower stack.
//!
//! [`LimitLayer`] stands before an HTTP service (axum, hyper, tonic): each request is decided by all policies that it meets; what
//! is refused never reaches the service, and gets the answer that its client understands.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::Limiter;
//! use tollgate_tower::LimitLayer;
//!
//! let limiter = Limiter::from_toml(r#"
//!     [[policy]]
//!     name = "site"
//!     subject = "header:x-user"
//!     quota = "100/1m burst 20"
//! "#)?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(LimitLayer::new(limiter));
//! # Ok::<(), tollgate::Problems>(())
//! ```
//!
//! [`CheckLayer`] stands before a service of any kind, such as a client's, and asks one policy by name: what is refused is an
//! [`Error`] that says when to come back.
//!
//! Where counts are in this process a decision is made in `call`, without a box or a task; a count on a server, and the turn of a leaky
//! queue, is awaited in the response future. A client that leaves before its turn gives its place back. Both are as ready as the service behind them.

mod afterwards;
pub mod answer;
mod charged;
mod check;
mod error;
mod fields;
mod future;
mod layer;
mod obey;
mod service;
pub mod shed;
mod turns;

pub use afterwards::{responded, retry_after};
pub use charged::{Charged, PassedOn, in_background, to_its_end};
pub use check::{Check, CheckFuture, CheckLayer};
pub use error::{Error, Refused};
pub use future::ResponseFuture;
pub use layer::LimitLayer;
pub use obey::{Obey, ObeyLayer};
pub use service::Limit;
pub use turns::{Full, MAX_WAITING, Turns, Waiting};

//! Instances that share a real store: the promise holds across them, and when the store fails each policy says what happens.
#![allow(clippy::disallowed_methods, reason = "what is measured here is real time")]

mod exact;
mod faults;
mod leases;
mod partition;
mod reservations;
mod rig;
mod secure;
mod topology;

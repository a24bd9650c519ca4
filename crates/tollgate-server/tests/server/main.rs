//! The binary, run as a user would run it, against real origins and over real sockets.

#![allow(clippy::disallowed_methods, reason = "real servers take real time")]

mod administration;
mod auth;
mod checks;
mod commands;
mod connections;
mod crowds;
mod durable;
mod fleet;
mod gateway;
mod imports;
mod manners;
mod pages;
mod proxies;
mod reloading;
mod resp;
mod rig;
mod rls;

//! The server `tollgate`: a gateway in front of an origin, an answerer of checks, and the tools around a policy file.
//!
//! The decision path reads: a door ([`gateway`], [`check`], [`auth`]) parses, [`app::App::decide`] decides and records,
//! and [`answer`] says it in HTTP.

pub mod admin;
pub mod answer;
pub mod app;
pub mod auth;
pub mod backend;
pub mod body;
pub mod check;
pub mod cli;
pub mod explain;
pub mod gateway;
pub mod http;
pub mod import;
pub mod listen;
pub mod metrics;
pub mod proxy_protocol;
pub mod record;
pub mod reload;
pub mod replay;
pub mod reserve;
pub mod resp;
pub mod rls;
pub mod salt;
pub mod serve;
pub mod settings;
pub mod shedding;
pub mod store;
pub mod upstream;
pub mod verify;
pub mod warm;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

/// Runs the command line. Exit status 0 is success, 1 that what was asked about is wrong, 2 that it could not be done.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check { file } => explain::validate(&file),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(message)) => {
            eprintln!("{message}");
            ExitCode::from(1)
        }
        Err(Failure::Impossible(message)) => {
            eprintln!("tollgate: {message}");
            ExitCode::from(2)
        }
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// What was asked about is wrong: a policy file with problems.
    Wrong(String),
    /// It could not be done: a file that is not there, a port that is taken.
    Impossible(String),
}

impl Failure {
    /// A failure with a file.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Failure::Impossible(format!("{}: {error}", path.display()))
    }
}

impl From<tollgate::Problems> for Failure {
    fn from(problems: tollgate::Problems) -> Self {
        Failure::Wrong(problems.to_string())
    }
}

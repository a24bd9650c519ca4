//! `tollgate replay`: what these policies would have made of this traffic.

pub mod line;
mod page;
mod source;
mod tally;
mod text;

use std::fs;
use std::io::{self, Write};
use std::time::Duration;

use http::HeaderMap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tollgate::client::{Trust, address};
use tollgate::{Asked, Clock, Limiter, Request, Response, Salt};

use crate::cli::{Format, ReplayArgs};
use crate::{Failure, settings};
use source::Log;
pub use tally::{Report, Tally};

/// Runs the command.
///
/// # Errors
/// [`Failure`] when a file cannot be read or the policies are wrong.
pub fn run(arguments: &ReplayArgs) -> Result<(), Failure> {
    let text = fs::read_to_string(&arguments.file).map_err(|error| Failure::file(&arguments.file, &error))?;
    let (settings, set) = settings::read(&arguments.file.display().to_string(), &text, None)?;
    let mut log = Log::default();
    let bar = progress("reading");
    for path in &arguments.logs {
        log.read(path, &bar).map_err(|error| Failure::file(path, &error))?;
    }
    bar.finish_and_clear();
    let clock = Clock::manual(0);
    let limiter = Limiter::new(set.counted_here(), Salt::random(), clock.clone());
    let report = replay(&limiter, &clock, &settings.trust, &mut log)?;
    let shown = match arguments.format {
        Format::Text => text::show(&report),
        Format::Json => format!("{}\n", report.json()),
        Format::Html => page::show(&report),
    };
    match &arguments.output {
        Some(path) => fs::write(path, shown).map_err(|error| Failure::file(path, &error)),
        None => match io::stdout().write_all(shown.as_bytes()) {
            // Whoever reads may have seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::Impossible(format!("standard output: {error}")))
            }
            _ => Ok(()),
        },
    }
}

/// Takes the requests in the order of their times, each at its own.
fn replay(limiter: &Limiter, clock: &Clock, trust: &Trust, log: &mut Log) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| Failure::Impossible(format!("cannot start: {error}")))?;
    let policies = limiter.policies();
    let span = log.sort();
    let mut tally = Tally::new(&policies, span);
    let bar = progress("replaying");
    bar.set_length(log.len() as u64);
    for logged in log.requests() {
        clock.set(logged.time);
        let target = logged.target.as_ref();
        let target = target.split_once("://").map_or(target, |(_, r)| r.find('/').map_or("/", |at| &r[at..]));
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let request = Request {
            method: &logged.method,
            host: &logged.host,
            path,
            query,
            headers: &logged.headers,
            address: address(&logged.client).map(|peer| trust.client(peer, &logged.headers)),
            size: None,
        };
        let mut ruling = runtime.block_on(limiter.decide_all(&[Asked::Exchange(&request)]));
        tally.add(&policies, &request, &ruling);
        // Policies that go by the response are told the one that was logged.
        match logged.status {
            Some(status) if ruling.goes_by_response() => {
                let response = Response { status, headers: &HeaderMap::new(), size: logged.sent };
                runtime.block_on(limiter.responded(&mut ruling, &response));
            }
            _ => runtime.block_on(limiter.unanswered(&mut ruling)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(tally.report(&policies, log.broken))
}

/// A bar on standard error, where there is somebody to see it.
fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{msg:>9} [{bar:40}] {pos}/{len} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

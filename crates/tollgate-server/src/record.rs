//! One structured line per decision, on standard output; keys only as fingerprints.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollgate::{Part, Policy, Ruling};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::app::Door;
use crate::settings::{LogSettings, shown};

/// Lines that wait to be written; beyond that they are dropped rather than held against a request.
const MAX_WAITING_LINES: usize = 64 << 10;

/// The decision log.
#[derive(Debug)]
pub struct Record {
    out: Option<(NonBlocking, WorkerGuard)>,
    sample: u64,
    admits: AtomicU64,
}

#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    door: &'a str,
    decision: &'a str,
    policy: Option<&'a str>,
    key: Option<String>,
    cost: u64,
    limit: u64,
    remaining: u64,
    cell: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_refuse: Vec<&'a str>,
    store_us: f64,
    fallback: bool,
    generation: u64,
}

impl Record {
    /// A log as the settings want it.
    pub fn new(settings: LogSettings) -> Self {
        let out = settings.decisions.then(|| {
            let builder = NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING_LINES).lossy(true);
            builder.finish(std::io::stdout())
        });
        Record { out, sample: settings.admit_sample.max(1), admits: AtomicU64::new(0) }
    }

    /// Writes the line of a decision: of the policy that fired, else of the one that is closest to its end.
    pub fn decided(&self, door: Door, ruling: &Ruling, took: u64) {
        if self.out.is_none() {
            return;
        }
        if ruling.is_admit() && !self.admits.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.sample) {
            return;
        }
        let time = written(ruling.now);
        let (policy, part) = told(ruling).unzip();
        let would_refuse = ruling.shadows().filter(|(_, part)| !part.outcome.verdict.is_admit());
        let line = Line {
            time: &time,
            door: door.name(),
            decision: ruling.reason.name(),
            policy: policy.or_else(|| ruling.scope()).map(|policy| policy.name.as_str()),
            key: part.map(|part| shown(part.key)),
            cost: part.map_or(0, |part| part.cost),
            limit: part.map_or(0, |part| part.outcome.limit),
            remaining: part.map_or(0, |part| part.outcome.remaining),
            cell: part.map_or(0, |part| part.outcome.cell),
            retry_after_ms: ruling.retry_after().map(|nanos| nanos.div_ceil(1_000_000)),
            would_refuse: would_refuse.map(|(policy, _)| policy.name.as_str()).collect(),
            store_us: (took / 100) as f64 / 10.0,
            fallback: ruling.fallback.is_some(),
            generation: ruling.policies().generation,
        };
        self.write(&line);
    }

    /// Writes the line of a request that was turned away, whoever asked. It has no field in common with a decision's but the time.
    pub fn shed(&self, now: u64, place: &str, class: &str) {
        if self.out.is_some() {
            self.write(&ShedLine { time: &written(now), shed: place, class });
        }
    }

    fn write(&self, line: &impl Serialize) {
        if let (Ok(mut text), Some((out, _))) = (serde_json::to_vec(line), &self.out) {
            text.push(b'\n');
            let _full = out.clone().write_all(&text);
        }
    }
}

#[derive(Serialize)]
struct ShedLine<'a> {
    time: &'a str,
    shed: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    class: &'a str,
}

/// A time as it stands in a line, in whole milliseconds.
fn written(now: u64) -> String {
    let nanos = i128::from(now - now % 1_000_000);
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().and_then(|t| t.format(&Rfc3339).ok());
    time.unwrap_or_default()
}

fn told(ruling: &Ruling) -> Option<(&Policy, &Part)> {
    let scope = ruling.scope().map(|policy| policy.name.as_str());
    ruling.parts().min_by_key(|(policy, part)| (Some(policy.name.as_str()) != scope, part.outcome.remaining))
}

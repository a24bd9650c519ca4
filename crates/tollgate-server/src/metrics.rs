//! What is counted, labelled by policy and never by key.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use tollgate::{Event, Events, Limiter, Ruling, SECOND, Settled};

use crate::app::App;
use crate::backend::Backend;

/// The server's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    fallback: IntCounterVec,
    store_seconds: Histogram,
    table_events: IntCounterVec,
    store_events: IntCounterVec,
    store_open: IntGauge,
    gate: Gate,
    /// Answers, by door and status.
    pub responses: IntCounterVec,
    /// How long origins took to begin their answers.
    pub upstream_seconds: Histogram,
    /// The generation of the policies in force.
    pub generation: IntGauge,
    /// Reloads that failed, so that the last good policies stayed.
    pub reload_failures: IntCounter,
    /// Open connections.
    pub connections: IntGauge,
    /// Events of each table as of the last scrape.
    seen: Mutex<HashMap<String, Events>>,
}

/// What is counted of the gate's manners.
#[derive(Debug)]
struct Gate {
    shed: IntCounterVec,
    bans: IntCounterVec,
    reservations: IntCounterVec,
    waiting: IntGauge,
    origin_under_way: IntGaugeVec,
    origin_limit: IntGaugeVec,
}

/// Makes metrics, and registers them.
struct Make<'r>(&'r Registry);

impl Make<'_> {
    fn register<M: Collector + Clone + 'static>(&self, metric: M) -> prometheus::Result<M> {
        self.0.register(Box::new(metric.clone())).map(|()| metric)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    /// A gauge for each origin.
    fn gauges(&self, name: &str, help: &str) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), &["origin"])?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }
}

impl Gate {
    fn new(make: &Make<'_>) -> prometheus::Result<Self> {
        Ok(Gate {
            shed: make.counters(
                "tollgate_shed_total",
                "Requests that were turned away whoever asked, by what there was no room in (origin, queue) and class",
                &["place", "class"],
            )?,
            bans: make.counters("tollgate_bans_total", "Bans that began, by policy", &["policy"])?,
            reservations: make.counters(
                "tollgate_reservations_total",
                "Reservations: made, repeated, settled, settled_again, lapsed, unknown, unavailable",
                &["event"],
            )?,
            waiting: make.gauge("tollgate_waiting", "Requests that wait for their turn in a leaky queue")?,
            origin_under_way: make.gauges(
                "tollgate_origin_under_way",
                "Requests that an origin has to do, where that is bounded",
            )?,
            origin_limit: make.gauges("tollgate_origin_limit", "How many it is given at once")?,
        })
    }
}

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// When two of them share a name, which a test would show.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Make(&registry);
        let reload_failures = make.register(IntCounter::new(
            "tollgate_config_reload_failures_total",
            "Reloads that failed; the last good policies stay",
        )?)?;
        Ok(Metrics {
            decisions: make.counters(
                "tollgate_decisions_total",
                "Decisions by policy and verdict; shadow policies say shadow_admit and shadow_refuse",
                &["policy", "decision"],
            )?,
            fallback: make.counters(
                "tollgate_fallback_total",
                "Decisions that the store could not make, by policy and direction",
                &["policy", "direction"],
            )?,
            store_seconds: make.histogram(
                "tollgate_store_seconds",
                "How long a decision took, keys and store included",
                &[1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2, 5e-2, 0.1, 1.0],
            )?,
            table_events: make.counters(
                "tollgate_table_events_total",
                "New keys that met a full bucket, by what happened: evicted, shared, refused",
                &["event"],
            )?,
            store_events: make.counters(
                "tollgate_store_events_total",
                "What was asked of the shared store and what was not: asked, failed, remembered, together, leased, broken",
                &["event"],
            )?,
            store_open: make.gauge(
                "tollgate_store_open",
                "1 while the shared store is given up and policies answer by their direction",
            )?,
            gate: Gate::new(&make)?,
            responses: make.counters("tollgate_responses_total", "Answers by door and status", &["door", "status"])?,
            upstream_seconds: make.histogram(
                "tollgate_upstream_seconds",
                "How long origins took to begin their answers",
                &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            )?,
            generation: make.gauge("tollgate_config_generation", "The generation of the policies in force")?,
            connections: make.gauge("tollgate_connections", "Open connections")?,
            reload_failures,
            registry,
            seen: Mutex::default(),
        })
    }

    /// Counts a decision under each of its policies.
    pub fn decided(&self, ruling: &Ruling, took: u64) {
        self.store_seconds.observe(took as f64 / SECOND as f64);
        let count =
            |policy: &str, decision: &str| self.decisions.with_label_values(&[policy, decision]).inc();
        let mut counted = false;
        for (policy, part) in ruling.parts() {
            count(&policy.name, ruling.part_name(part));
            counted = true;
        }
        if !counted {
            count(ruling.scope().map_or("", |policy| &policy.name), ruling.reason.name());
        }
        for (policy, part) in ruling.shadows() {
            let admit = part.outcome.verdict.is_admit();
            count(&policy.name, if admit { "shadow_admit" } else { "shadow_refuse" });
        }
        if let (true, Some(policy)) = (ruling.ban_began, ruling.scope()) {
            self.gate.bans.with_label_values(&[policy.name.as_str()]).inc();
        }
        if let Some(reservation) = &ruling.reservation {
            let event = if reservation.repeated { "repeated" } else { "made" };
            self.gate.reservations.with_label_values(&[event]).inc();
        }
        if let Some(direction) = ruling.fallback {
            let policy = ruling.scope().map_or("", |policy| &policy.name);
            self.fallback.with_label_values(&[policy, &direction.to_string()]).inc();
        }
    }

    /// Counts a request that was turned away, whoever asked.
    pub fn shed(&self, place: &str, class: &str) {
        self.gate.shed.with_label_values(&[place, class]).inc();
    }

    /// Counts what became of a settlement.
    pub fn settled(&self, settled: &Settled) {
        let event = match settled {
            Settled::Now { .. } => "settled",
            Settled::Before => "settled_again",
            Settled::Lapsed => "lapsed",
            Settled::Unknown => "unknown",
            Settled::Unavailable => "unavailable",
        };
        self.gate.reservations.with_label_values(&[event]).inc();
    }

    /// The text that Prometheus scrapes.
    pub fn text(&self, app: &App) -> String {
        let limiter = &app.limiter;
        self.count_tables(limiter);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.gate.waiting.set(count(app.turns.waiting()));
        for (origin, shed) in app.settings.upstream.iter().zip(&app.sheds) {
            let origin = origin.authority().map_or("", |authority| authority.as_str());
            self.gate.origin_under_way.with_label_values(&[origin]).set(count(shed.under_way()));
            self.gate.origin_limit.with_label_values(&[origin]).set(count(shed.limit()));
        }
        if let Some(stacks) = limiter.stacks() {
            let tally = stacks.strict.tally();
            self.store_open.set(i64::from(tally.is_open()));
            for event in Event::ALL {
                let counter = self.store_events.with_label_values(&[event.name()]);
                counter.inc_by(tally.count(event).saturating_sub(counter.get()));
            }
        }
        let mut text = Vec::new();
        if TextEncoder::new().encode(&self.registry.gather(), &mut text).is_err() {
            return String::new();
        }
        String::from_utf8(text).unwrap_or_default()
    }

    /// Brings the table counters up to date; a table that was exchanged begins at zero again.
    fn count_tables(&self, limiter: &Limiter<Backend>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (policy, table) in limiter.tables() {
            let now = table.events();
            let before = seen.insert(policy, now).unwrap_or_default();
            for (event, was, is) in [
                ("evicted", before.evicted, now.evicted),
                ("shared", before.shared, now.shared),
                ("refused", before.refused, now.refused),
            ] {
                let more = is.checked_sub(was).unwrap_or(is);
                self.table_events.with_label_values(&[event]).inc_by(more);
            }
        }
    }
}

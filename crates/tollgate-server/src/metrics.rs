//! What is counted, labelled by policy and never by key.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use tollgate::{Event, Events, Limiter, Ruling, SECOND};

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

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// When two of them share a name, which a test would show.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let vec = |name, help, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone())).map(|()| metric)
        };
        let histogram = |name, help, buckets: &[f64]| {
            let metric = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
            registry.register(Box::new(metric.clone())).map(|()| metric)
        };
        let gauge = |name, help| {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone())).map(|()| metric)
        };
        let reload_failures = IntCounter::new(
            "tollgate_config_reload_failures_total",
            "Reloads that failed; the last good policies stay",
        )?;
        registry.register(Box::new(reload_failures.clone()))?;
        Ok(Metrics {
            decisions: vec(
                "tollgate_decisions_total",
                "Decisions by policy and verdict; shadow policies say shadow_admit and shadow_refuse",
                &["policy", "decision"],
            )?,
            fallback: vec(
                "tollgate_fallback_total",
                "Decisions that the store could not make, by policy and direction",
                &["policy", "direction"],
            )?,
            store_seconds: histogram(
                "tollgate_store_seconds",
                "How long a decision took, keys and store included",
                &[1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 1e-3, 1e-2, 5e-2, 0.1, 1.0],
            )?,
            table_events: vec(
                "tollgate_table_events_total",
                "New keys that met a full bucket, by what happened: evicted, shared, refused",
                &["event"],
            )?,
            store_events: vec(
                "tollgate_store_events_total",
                "What was asked of the shared store and what was not: asked, failed, remembered, together, leased, broken",
                &["event"],
            )?,
            store_open: gauge(
                "tollgate_store_open",
                "1 while the shared store is given up and policies answer by their direction",
            )?,
            responses: vec("tollgate_responses_total", "Answers by door and status", &["door", "status"])?,
            upstream_seconds: histogram(
                "tollgate_upstream_seconds",
                "How long origins took to begin their answers",
                &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            )?,
            generation: gauge("tollgate_config_generation", "The generation of the policies in force")?,
            connections: gauge("tollgate_connections", "Open connections")?,
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
        if let Some(direction) = ruling.fallback {
            let policy = ruling.scope().map_or("", |policy| &policy.name);
            self.fallback.with_label_values(&[policy, &direction.to_string()]).inc();
        }
    }

    /// The text that Prometheus scrapes.
    pub fn text(&self, limiter: &Limiter<Backend>) -> String {
        self.count_tables(limiter);
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

//! Each algorithm once more, by brute force: everything that was ever admitted is kept and looked at again.
//!
//! It shares no code and no formula with the core. Time must not go back here.

use tollgate_core::{Algorithm, Rule};

/// A limiter for one key that nobody would run.
#[derive(Clone, Debug)]
pub struct Model {
    rule: Rule,
    admitted: Vec<(u64, u64)>,
}

impl Model {
    /// A key at rest under `rule`.
    pub fn new(rule: Rule) -> Self {
        Model { rule, admitted: Vec::new() }
    }

    /// Decides, and remembers what it admits. Cost 0 is admitted and not remembered.
    pub fn decide(&mut self, now: u64, cost: u64) -> bool {
        let admit = cost == 0 || cost <= self.remaining(now);
        if admit && cost > 0 {
            self.admitted.push((now, cost));
        }
        admit
    }

    /// Units that could be spent at `now`.
    pub fn remaining(&self, now: u64) -> u64 {
        let quota = self.rule.quota();
        let window = quota.window();
        match self.rule.algorithm() {
            Algorithm::FixedWindow => quota.limit() - self.sum(|time| time / window == now / window),
            Algorithm::SlidingLog => quota.limit() - self.sum(|time| time + window > now),
            Algorithm::SlidingCounter => self.estimated(now),
            Algorithm::LeakyMeter => self.drained(now, 1),
            Algorithm::LeakyQueue => self.drained(now, quota.burst() + quota.queue()),
            Algorithm::Gcra | Algorithm::TokenBucket => self.drained(now, quota.burst()),
        }
    }

    /// How long a charge of `cost`, admitted just now, has to wait: until the bucket's level is down to the burst.
    pub fn wait(&self, now: u64) -> u64 {
        let quota = self.rule.quota();
        if self.rule.algorithm() != Algorithm::LeakyQueue {
            return 0;
        }
        narrow(self.level(now).saturating_sub(u128::from(quota.burst()) * u128::from(quota.interval())))
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> u64 {
        self.admitted.iter().filter(|(time, _)| counts(*time)).map(|(_, cost)| cost).sum()
    }

    fn estimated(&self, now: u64) -> u64 {
        let quota = self.rule.quota();
        let (window, limit) = (u128::from(quota.window()), u128::from(quota.limit()));
        let here = now / quota.window();
        let current = u128::from(self.sum(|time| time / quota.window() == here));
        let previous = u128::from(self.sum(|time| time / quota.window() + 1 == here));
        let overlap = window - u128::from(now % quota.window());
        narrow((limit * window).saturating_sub(current * window + previous * overlap) / window)
    }

    /// A bucket that drains one nanosecond a nanosecond, in nanoseconds.
    fn level(&self, now: u64) -> u128 {
        let interval = u128::from(self.rule.quota().interval());
        let (mut level, mut last) = (0_u128, 0_u64);
        for (time, cost) in &self.admitted {
            level = level.saturating_sub(u128::from(time - last)) + u128::from(*cost) * interval;
            last = *time;
        }
        level.saturating_sub(u128::from(now - last))
    }

    fn drained(&self, now: u64, capacity: u64) -> u64 {
        let interval = u128::from(self.rule.quota().interval());
        narrow((u128::from(capacity) * interval).saturating_sub(self.level(now)) / interval)
    }
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).expect("a model's numbers are small")
}

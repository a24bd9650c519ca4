//! Did any interval see more than it may? Answered in one pass over the log.

use tollgate_core::{Algorithm, Rule};

/// What was admitted: times in order, and units.
#[derive(Clone, Debug, Default)]
pub struct Admissions {
    log: Vec<(u64, u64)>,
}

/// An interval that saw more than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The interval's first instant.
    pub from: u64,
    /// The interval's last instant.
    pub to: u64,
    /// Units admitted in it, both ends included.
    pub admitted: u64,
    /// Units that its length allows.
    pub allowed: u64,
}

impl Admissions {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `units` at `time`. Times may come in any order.
    pub fn push(&mut self, time: u64, units: u64) {
        self.log.push((time, units));
    }

    /// All units.
    pub fn total(&self) -> u64 {
        self.log.iter().map(|(_, units)| units).sum()
    }

    /// The most units in any closed interval of `length`.
    pub fn busiest(&self, length: u64) -> u64 {
        let mut log = self.log.clone();
        log.sort_unstable();
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (time, units) in &log {
            sum += units;
            while log[first].0 + length < *time {
                sum -= log[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    /// The first interval that breaks the rule's bound, if any. `O(n log n)`, and `O(n)` when the times are in order.
    pub fn breach(&self, rule: &Rule) -> Option<Breach> {
        let mut log = self.log.clone();
        log.sort_unstable();
        let quota = rule.quota();
        match rule.algorithm() {
            Algorithm::FixedWindow | Algorithm::SlidingLog => {
                // A window that holds one instant less than a closed interval of its length.
                let last = quota.window() - 1;
                let capacity = if rule.algorithm() == Algorithm::SlidingLog { 1 } else { 2 };
                windowed(&log, last, capacity * quota.limit())
            }
            Algorithm::SlidingCounter => linear(&log, quota.limit(), quota.window(), quota.limit()),
            _ => linear(&log, 1, quota.interval(), rule.capacity()),
        }
    }
}

/// Any closed interval of `length` holds at most `most`.
fn windowed(log: &[(u64, u64)], length: u64, most: u64) -> Option<Breach> {
    let (mut first, mut sum) = (0, 0);
    for (time, units) in log {
        sum += units;
        while log[first].0 + length < *time {
            sum -= log[first].1;
            first += 1;
        }
        if sum > most {
            return Some(Breach { from: log[first].0, to: *time, admitted: sum, allowed: most });
        }
    }
    None
}

/// Any closed interval of t holds at most `capacity + limit * t / window`. With S the running sum this is
/// `S(j) * window - limit * t(j) <= capacity * window + (S(i - 1) * window - limit * t(i))` for all i <= j, so the least
/// right-hand side so far is all that has to be kept.
fn linear(log: &[(u64, u64)], limit: u64, window: u64, capacity: u64) -> Option<Breach> {
    let start = log.first()?.0;
    let (limit, window) = (i128::from(limit), i128::from(window));
    let mut sum = 0_i128;
    let mut least: Option<(i128, u64, i128)> = None;
    for (time, units) in log {
        let time_cost = limit * i128::from(time - start);
        let here = sum * window - time_cost;
        if least.is_none_or(|(value, ..)| here < value) {
            least = Some((here, *time, sum));
        }
        sum += i128::from(*units);
        let (value, from, before) = least?;
        if sum * window - time_cost > i128::from(capacity) * window + value {
            let span = i128::from(time - from);
            let allowed = i128::from(capacity) + limit * span / window;
            let number = |value: i128| u64::try_from(value).unwrap_or(u64::MAX);
            return Some(Breach {
                from,
                to: *time,
                admitted: number(sum - before),
                allowed: number(allowed),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Quota, SECOND};

    /// Every interval, compared with what the bound says: the slow truth.
    fn brute(log: &[(u64, u64)], rule: &Rule) -> bool {
        let breaks = |i: usize, j: usize| {
            let sum: u64 = log[i..=j].iter().map(|(_, units)| units).sum();
            sum > rule.bound().at(log[j].0 - log[i].0)
        };
        (0..log.len()).any(|i| (i..log.len()).any(|j| breaks(i, j)))
    }

    #[test]
    fn the_fast_check_finds_what_the_slow_one_finds() {
        let mut random = fastrand::Rng::with_seed(11);
        let (mut broken, mut kept) = (0, 0);
        for _ in 0..2_000 {
            let limit = random.u64(1..12);
            for algorithm in [Algorithm::Gcra, Algorithm::SlidingCounter] {
                let rule = Rule::new(Quota::new(limit, SECOND, limit, 0).unwrap(), algorithm).unwrap();
                let mut log: Vec<(u64, u64)> = (0..8)
                    .map(|_| (random.u64(0..4) * SECOND / 2 + random.u64(0..3), random.u64(1..3)))
                    .collect();
                log.sort_unstable();
                let mut admissions = Admissions::new();
                log.iter().for_each(|(time, units)| admissions.push(*time, *units));
                let breach = admissions.breach(&rule).is_some();
                assert_eq!(breach, brute(&log, &rule), "{rule:?} {log:?}");
                if breach { broken += 1 } else { kept += 1 }
            }
        }
        assert!(broken > 100 && kept > 100, "{broken} broken, {kept} kept");
    }
}

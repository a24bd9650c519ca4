//! The written promise of a rule.

use core::fmt;

use crate::{Algorithm, Rule, show_duration};

/// What any interval may see at most, for one key and one authority.
///
/// [`Bound::at`] is the number that the test kit tries to break, and the text form is the sentence that `explain` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    algorithm: Algorithm,
    limit: u64,
    window: u64,
    interval: u64,
    capacity: u64,
}

impl Bound {
    pub(crate) const fn of(rule: &Rule) -> Self {
        let quota = rule.quota();
        Bound {
            algorithm: rule.algorithm(),
            limit: quota.limit(),
            window: quota.window(),
            interval: quota.interval(),
            capacity: rule.capacity(),
        }
    }

    /// The most units admitted in any closed interval of `length` nanoseconds.
    ///
    /// * GCRA, token bucket, meter, queue: `B + floor(t / T)`, with T the interval (ITU-T I.371 Annex A: n conforming
    ///   cells span at least `(n - 1) T - tau`, here with `tau = (B - 1) T`);
    /// * fixed window: `L` for each window that the interval can touch, `1 + ceil(t / W)`;
    /// * sliding counter: `floor(L (1 + t / W))`;
    /// * sliding log: `L (1 + floor(t / W))`, for a closed interval holds one more instant than a window.
    pub fn at(&self, length: u64) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow => {
                self.limit.saturating_mul(div_up(length, self.window).saturating_add(1))
            }
            Algorithm::SlidingCounter => {
                let more = u128::from(self.limit).saturating_mul(u128::from(length));
                let more = more.checked_div(u128::from(self.window)).unwrap_or(0);
                self.limit.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
            }
            Algorithm::SlidingLog => {
                let more = length.checked_div(self.window).unwrap_or(0);
                self.limit.saturating_mul(more.saturating_add(1))
            }
            _ => self.capacity.saturating_add(length.checked_div(self.interval).unwrap_or(0)),
        }
    }
}

fn div_up(length: u64, by: u64) -> u64 {
    length.saturating_add(by.saturating_sub(1)).checked_div(by).unwrap_or(0)
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, window) = (self.limit, show_duration(self.window));
        match self.algorithm {
            Algorithm::FixedWindow => write!(
                f,
                "at most {limit} units in each calendar window of {window}, so up to {} around an edge",
                limit.saturating_mul(2)
            ),
            Algorithm::SlidingCounter => {
                write!(f, "in any interval of t at most {limit} x (1 + t/{window}) units are admitted")
            }
            Algorithm::SlidingLog => write!(f, "at most {limit} units in every window of {window}, exactly"),
            _ => write!(
                f,
                "in any interval of t at most {} + {limit} x t/{window} units are admitted",
                self.capacity
            ),
        }
    }
}

//! How many requests an origin is given at once, found by how long it takes: a pure function of what is seen.
//!
//! After the gradient of Netflix's concurrency-limits and Envoy's adaptive concurrency. Requests that began while at most half of the
//! limit was under way tell how long the origin takes without a crowd; those that began with more tell how long it takes with
//! one. While that is at most [`TOLERANCE`] as long, the limit grows by a tenth in each window of a tenth of a second; else it shrinks
//! in proportion, at most to half.
//!
//! What makes such limits fall to their floor, and what is done about it here:
//! * noise: with and without a crowd are medians that are learned alike, neither a minimum, so chance favours neither;
//! * light load: nobody begins in a crowd then, so nothing is said and nothing moves;
//! * lasting load, in which nobody begins without a crowd: from time to time the limit is halved for a few windows, not cut to its
//!   floor. If what is learned is too long, half of the limit that follows from it still shows less; so it comes right.

/// A window ends after so many nanoseconds with enough answers in it.
const WINDOW: u64 = 100_000_000;

/// After so long a window ends with fewer.
const LONG_WINDOW: u64 = 1_000_000_000;

/// Answers that a window needs, and that it needs at the least to say anything.
const ENOUGH: usize = 20;
const FEW: usize = 5;

/// Latencies that are kept of a window, of each kind.
const MOST: usize = 256;

/// How much longer than without a crowd is fine: half as long again. In 256ths.
pub const TOLERANCE: u64 = 384;

/// When for so long nobody began without a crowd, it is seen to that some do.
const STALE: u64 = 5_000_000_000;

/// For so many windows.
const MEASURING: u8 = 3;

/// Limits are kept in so many parts.
const PARTS: u64 = 1_024;

/// A limit that finds itself.
#[derive(Clone, Debug)]
pub struct Adaptive {
    least: u64,
    most: u64,
    /// In parts.
    limit: u64,
    /// The median latency without a crowd, in nanoseconds; 0 while it is not known.
    calm: u64,
    alone: Vec<u64>,
    crowded: Vec<u64>,
    began: u64,
    last_calm: u64,
    /// How many more windows it is measured for, since when, and the limit to go back to.
    measuring: u8,
    measured_from: u64,
    before: u64,
}

impl Adaptive {
    /// A limit from `least` to `most` that begins at `initial`, at the time `now` in nanoseconds.
    pub fn new(least: usize, initial: usize, most: usize, now: u64) -> Self {
        let least = wide(least).max(1);
        let most = wide(most).max(least);
        Adaptive {
            least,
            most,
            limit: wide(initial).clamp(least, most).saturating_mul(PARTS),
            calm: 0,
            alone: Vec::with_capacity(MOST),
            crowded: Vec::with_capacity(MOST),
            began: now,
            last_calm: now,
            measuring: 0,
            measured_from: now,
            before: 0,
        }
    }

    /// How many may be under way.
    pub fn limit(&self) -> usize {
        usize::try_from(self.limit / PARTS).unwrap_or(usize::MAX)
    }

    /// The median latency without a crowd, in nanoseconds; 0 while it is not known.
    pub const fn calm(&self) -> u64 {
        self.calm
    }

    /// An answer that took `latency` nanoseconds, to a request with which `crowd` were under way when it began.
    pub fn answered(&mut self, latency: u64, crowd: usize, now: u64) {
        let limit = if self.measuring > 0 { self.before } else { self.limit };
        let alone = crowd <= 1 || wide(crowd).saturating_mul(2).saturating_mul(PARTS) <= limit;
        // Of a limit of one nobody ever begins in a crowd.
        let full = !alone || limit < 2 * PARTS;
        for (kept, of_it) in [(&mut self.alone, alone), (&mut self.crowded, full)] {
            if of_it && kept.len() < MOST {
                kept.push(latency.max(1));
            }
        }
        let (passed, seen) = (now.saturating_sub(self.began), self.alone.len().max(self.crowded.len()));
        if (passed >= WINDOW && seen >= ENOUGH) || (passed >= LONG_WINDOW && seen >= FEW) {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: u64) {
        let (alone, crowded) = (median(&mut self.alone), median(&mut self.crowded));
        self.began = now;
        if let Some(alone) = alone {
            self.last_calm = now;
            let step = if self.measuring > 0 { 2 } else { 8 };
            self.calm = match self.calm {
                0 => alone,
                calm if alone < calm => calm.saturating_sub(calm.saturating_sub(alone).div_ceil(step)),
                calm => calm.saturating_add(alone.saturating_sub(calm) / step),
            };
        }
        if self.measuring > 0 {
            self.measuring = self.measuring.saturating_sub(1);
            if self.measuring == 0 || now.saturating_sub(self.measured_from) > STALE {
                self.measuring = 0;
                (self.limit, self.last_calm) = (self.before, now);
            }
        } else if now.saturating_sub(self.last_calm) > STALE {
            (self.before, self.measuring, self.measured_from) = (self.limit, MEASURING, now);
            self.limit = (self.limit / 2).max(PARTS);
        } else if let Some(crowded) = crowded {
            self.follow(crowded);
        }
    }

    /// Moves the limit to where the origin is as slow as is fine, and a little further.
    fn follow(&mut self, crowded: u64) {
        if self.calm == 0 {
            return;
        }
        let fine = u128::from(self.calm).saturating_mul(u128::from(TOLERANCE));
        let ratio = fine.checked_div(u128::from(crowded)).and_then(|ratio| u64::try_from(ratio).ok());
        let ratio = ratio.unwrap_or(256).clamp(128, 256);
        let more = (self.limit / 10).max(PARTS);
        let limit = (self.limit.saturating_mul(ratio) / 256).saturating_add(more);
        self.limit = limit.clamp(self.least.saturating_mul(PARTS), self.most.saturating_mul(PARTS));
    }
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX).min(u64::MAX >> 16)
}

/// The median of enough latencies, which are not needed any more.
fn median(latencies: &mut Vec<u64>) -> Option<u64> {
    let middle = latencies.len() / 2;
    let median = (latencies.len() >= FEW).then(|| *latencies.select_nth_unstable(middle).1);
    latencies.clear();
    median
}

//! When requests come. All times are nanoseconds, ascending, and the same for the same seed.

use tollgate_core::SECOND;

/// A Poisson process of `per_second` events a second on average, from `start` for `length`.
pub fn poisson(seed: u64, per_second: f64, start: u64, length: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = 0.0;
    let mut times = Vec::new();
    loop {
        at += -(1.0 - random.f64()).ln() / per_second * SECOND as f64;
        if at >= length as f64 {
            return times;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below `length`")]
        times.push(start + at as u64);
    }
}

/// Bursts of `size` at one instant, then a random pause of up to `pause`, `count` times.
pub fn bursts(seed: u64, size: u64, pause: u64, start: u64, count: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = start;
    let mut times = Vec::new();
    for _ in 0..count {
        times.extend((0..random.u64(1..=size)).map(|_| at));
        at += random.u64(0..=pause);
    }
    times
}

/// One every `every`, `count` times.
pub fn metronome(every: u64, start: u64, count: u64) -> Vec<u64> {
    (0..count).map(|index| start + index * every).collect()
}

/// `count` just before `edge` and `count` just after it, `epsilon` away on either side.
pub fn boundary(edge: u64, epsilon: u64, count: u64) -> Vec<u64> {
    let before = (0..count).map(|_| edge - epsilon);
    before.chain((0..count).map(|_| edge + epsilon)).collect()
}

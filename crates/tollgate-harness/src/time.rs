//! A clock that shows something else than the time: stepped, and running fast or slow.

/// True time, and what the limiter is shown of it. Nothing here waits.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    truth: u64,
    shown: i128,
    /// Parts per million by which the shown clock runs fast (negative: slow).
    drift: i64,
}

impl VirtualClock {
    /// A true clock at `now`.
    pub fn new(now: u64) -> Self {
        VirtualClock { truth: now, shown: i128::from(now) * 1_000_000, drift: 0 }
    }

    /// Runs fast by `drift` parts per million from here on.
    #[must_use]
    pub fn drifting(mut self, drift: i64) -> Self {
        self.drift = drift;
        self
    }

    /// Lets `nanos` of true time pass.
    pub fn advance(&mut self, nanos: u64) {
        self.truth += nanos;
        self.shown += i128::from(nanos) * i128::from(1_000_000 + self.drift);
    }

    /// Sets the shown clock back.
    pub fn step_back(&mut self, nanos: u64) {
        self.shown -= i128::from(nanos) * 1_000_000;
    }

    /// The true time.
    pub fn truth(&self) -> u64 {
        self.truth
    }

    /// What a limiter is shown.
    pub fn now(&self) -> u64 {
        u64::try_from(self.shown / 1_000_000).unwrap_or(0)
    }
}

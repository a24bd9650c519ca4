//! What a policy allows: a sustained rate and a burst, valid by construction.

use core::fmt;
use core::num::NonZeroU64;

use crate::SECOND;

/// The longest window: 366 days, in nanoseconds.
pub const MAX_WINDOW: u64 = 366 * 86_400 * SECOND;

/// The longest time that a full burst may take to refill, in nanoseconds (about 36 years). It keeps every sum of a time
/// and a span far below the end of a signed 64-bit integer, which is what SQL has.
pub const MAX_SPAN: u64 = 1 << 60;

/// A sustained rate: so many units per window. Not yet a [`Quota`], which has a burst too.
///
/// ```
/// use tollgate_core::Rate;
/// let quota = Rate::per_minute(100).burst(20)?;
/// assert_eq!((quota.limit(), quota.burst()), (100, 20));
/// # Ok::<(), tollgate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    limit: u64,
    window: u64,
}

impl Rate {
    /// `limit` units in every `window` nanoseconds.
    pub const fn new(limit: u64, window: u64) -> Self {
        Rate { limit, window }
    }

    /// `limit` units per second. (Never one per `limit` seconds.)
    pub const fn per_second(limit: u64) -> Self {
        Rate::new(limit, SECOND)
    }

    /// `limit` units per minute.
    pub const fn per_minute(limit: u64) -> Self {
        Rate::new(limit, 60 * SECOND)
    }

    /// `limit` units per hour.
    pub const fn per_hour(limit: u64) -> Self {
        Rate::new(limit, 3_600 * SECOND)
    }

    /// `limit` units per day of 24 hours.
    pub const fn per_day(limit: u64) -> Self {
        Rate::new(limit, 86_400 * SECOND)
    }

    /// The quota with this rate and the default burst, which is the limit.
    ///
    /// # Errors
    /// [`QuotaError`], when the rate cannot be represented.
    pub const fn quota(self) -> Result<Quota, QuotaError> {
        Quota::new(self.limit, self.window, self.limit, 0)
    }

    /// The quota with this rate that admits `burst` units at once from cold.
    ///
    /// # Errors
    /// [`QuotaError`], when the rate or the burst cannot be represented.
    pub const fn burst(self, burst: u64) -> Result<Quota, QuotaError> {
        Quota::new(self.limit, self.window, burst, 0)
    }
}

/// A sustained rate **and** a burst. One that exists is valid.
///
/// The interval between two units of the sustained rate is `window / limit`, rounded **up** to a nanosecond once, here,
/// so that the enforced rate is never above the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window: NonZeroU64,
    burst: u64,
    queue: u64,
    interval: NonZeroU64,
}

impl Quota {
    /// A quota of `limit` units per `window` nanoseconds with `burst` units at once, and `queue` more that may wait
    /// (used by the leaky queue only).
    ///
    /// # Errors
    /// [`QuotaError`] for a zero limit, window or burst, a window above [`MAX_WINDOW`], more than one unit per
    /// nanosecond, a rate that rounding would lower by more than 1 %, or a burst that takes longer than [`MAX_SPAN`].
    pub const fn new(limit: u64, window: u64, burst: u64, queue: u64) -> Result<Self, QuotaError> {
        let (Some(window), Some(_)) = (NonZeroU64::new(window), NonZeroU64::new(limit)) else {
            return Err(if limit == 0 { QuotaError::ZeroLimit } else { QuotaError::ZeroWindow });
        };
        if burst == 0 {
            return Err(QuotaError::ZeroBurst);
        }
        if window.get() > MAX_WINDOW {
            return Err(QuotaError::WindowTooLong);
        }
        if limit > window.get() {
            return Err(QuotaError::TooFast);
        }
        let Some(interval) = NonZeroU64::new(window.get().div_ceil(limit)) else {
            return Err(QuotaError::TooFast);
        };
        // interval * limit is below window + limit, so both products fit 128 bits with room to spare.
        let rounded = (interval.get() as u128).saturating_mul(limit as u128);
        let off = rounded.saturating_sub(window.get() as u128);
        if off.saturating_mul(100) > window.get() as u128 {
            return Err(QuotaError::Coarse);
        }
        let units = (burst as u128).saturating_add(queue as u128);
        if units.saturating_mul(interval.get() as u128) > MAX_SPAN as u128 {
            return Err(QuotaError::SpanTooLong);
        }
        Ok(Quota { limit, window, burst, queue, interval })
    }

    /// `limit` units per second, burst to be chosen: see [`Rate`].
    pub const fn per_second(limit: u64) -> Rate {
        Rate::per_second(limit)
    }

    /// `limit` units per minute, burst to be chosen: see [`Rate`].
    pub const fn per_minute(limit: u64) -> Rate {
        Rate::per_minute(limit)
    }

    /// `limit` units per hour, burst to be chosen: see [`Rate`].
    pub const fn per_hour(limit: u64) -> Rate {
        Rate::per_hour(limit)
    }

    /// `limit` units per day, burst to be chosen: see [`Rate`].
    pub const fn per_day(limit: u64) -> Rate {
        Rate::per_day(limit)
    }

    /// Units per window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window, in nanoseconds.
    pub const fn window(&self) -> u64 {
        self.window.get()
    }

    pub(crate) const fn window_nz(&self) -> NonZeroU64 {
        self.window
    }

    /// Units admitted at once from cold.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Units that may wait beyond the burst (leaky queue).
    pub const fn queue(&self) -> u64 {
        self.queue
    }

    /// Nanoseconds between two units of the sustained rate, rounded up, never 0.
    pub const fn interval(&self) -> u64 {
        self.interval.get()
    }

    pub(crate) const fn interval_nz(&self) -> NonZeroU64 {
        self.interval
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} burst {}", self.limit, crate::show_duration(self.window()), self.burst)?;
        if self.queue > 0 {
            write!(f, " queue {}", self.queue)?;
        }
        Ok(())
    }
}

/// Why a quota cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// The limit is 0.
    ZeroLimit,
    /// The window is 0.
    ZeroWindow,
    /// The burst is 0.
    ZeroBurst,
    /// The window is above [`MAX_WINDOW`].
    WindowTooLong,
    /// More than one unit per nanosecond.
    TooFast,
    /// Rounding the interval up to a nanosecond would lower the rate by more than 1 %.
    Coarse,
    /// The burst would take longer than [`MAX_SPAN`] to refill.
    SpanTooLong,
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuotaError::ZeroLimit => "the limit is 0; to refuse everything use a deny list, else at least 1",
            QuotaError::ZeroWindow => "the window is 0; write a duration such as 1s, 1m or 1h",
            QuotaError::ZeroBurst => "the burst is 0, which would admit nothing; at least 1",
            QuotaError::WindowTooLong => "the window is longer than 366d",
            QuotaError::TooFast => "more than one unit per nanosecond cannot be counted; lower the limit",
            QuotaError::Coarse => {
                "at this rate the interval rounds up to a whole nanosecond by more than 1 %; lower the limit"
            }
            QuotaError::SpanTooLong => "the burst takes more than 36 years to refill; lower the burst",
        })
    }
}

impl core::error::Error for QuotaError {}

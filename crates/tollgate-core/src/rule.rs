//! A quota under an algorithm, compiled to what a decision needs.

use core::fmt;
use core::str::FromStr;

use crate::counter::Counter;
use crate::line::{Anchor, Line};
use crate::log::Log;
use crate::{Bound, Quota};

/// The largest limit of a sliding window log, which keeps one timestamp a unit.
pub const MAX_LOG_LIMIT: u64 = 4_096;

/// How a quota is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Generic cell rate algorithm: one timestamp a key, exact bound, no window edge.
    Gcra,
    /// Token bucket: the same decisions as GCRA, under the name that many know.
    TokenBucket,
    /// Leaky bucket as a meter: one unit per interval, and no burst.
    LeakyMeter,
    /// Leaky bucket as a queue: what exceeds the burst is admitted with a wait, up to `queue` units.
    LeakyQueue,
    /// Fixed window aligned to the calendar (UTC): up to twice the limit around an edge.
    FixedWindow,
    /// Sliding window counter: two counts, the earlier one weighted by its overlap.
    SlidingCounter,
    /// Sliding window log: one timestamp a unit, exact, memory in proportion to the limit.
    SlidingLog,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyMeter,
        Algorithm::LeakyQueue,
        Algorithm::FixedWindow,
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
    ];

    /// The name used in configuration: `gcra`, `token-bucket` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Gcra => "gcra",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::LeakyMeter => "leaky-meter",
            Algorithm::LeakyQueue => "leaky-queue",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingCounter => "sliding-counter",
            Algorithm::SlidingLog => "sliding-log",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = RuleError;

    fn from_str(name: &str) -> Result<Self, RuleError> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or(RuleError::UnknownAlgorithm)
    }
}

/// What the state of a key looks like. The first word of each is the time at which it may be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One word: a point in time that charges push ahead.
    Cell,
    /// Three words: the end of the next window, and the counts of the previous and the current one.
    Counter,
    /// The newest time plus the window, the ring's place, and one timestamp a unit.
    Log,
}

/// A [`Quota`] under an [`Algorithm`]. One that exists is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    quota: Quota,
    algorithm: Algorithm,
    jitter: bool,
    stated: bool,
}

impl Rule {
    /// Joins the two.
    ///
    /// # Errors
    /// [`RuleError`] when the quota says something that the algorithm does not have: a burst other than the limit for
    /// the windows and the counter, a burst for the leaky meter (other than 1 or, the default, the limit), a queue
    /// for anything but the leaky queue, or a limit above [`MAX_LOG_LIMIT`] for the sliding log.
    pub const fn new(quota: Quota, algorithm: Algorithm) -> Result<Self, RuleError> {
        let whole = quota.burst() == quota.limit();
        match algorithm {
            Algorithm::LeakyMeter if !(whole || quota.burst() == 1) => return Err(RuleError::MeterBurst),
            Algorithm::FixedWindow | Algorithm::SlidingCounter | Algorithm::SlidingLog if !whole => {
                return Err(RuleError::WindowBurst);
            }
            Algorithm::FixedWindow if quota.limit() >= quota.window() => {
                return Err(RuleError::WindowTooShort);
            }
            Algorithm::SlidingLog if quota.limit() > MAX_LOG_LIMIT => return Err(RuleError::LogTooLong),
            _ => {}
        }
        if quota.queue() > 0 && !matches!(algorithm, Algorithm::LeakyQueue) {
            return Err(RuleError::NoQueue);
        }
        Ok(Rule { quota, algorithm, jitter: false, stated: false })
    }

    /// GCRA takes any quota, and makes no use of a queue.
    pub const fn gcra(quota: Quota) -> Self {
        Rule { quota, algorithm: Algorithm::Gcra, jitter: false, stated: false }
    }

    /// Moves the window edges of each key by a constant of its own, so that keys do not all return at one flip. It
    /// changes nothing for algorithms without edges.
    #[must_use]
    pub const fn with_jittered_edges(mut self, jitter: bool) -> Self {
        self.jitter = jitter;
        self
    }

    /// One that whoever asks has stated. Under another stated rule a state stays the time that it is, in its whole length, instead
    /// of being carried over: somebody who states two quotas in turn for one key gains nothing by it.
    #[must_use]
    pub const fn stated(mut self) -> Self {
        self.stated = true;
        self
    }

    /// Whether whoever asks has stated it.
    pub const fn is_stated(&self) -> bool {
        self.stated
    }

    /// The quota.
    pub const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether window edges differ from key to key.
    pub const fn jittered_edges(&self) -> bool {
        self.jitter
    }

    /// The shape of a key's state.
    pub const fn shape(&self) -> Shape {
        match self.algorithm {
            Algorithm::SlidingCounter => Shape::Counter,
            Algorithm::SlidingLog => Shape::Log,
            _ => Shape::Cell,
        }
    }

    /// How many [`Words`](crate::Words) the state of a key takes.
    pub const fn words(&self) -> usize {
        match self.shape() {
            Shape::Cell => 1,
            Shape::Counter => Counter::WORDS,
            Shape::Log => Log::words(self.quota.limit()),
        }
    }

    /// The most units that are admitted at once from cold: the published limit of a standing.
    pub const fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyMeter => 1,
            Algorithm::LeakyQueue => self.quota.burst().saturating_add(self.quota.queue()),
            _ => self.quota.burst(),
        }
    }

    /// The longest time, in nanoseconds, that a state keeps information: a key that rests for so long is new again.
    pub const fn memory(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingLog => self.quota.window(),
            Algorithm::SlidingCounter => self.quota.window().saturating_mul(2),
            _ => self.capacity().saturating_mul(self.quota.interval()),
        }
    }

    /// What one unit moves a cell by, how far ahead it may be, and the window that it is measured from the end of (0: it is
    /// measured from the present), in nanoseconds: the one inequality for stores that decide elsewhere.
    pub const fn terms(&self) -> (u64, u64, u64) {
        match self.algorithm {
            Algorithm::FixedWindow => (1, self.quota.limit(), self.quota.window()),
            _ => (self.quota.interval(), self.memory(), 0),
        }
    }

    /// Writes the state of a log that holds these times of units, oldest first, at most as many as there is room for.
    pub fn log_of<W: crate::Words + ?Sized>(&self, times: &[u64], state: &mut W) {
        crate::log::fill(state, self.quota.window(), times);
    }

    /// The times of the units in the state of a log, oldest first: what [`Rule::log_of`] writes.
    pub fn log_times<'s, W: crate::Words + ?Sized>(&self, state: &'s W) -> impl Iterator<Item = u64> + 's {
        let log = crate::log::Log::load(u64::MAX, self.quota.window(), state, 0);
        (0..log.length()).map(move |index| log.time(index))
    }

    /// An n-th of this rule, so that n of it come to no more than the whole: the same windows with an n-th of the limit, or
    /// the same burst and limit divided, each unit taking n times as long. `None` when that is less than one unit.
    pub fn share(&self, n: u64) -> Option<Rule> {
        let quota = &self.quota;
        let part = |units: u64| units.checked_div(n).filter(|part| *part > 0);
        let shared = match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingCounter | Algorithm::SlidingLog => {
                let limit = part(quota.limit())?;
                crate::Quota::new(limit, quota.window(), limit, 0)
            }
            _ => {
                let (burst, queue) = (part(quota.burst())?, quota.queue().checked_div(n)?);
                let window = quota.window().checked_mul(n);
                match window.filter(|window| *window <= crate::MAX_WINDOW) {
                    Some(window) => crate::Quota::new(quota.limit(), window, burst, queue),
                    None => crate::Quota::new(part(quota.limit())?, quota.window(), burst, queue),
                }
            }
        };
        let rule = Rule::new(shared.ok()?, self.algorithm).ok()?;
        Some(rule.with_jittered_edges(self.jitter))
    }

    /// A rule that admits n times as much: the same windows, n times the units. `None` beyond what can be counted.
    pub fn times(&self, n: u64) -> Option<Rule> {
        let quota = &self.quota;
        let many = |units: u64| units.checked_mul(n);
        let (limit, burst) = (many(quota.limit())?, many(quota.burst())?);
        let burst = if self.algorithm == Algorithm::LeakyMeter { quota.burst() } else { burst };
        let wider = crate::Quota::new(limit, quota.window(), burst, many(quota.queue())?).ok()?;
        Some(Rule::new(wider, self.algorithm).ok()?.with_jittered_edges(self.jitter))
    }

    /// Whether this rule is no looser than `other`: no faster, and with no more at once.
    pub fn is_within(&self, other: &Rule) -> bool {
        let (mine, most) = (self.quota(), other.quota());
        let rate = u128::from(mine.limit()).saturating_mul(most.window().into());
        let most_rate = u128::from(most.limit()).saturating_mul(mine.window().into());
        rate <= most_rate && self.capacity() <= other.capacity()
    }

    /// The promise: how much any interval may see.
    pub const fn bound(&self) -> Bound {
        Bound::of(self)
    }

    /// The parameters of the one inequality, for the algorithms that are a [`Shape::Cell`].
    pub(crate) const fn line(&self, phase: u64) -> Line {
        let interval = self.quota.interval_nz();
        match self.algorithm {
            Algorithm::FixedWindow => Line {
                anchor: Anchor::WindowEnd { window: self.quota.window_nz(), phase },
                interval: core::num::NonZeroU64::MIN,
                capacity: self.quota.limit(),
                unhurried: u64::MAX,
            },
            Algorithm::LeakyQueue => Line {
                anchor: Anchor::Now,
                interval,
                capacity: self.memory(),
                unhurried: self.quota.burst().saturating_mul(interval.get()),
            },
            _ => Line { anchor: Anchor::Now, interval, capacity: self.memory(), unhurried: u64::MAX },
        }
    }
}

impl fmt::Display for Rule {
    /// The algorithm's name, the quota, `jittered` when its edges are, and `stated`: what [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (jittered, stated) =
            (if self.jitter { " jittered" } else { "" }, if self.stated { " stated" } else { "" });
        write!(f, "{} {}{jittered}{stated}", self.algorithm, self.quota)
    }
}

impl FromStr for Rule {
    type Err = crate::TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (algorithm, quota) = text.split_once(' ').ok_or(crate::TextError::NoWindow)?;
        let (quota, stated) = quota.strip_suffix(" stated").map_or((quota, false), |quota| (quota, true));
        let (quota, jitter) = quota.strip_suffix(" jittered").map_or((quota, false), |quota| (quota, true));
        let algorithm = algorithm.parse().map_err(|_| crate::TextError::Word)?;
        let rule = Rule::new(quota.parse()?, algorithm).map_err(|_| crate::TextError::Word)?;
        let rule = rule.with_jittered_edges(jitter);
        Ok(if stated { rule.stated() } else { rule })
    }
}

/// Why a quota and an algorithm do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// No algorithm has this name.
    UnknownAlgorithm,
    /// The leaky meter has no burst.
    MeterBurst,
    /// Windows, the counter and the log have no burst apart from their limit.
    WindowBurst,
    /// A fixed window must have more nanoseconds than units.
    WindowTooShort,
    /// The log's limit is above [`MAX_LOG_LIMIT`].
    LogTooLong,
    /// Only the leaky queue has a queue.
    NoQueue,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleError::UnknownAlgorithm => {
                "expected gcra, token-bucket, leaky-meter, leaky-queue, fixed-window, sliding-counter or sliding-log"
            }
            RuleError::MeterBurst => "leaky-meter has no burst; leave it out, or use gcra",
            RuleError::WindowBurst => {
                "windows admit their limit at once and have no other burst; leave it out, or use gcra"
            }
            RuleError::WindowTooShort => "a fixed window must be longer than its limit in nanoseconds",
            RuleError::LogTooLong => {
                "sliding-log keeps one timestamp a unit, so its limit is at most 4096; use gcra or sliding-counter"
            }
            RuleError::NoQueue => "only leaky-queue has a queue; leave it out, or use leaky-queue",
        })
    }
}

impl core::error::Error for RuleError {}

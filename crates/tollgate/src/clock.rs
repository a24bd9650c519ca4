//! The one file that reads the clock.

#![allow(clippy::disallowed_methods, reason = "this is the file that may")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch, never going back.
///
/// The system's clock is the monotonic one, anchored to the wall clock once, when the `Clock` is made: a wall clock that is
/// set while the process runs steps neither way here. A manual clock shows what it is told, for tests and replays.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { wall: u64, start: Instant },
    Manual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl Clock {
    /// The system's clock, anchored now.
    pub fn system() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock(Source::System { wall: nanos(wall), start: Instant::now() })
    }

    /// The system's clock, but not before `mark`, the latest time that was kept in a file: so a wall clock that was set back
    /// while the process was down mints nothing. A mark that is further ahead than [`Clock::MAX_AHEAD`] is some clock's
    /// error and is not followed. Gives how far ahead of the wall clock the mark is.
    pub fn system_after(mark: u64) -> (Self, Duration) {
        let Source::System { wall, start } = Clock::system().0 else {
            return (Clock::system(), Duration::ZERO);
        };
        let ahead = Duration::from_nanos(mark.saturating_sub(wall));
        let wall = if ahead <= Clock::MAX_AHEAD { wall.max(mark) } else { wall };
        (Clock(Source::System { wall, start }), ahead)
    }

    /// How far ahead of the wall clock a kept mark may be: one hour.
    pub const MAX_AHEAD: Duration = Duration::from_secs(3_600);

    /// A clock that shows `now` until it is told otherwise.
    pub fn manual(now: u64) -> Self {
        Clock(Source::Manual(Arc::new(AtomicU64::new(now))))
    }

    /// The time.
    pub fn now(&self) -> u64 {
        match &self.0 {
            Source::System { wall, start } => wall.saturating_add(nanos(start.elapsed())),
            Source::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Sets a manual clock, to any time; a system clock stays as it is.
    pub fn set(&self, now: u64) {
        if let Source::Manual(shown) = &self.0 {
            shown.store(now, Ordering::Relaxed);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

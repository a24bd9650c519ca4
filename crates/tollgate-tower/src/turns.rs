//! Requests that wait for their turn: one line for each key, which leaves in order and at its metronome's pace.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{Fingerprint, Turn};

/// Requests that may wait at once, over all keys, unless somebody says otherwise.
pub const MAX_WAITING: usize = 10_000;

/// The lines. Of one key the first to come leaves first; when one goes away, those behind it move up.
#[derive(Debug)]
pub struct Turns {
    lines: Mutex<HashMap<Fingerprint, VecDeque<Place>>>,
    waiting: AtomicUsize,
    numbers: AtomicUsize,
    most: usize,
}

#[derive(Debug)]
struct Place {
    number: usize,
    at: Instant,
    length: Duration,
    moved: Arc<Notify>,
}

/// As many wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Turns {
    /// No line yet; at most so many requests wait at once, which bounds the memory.
    pub fn new(most: usize) -> Arc<Self> {
        let (waiting, numbers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Turns { lines: Mutex::default(), waiting, numbers, most })
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Joins the line of a key.
    ///
    /// # Errors
    /// [`Full`] when as many wait as may.
    pub fn join(self: &Arc<Self>, turn: &Turn) -> Result<Waiting, Full> {
        let room = |waiting: usize| (waiting < self.most).then(|| waiting.saturating_add(1));
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).map_err(|_| Full)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (at, length) =
            (sleep(Duration::from_nanos(turn.wait)).deadline(), Duration::from_nanos(turn.length));
        let moved = Arc::new(Notify::new());
        let mut lines = self.lock();
        let line = lines.entry(turn.key).or_default();
        // Two that were decided one after the other may come here in another order.
        let behind = line.iter().rev().take_while(|place| place.at > at).count();
        let head = line.len() == behind;
        line.insert(
            line.len().saturating_sub(behind),
            Place { number, at, length, moved: Arc::clone(&moved) },
        );
        if head && let Some(next) = line.get(1) {
            next.moved.notify_one();
        }
        drop(lines);
        Ok(Waiting { turns: Arc::clone(self), key: turn.key, number, moved, left: false })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, VecDeque<Place>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the place at the head of its line has its turn; `None` for any other.
    fn turn_of(&self, key: Fingerprint, number: usize) -> Option<Instant> {
        let lines = self.lock();
        lines.get(&key)?.front().filter(|place| place.number == number).map(|place| place.at)
    }

    /// Takes a place out of its line. When it goes away before its turn, those behind it move up by its length.
    fn leave(&self, key: Fingerprint, number: usize, early: bool) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&key) else { return };
        let Some(index) = line.iter().position(|place| place.number == number) else { return };
        let gone = line.remove(index);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(gone) = gone.filter(|_| early) {
            for place in line.range_mut(index..) {
                place.at = place.at.checked_sub(gone.length).unwrap_or(place.at);
            }
        }
        match line.front() {
            None => drop(lines.remove(&key)),
            Some(next) if index == 0 => next.moved.notify_one(),
            Some(_) => {}
        }
    }
}

/// A place in a line. Dropped before its turn, it is given up, and those behind it move up.
#[derive(Debug)]
pub struct Waiting {
    turns: Arc<Turns>,
    key: Fingerprint,
    number: usize,
    moved: Arc<Notify>,
    left: bool,
}

impl Waiting {
    /// Returns when it has its turn, and all before it have had theirs.
    pub async fn turn(mut self) {
        loop {
            match self.turns.turn_of(self.key, self.number) {
                None => self.moved.notified().await,
                Some(at) => tokio::select! {
                    () = sleep_until(at) => break,
                    () = self.moved.notified() => {}
                },
            }
        }
        self.left = true;
        self.turns.leave(self.key, self.number, false);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.left {
            self.turns.leave(self.key, self.number, true);
        }
    }
}

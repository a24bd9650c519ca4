//! A bucket: a lock word, a state that keys may share, and seven slots, in whole cache lines.
//!
//! ```text
//! | lock | shared state | tag state | tag state | ... seven times |
//! ```
//!
//! The lock word is a sequence: odd while somebody writes, and different after every write. So whoever only reads takes
//! no lock: it reads, and reads again when the word has changed.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use tollgate_core::Words;

pub(crate) const SLOTS: usize = 7;

/// The mark in a lock word of a bucket whose states have moved to another table. It is odd, so readers see a writer.
const MOVED: u64 = u64::MAX;

/// A bucket's states are in another table now, which belongs to other policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved;

/// Words in a cache line.
pub(crate) const LINE: usize = 8;

/// A view of one bucket's words.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'t> {
    words: &'t [AtomicU64],
    state: usize,
}

/// The words of one state. Only a holder of the bucket's lock may set them.
#[derive(Clone, Copy)]
pub(crate) struct State<'t>(&'t [AtomicU64]);

impl Words for State<'_> {
    fn get(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn set(&mut self, index: usize, word: u64) {
        if let Some(slot) = self.0.get(index) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl State<'_> {
    /// The time at which it may be forgotten.
    pub(crate) fn ends(&self) -> u64 {
        self.get(0)
    }

    pub(crate) fn copy_from(&mut self, other: &(impl Words + ?Sized)) {
        for index in 0..self.len() {
            self.set(index, other.get(index));
        }
    }
}

impl<'t> Bucket<'t> {
    /// Words that a bucket takes for states of `state` words: whole cache lines of eight.
    pub(crate) fn stride(state: usize) -> usize {
        (1 + state + SLOTS * (1 + state)).next_multiple_of(LINE)
    }

    pub(crate) fn new(words: &'t [AtomicU64], state: usize) -> Self {
        Bucket { words, state }
    }

    /// Whether both views are of one bucket.
    pub(crate) fn is(&self, other: Bucket<'_>) -> bool {
        std::ptr::eq(self.words, other.words)
    }

    fn slot(&self, slot: usize) -> usize {
        1 + self.state + slot * (1 + self.state)
    }

    pub(crate) fn tag(&self, slot: usize) -> u64 {
        self.words[self.slot(slot)].load(Ordering::Relaxed)
    }

    pub(crate) fn set_tag(&self, slot: usize, tag: u64) {
        self.words[self.slot(slot)].store(tag, Ordering::Relaxed);
    }

    pub(crate) fn state(&self, slot: usize) -> State<'t> {
        let at = self.slot(slot) + 1;
        State(&self.words[at..at + self.state])
    }

    pub(crate) fn shared(&self) -> State<'t> {
        State(&self.words[1..=self.state])
    }

    pub(crate) fn find(&self, tag: u64) -> Option<usize> {
        (0..SLOTS).find(|slot| self.tag(*slot) == tag)
    }

    /// Waits for the lock. Critical sections are a few dozen instructions, so it spins before it yields.
    pub(crate) fn lock(&self) -> Result<Locked<'t>, Moved> {
        let word = &self.words[0];
        let mut tries = 0_u32;
        loop {
            let sequence = word.load(Ordering::Relaxed);
            if sequence == MOVED {
                return Err(Moved);
            }
            if sequence & 1 == 0
                && word
                    .compare_exchange_weak(sequence, sequence + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // Readers that see what is written from here on must also see the odd sequence.
                fence(Ordering::Release);
                return Ok(Locked { word, next: sequence.wrapping_add(2) });
            }
            tries += 1;
            if tries < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Runs `read` without the lock; `None` when a writer was about, so that what was read means nothing.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let word = &self.words[0];
        let sequence = word.load(Ordering::Acquire);
        if sequence & 1 == 1 {
            return None;
        }
        let value = read();
        fence(Ordering::Acquire);
        (word.load(Ordering::Relaxed) == sequence).then_some(value)
    }
}

/// A held lock; dropping it gives it back.
pub(crate) struct Locked<'t> {
    word: &'t AtomicU64,
    next: u64,
}

impl Locked<'_> {
    /// Marks the bucket as moved when the lock is given back.
    pub(crate) fn mark_moved(&mut self) {
        self.next = MOVED;
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(self.next, Ordering::Release);
    }
}

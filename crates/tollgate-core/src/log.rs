//! The sliding window log: one timestamp a unit, in a ring.
//!
//! Stored as: the newest time plus the window; the ring's first place (low half) and length (high half); the ring.

use crate::Words;
use crate::line::Refused;

const HEAD: usize = 2;

/// The state as of a time. Times in the ring never fall: a charge with the clock behind the newest counts as newest.
pub(crate) struct Log<'a, W: Words + ?Sized> {
    limit: u64,
    window: u64,
    state: &'a W,
    /// The time that is decided at.
    at: u64,
    first: usize,
    /// How many of the ring's entries are no longer in the window, and how many there are.
    spent: usize,
    length: usize,
}

impl Log<'_, [u64; 0]> {
    /// Words for a limit.
    pub(crate) const fn words(limit: u64) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "at most MAX_LOG_LIMIT, or a rule cannot be built"
        )]
        HEAD.saturating_add(limit as usize)
    }
}

impl<'a, W: Words + ?Sized> Log<'a, W> {
    pub(crate) fn load(limit: u64, window: u64, state: &'a W, now: u64) -> Self {
        let newest = state.get(0).saturating_sub(window);
        let place = state.get(1);
        let ring = state.len().saturating_sub(HEAD);
        let first = usize::try_from(place & 0xFFFF_FFFF).unwrap_or(0);
        let length = usize::try_from(place >> 32).unwrap_or(0).min(ring);
        let mut log = Log { limit, window, state, at: now.max(newest), first, spent: 0, length };
        log.spent = log.count_spent();
        log
    }

    /// The `index`-th oldest time.
    pub(crate) fn time(&self, index: usize) -> u64 {
        self.state.get(place(self.first.saturating_add(index), self.state.len()))
    }

    /// How many entries the ring has, in the window or not.
    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// Times still in the window, oldest first.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> + '_ {
        (self.spent..self.length).map(|index| self.time(index))
    }

    fn count_spent(&self) -> usize {
        let (mut low, mut high) = (0, self.length);
        while low < high {
            let middle = low.midpoint(high);
            if self.time(middle).saturating_add(self.window) <= self.at {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low
    }

    fn used(&self) -> u64 {
        u64::try_from(self.length.saturating_sub(self.spent)).unwrap_or(u64::MAX)
    }

    /// How many charges of `cost` fit that leave `spare` units over, up to `most`.
    pub(crate) fn fit(&self, (cost, spare): (u64, u64), most: u64) -> u64 {
        let Some(room) = self.limit.saturating_sub(self.used()).checked_sub(spare) else { return 0 };
        room.checked_div(cost).unwrap_or(most).min(most)
    }

    pub(crate) fn judge(&self, cost: u64) -> Result<(), Refused> {
        if cost > self.limit {
            return Err(Refused::Never);
        }
        let over = self.used().saturating_add(cost).saturating_sub(self.limit);
        let Some(last) = over.checked_sub(1).and_then(|last| usize::try_from(last).ok()) else {
            return Ok(());
        };
        Err(Refused::Until(self.time(self.spent.saturating_add(last)).saturating_add(self.window)))
    }

    /// The first word and the place once `cost` units are in; with [`Log::write`] it is what a charge does.
    pub(crate) fn entry(&self, cost: u64) -> Entry {
        let cost = usize::try_from(cost).unwrap_or(usize::MAX);
        let words = self.state.len();
        let first = place(self.first.saturating_add(self.spent), words).saturating_sub(HEAD);
        let live = self.length.saturating_sub(self.spent);
        Entry { at: self.at, window: self.window, first, live, cost }
    }

    /// The same for units that are owed: the oldest make room. With as many as the limit in the window the rest changes
    /// nothing until they have left it.
    pub(crate) fn owing(&self, cost: u64) -> Entry {
        let ring = self.state.len().saturating_sub(HEAD);
        let entry = self.entry(cost);
        let cost = entry.cost.min(ring);
        let gone = entry.live.saturating_add(cost).saturating_sub(ring);
        let first = place(entry.first.saturating_add(gone), self.state.len()).saturating_sub(HEAD);
        Entry { first, live: entry.live.saturating_sub(gone), cost, ..entry }
    }

    /// Units left, and nanoseconds after `now` until all are back.
    pub(crate) fn standing(&self, now: u64) -> (u64, u64) {
        let reset = if self.used() == 0 { 0 } else { self.state.get(0).saturating_sub(now) };
        (self.limit.saturating_sub(self.used()), reset)
    }
}

/// What a charge writes.
pub(crate) struct Entry {
    at: u64,
    window: u64,
    first: usize,
    live: usize,
    cost: usize,
}

impl Entry {
    pub(crate) fn write(&self, state: &mut (impl Words + ?Sized)) {
        let words = state.len();
        let length = self.live.saturating_add(self.cost).min(words.saturating_sub(HEAD));
        for index in self.live..length {
            state.set(place(self.first.saturating_add(index), words), self.at);
        }
        state.set(0, self.at.saturating_add(self.window));
        set_place(state, self.first, length);
    }
}

/// Takes out up to `cost` units of those that were charged at `charged`.
pub(crate) fn refund(state: &mut (impl Words + ?Sized), window: u64, cost: u64, charged: u64, now: u64) {
    let log = Log::load(u64::MAX, window, state, now);
    let (first, length) = (log.first, log.length);
    let from = (log.spent..length).find(|index| log.time(*index) == charged).unwrap_or(length);
    let same = (from..length).take_while(|index| log.time(*index) == charged).count();
    let gone = usize::try_from(cost).unwrap_or(usize::MAX).min(same);
    let words = state.len();
    for index in from..length.saturating_sub(gone) {
        let later = state.get(place(first.saturating_add(index).saturating_add(gone), words));
        state.set(place(first.saturating_add(index), words), later);
    }
    keep(state, window, first, length.saturating_sub(gone));
}

/// Keeps the oldest `left` units.
fn keep(state: &mut (impl Words + ?Sized), window: u64, first: usize, left: usize) {
    let words = state.len();
    let newest = left.checked_sub(1).map(|last| state.get(place(first.saturating_add(last), words)));
    state.set(0, newest.map_or(0, |time| time.saturating_add(window)));
    set_place(state, first, left);
}

/// Takes out the newest `cost` units.
pub(crate) fn refund_newest(state: &mut (impl Words + ?Sized), window: u64, cost: u64, now: u64) {
    let log = Log::load(u64::MAX, window, state, now);
    let (first, length) = (log.first, log.length);
    let live = length.saturating_sub(log.spent);
    let gone = usize::try_from(cost).unwrap_or(usize::MAX).min(live);
    keep(state, window, first, length.saturating_sub(gone));
}

fn place(index: usize, words: usize) -> usize {
    index.checked_rem(words.saturating_sub(HEAD)).unwrap_or(0).saturating_add(HEAD)
}

fn set_place(state: &mut (impl Words + ?Sized), first: usize, length: usize) {
    let (first, length) = (u64::try_from(first).unwrap_or(0), u64::try_from(length).unwrap_or(0));
    state.set(1, first | (length << 32));
}

/// The state that holds these times, oldest first.
pub(crate) fn fill(state: &mut (impl Words + ?Sized), window: u64, times: &[u64]) {
    let room = state.len().saturating_sub(HEAD);
    let newest = times.get(times.len().saturating_sub(room)..).unwrap_or(&[]);
    for (index, time) in newest.iter().enumerate() {
        state.set(HEAD.saturating_add(index), *time);
    }
    state.set(0, newest.last().map_or(0, |time| time.saturating_add(window)));
    set_place(state, 0, newest.len());
}

//! The in-process table of one policy: fixed memory, one cache miss per decision.
//!
//! Keys hash to a main bucket of seven slots; what finds no place there goes to one of a quarter as many overflow
//! buckets. Built for `n` keys, the main buckets are 80 % full at `n`, one key in a dozen lives in the overflow, and
//! about one in ten thousand meets two full buckets. A slot whose state is spent (its first word is not ahead of now) is
//! as good as empty, so expiry costs nothing and loses nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Fingerprint;

use crate::bucket::{Bucket, LINE, Locked, Moved, SLOTS, State};

/// The most keys that one table may be built for.
pub const MAX_KEYS: usize = 1 << 32;

/// What a table does with a new key when every slot that it could take is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Forget the key that gives back least. Loosens that key's limit by what it had used; each is counted.
    Evict,
    /// Count the key in a state that it shares with others like it. Never over any key's bound.
    #[default]
    Share,
    /// Refuse the key until a slot may be free.
    Refuse,
}

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhenFull::Evict => "evict",
            WhenFull::Share => "share",
            WhenFull::Refuse => "refuse",
        })
    }
}

impl FromStr for WhenFull {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "evict" => Ok(WhenFull::Evict),
            "share" => Ok(WhenFull::Share),
            "refuse" => Ok(WhenFull::Refuse),
            _ => Err("expected evict, share or refuse"),
        }
    }
}

/// How often a new key met a full bucket, by what happened then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A live key was forgotten.
    pub evicted: u64,
    /// A charge was counted in a shared state.
    pub shared: u64,
    /// A charge was refused for want of a slot.
    pub refused: u64,
}

/// A fixed number of slots for the keys of one policy.
pub struct Table {
    /// Unlike any other table's of this process: locks of several tables are taken in its order.
    id: u64,
    words: Box<[AtomicU64]>,
    /// The first word that begins a cache line.
    start: usize,
    main: usize,
    overflow: usize,
    state: usize,
    when_full: WhenFull,
    evicted: AtomicU64,
    shared: AtomicU64,
    refused: AtomicU64,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("buckets", &self.buckets())
            .field("bytes", &self.bytes())
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}

/// The two buckets that a key may live in, by number. The first is always lower, so locks have one order.
pub(crate) type Pair = (usize, usize);

/// Where a charge is counted.
#[derive(Clone, Copy)]
pub(crate) struct Place<'t> {
    pub(crate) bucket: Bucket<'t>,
    pub(crate) number: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key's own slot.
    Own(usize),
    /// A slot to take; its old tenant is spent, or (`true`) live and to be forgotten.
    Free(usize, bool),
    /// The bucket's shared state.
    Shared,
    /// No place until this time.
    None(u64),
}

impl Table {
    /// A table for `keys` keys (1 to [`MAX_KEYS`], clamped) with states of `words` words. All of its memory is reserved
    /// here and no more ever is ([`Table::bytes`]); pages become resident as keys first use them.
    pub fn new(keys: usize, words: usize, when_full: WhenFull) -> Self {
        let main = (keys.clamp(1, MAX_KEYS) * 10).div_ceil(SLOTS * 8);
        Table::with_buckets(main, main.div_ceil(4), words.max(1), when_full)
    }

    fn with_buckets(main: usize, overflow: usize, state: usize, when_full: WhenFull) -> Self {
        let length = (main + overflow) * Bucket::stride(state);
        let words: Box<[AtomicU64]> = (0..length + LINE - 1).map(|_| AtomicU64::new(0)).collect();
        let start = words.as_ptr().align_offset(LINE * 8).min(LINE - 1);
        static TABLES: AtomicU64 = AtomicU64::new(0);
        Table {
            id: TABLES.fetch_add(1, Ordering::Relaxed),
            words,
            start,
            main,
            overflow,
            state,
            when_full,
            evicted: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// An empty table with as many buckets.
    pub(crate) fn same_size(&self, words: usize, when_full: WhenFull) -> Table {
        Table::with_buckets(self.main, self.overflow, words.max(1), when_full)
    }

    /// Bytes that a table for `keys` keys takes.
    pub fn bytes_for(keys: usize, words: usize) -> usize {
        let main = (keys.clamp(1, MAX_KEYS) * 10).div_ceil(SLOTS * 8);
        ((main + main.div_ceil(4)) * Bucket::stride(words.max(1)) + LINE - 1) * 8
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Words of a state.
    pub fn words(&self) -> usize {
        self.state
    }

    /// What happens when a bucket is full.
    pub fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// What has happened so far when buckets were full.
    pub fn events(&self) -> Events {
        Events {
            evicted: self.evicted.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// How many slots are live at `now`. Reads the whole table.
    pub fn live(&self, now: u64) -> usize {
        let live = |number| {
            let bucket = self.bucket(number);
            (0..SLOTS).filter(|slot| bucket.state(*slot).ends() > now).count()
        };
        (0..self.buckets()).map(live).sum()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn buckets(&self) -> usize {
        self.main + self.overflow
    }

    pub(crate) fn bucket(&self, number: usize) -> Bucket<'_> {
        let stride = Bucket::stride(self.state);
        let at = self.start + number * stride;
        Bucket::new(&self.words[at..at + stride], self.state)
    }

    pub(crate) fn pair(&self, key: Fingerprint) -> Pair {
        let low = key.0 & u128::from(u64::MAX);
        // Two independent places from one half of the hash: its high bits, and the high bits of a multiple.
        let other = (low * 0x9E37_79B9_7F4A_7C15) & u128::from(u64::MAX);
        (scale(low, self.main), self.main + scale(other, self.overflow))
    }

    /// The slot of the key with this tag. Both buckets must be locked.
    pub(crate) fn find(&self, pair: Pair, tag: u64) -> Option<Place<'_>> {
        [pair.0, pair.1].into_iter().find_map(|number| {
            let bucket = self.bucket(number);
            bucket.find(tag).map(|slot| Place { bucket, number, kind: Kind::Own(slot) })
        })
    }

    /// No place at all.
    pub(crate) fn nowhere(&self, pair: Pair) -> Place<'_> {
        Place { bucket: self.bucket(pair.0), number: pair.0, kind: Kind::None(0) }
    }

    /// Where a key without a slot can be counted at `now`. Both buckets must be locked; `taken` are the places of
    /// other charges of the same demand.
    pub(crate) fn vacancy(&self, pair: Pair, now: u64, taken: &[Place<'_>]) -> Place<'_> {
        let is_taken = |number, slot: usize| {
            taken.iter().any(|place| place.is_in(self, number) && place.kind.slot() == Some(slot))
        };
        let mut earliest = (u64::MAX, pair.0, 0);
        for number in [pair.0, pair.1] {
            let bucket = self.bucket(number);
            for slot in (0..SLOTS).filter(|slot| !is_taken(number, *slot)) {
                let ends = bucket.state(slot).ends();
                if ends <= now {
                    return Place { bucket, number, kind: Kind::Free(slot, false) };
                }
                earliest = earliest.min((ends, number, slot));
            }
        }
        let (ends, number, slot) = earliest;
        let shares = |place: &Place<'_>| place.is_in(self, pair.0) && place.kind == Kind::Shared;
        let (number, kind) = match self.when_full {
            WhenFull::Evict if ends < u64::MAX => (number, Kind::Free(slot, true)),
            WhenFull::Share if !taken.iter().any(shares) => (pair.0, Kind::Shared),
            _ => (pair.0, Kind::None(ends)),
        };
        Place { bucket: self.bucket(number), number, kind }
    }

    pub(crate) fn count(&self, kind: Kind) {
        let counter = match kind {
            Kind::Free(_, true) => &self.evicted,
            Kind::Shared => &self.shared,
            Kind::None(_) => &self.refused,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The state that a key without a slot starts from: that of its bucket's shared state, which is all zero unless
    /// keys had to share it. So a key that shared does not get a second allowance with a slot of its own.
    pub(crate) fn fresh(&self, pair: Pair) -> State<'_> {
        self.bucket(pair.0).shared()
    }

    /// The half of a key that a slot keeps: what [`Rules`](crate::Rules) are asked by.
    pub fn tag(key: Fingerprint) -> u64 {
        tag(key)
    }

    pub(crate) fn lock(&self, number: usize) -> Result<Locked<'_>, Moved> {
        self.bucket(number).lock()
    }
}

impl Place<'_> {
    fn is_in(&self, table: &Table, number: usize) -> bool {
        self.number == number && self.bucket.is(table.bucket(number))
    }
}

impl Kind {
    fn slot(self) -> Option<usize> {
        match self {
            Kind::Own(slot) | Kind::Free(slot, _) => Some(slot),
            _ => None,
        }
    }
}

/// The half of a fingerprint that a slot keeps; never 0, which marks a slot that was never used.
#[allow(clippy::cast_possible_truncation, reason = "the high half, shifted down")]
pub(crate) fn tag(key: Fingerprint) -> u64 {
    ((key.0 >> 64) as u64).max(1)
}

#[allow(clippy::cast_possible_truncation, reason = "below `buckets`, which is a usize")]
fn scale(hash: u128, buckets: usize) -> usize {
    ((hash * buckets as u128) >> 64) as usize
}

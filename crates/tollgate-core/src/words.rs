//! The state of one key: a few 64-bit words.

/// Where the state of one key lies.
///
/// Every shape is a few words that are all zero when the key is new, and whose first word is the time, in nanoseconds
/// since the Unix epoch, at which the state may be forgotten. A store that knows only this can expire, reap and evict
/// every shape alike. A plain slice is `Words`; a table of atomics can be too.
///
/// Reading past the end gives 0 and writing past the end does nothing, so that no state can make a decision panic.
pub trait Words {
    /// The word at `index`, or 0 past the end.
    fn get(&self, index: usize) -> u64;
    /// Replaces the word at `index`.
    fn set(&mut self, index: usize, word: u64);
    /// How many words there are.
    fn len(&self) -> usize;
    /// Whether there is no word at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Words for [u64] {
    fn get(&self, index: usize) -> u64 {
        <[u64]>::get(self, index).copied().unwrap_or(0)
    }

    fn set(&mut self, index: usize, word: u64) {
        if let Some(slot) = self.get_mut(index) {
            *slot = word;
        }
    }

    fn len(&self) -> usize {
        <[u64]>::len(self)
    }
}

impl<const N: usize> Words for [u64; N] {
    fn get(&self, index: usize) -> u64 {
        self.as_slice().get(index).copied().unwrap_or(0)
    }

    fn set(&mut self, index: usize, word: u64) {
        Words::set(self.as_mut_slice(), index, word);
    }

    fn len(&self) -> usize {
        N
    }
}

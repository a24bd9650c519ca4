//! What one commit writes, and what of a file is still of use.

use std::collections::{HashMap, VecDeque};

use tollgate_core::Fingerprint;

/// Entries that a file may have before old groups are taken out.
const SLACK: usize = 4_096;

/// What is in the file, without the states: where each key's newest entry is, and how many entries each group has.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) newest: HashMap<Fingerprint, i64>,
    pub(crate) groups: VecDeque<(i64, usize)>,
    entries: usize,
    pub(crate) last: i64,
    /// Entries that the next commit may take out beside its own share.
    pub(crate) credit: usize,
}

impl Written {
    /// A group was written, or read, after all others.
    pub(crate) fn add(&mut self, group: i64, entries: &[u8]) {
        let mut count = 0_usize;
        for (key, _, words) in Parts(entries) {
            count = count.saturating_add(1);
            if words.is_empty() {
                self.newest.remove(&key);
            } else {
                self.newest.insert(key, group);
            }
        }
        self.groups.push_back((group, count));
        self.entries = self.entries.saturating_add(count);
        self.last = group;
    }

    /// How many of the oldest groups are taken out by a commit of so many entries: twice as many entries as it writes, or as soon
    /// as that is a whole group; and what is left of that for the next.
    pub(crate) fn overdue(&self, writing: usize) -> (usize, usize) {
        if self.entries <= SLACK {
            return (0, 0);
        }
        let mut credit = self.credit.saturating_add(writing.saturating_mul(2));
        let due = self.groups.iter().take_while(|(_, count)| {
            let left = credit.checked_sub(*count);
            credit = left.unwrap_or(credit);
            left.is_some()
        });
        (due.count(), credit)
    }

    /// The oldest groups are gone.
    pub(crate) fn remove(&mut self, groups: usize) {
        for (_, count) in self.groups.drain(..groups.min(self.groups.len())) {
            self.entries = self.entries.saturating_sub(count);
        }
    }
}

/// The entries of a group: key, rule, and the words of the state, of which there are none when the key was forgotten.
pub(crate) struct Parts<'g>(pub(crate) &'g [u8]);

impl<'g> Iterator for Parts<'g> {
    type Item = (Fingerprint, u32, &'g [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.0.split_first_chunk()?;
        let (rule, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (words, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((Fingerprint(u128::from_be_bytes(*key)), u32::from_be_bytes(*rule), words))
    }
}

/// Adds an entry to a group.
pub(crate) fn push(group: &mut Vec<u8>, key: Fingerprint, rule: u32, words: &[u8]) {
    group.extend(key.0.to_be_bytes());
    group.extend(rule.to_be_bytes());
    group.extend(u32::try_from(words.len()).unwrap_or(0).to_be_bytes());
    group.extend(words);
}

pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word))
}

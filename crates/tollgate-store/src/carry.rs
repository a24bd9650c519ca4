//! States that outlive their table: carried to another one under other rules, kept elsewhere, and put back.

use tollgate_core::{Charge, Fingerprint, Rule, Shape, Words, carry};

use crate::bucket::{Moved, SLOTS, State};
use crate::table::{Kind, Place, Table, WhenFull, tag};

/// Which rule a key had and has, by its tag: what [`Table::carry`] asks.
pub trait Rules {
    /// The rule before and the rule after, for the key with this tag ([`Fingerprint`]'s high half), or for the shared
    /// states with `None`.
    fn of(&self, tag: Option<u64>) -> (&Rule, &Rule);
}

impl Table {
    /// A table of the same size with every state rewritten from the rules before to the rules after, so that usage
    /// outlives a change of policy. From then on this one answers [`Moved`], bucket by bucket: no charge falls between the
    /// two. Only one thread may do this, and only once.
    #[must_use]
    pub fn carry(&self, words: usize, when_full: WhenFull, rules: &impl Rules, now: u64) -> Table {
        let copy = self.same_size(words, when_full);
        let mut held = vec![0_u64; self.words()];
        let mut take = |from: State<'_>| {
            held.iter_mut().enumerate().for_each(|(index, word)| *word = from.get(index));
            held.first().is_some_and(|end| *end > now).then(|| held.clone())
        };
        for number in 0..self.buckets() {
            let (from, to) = (self.bucket(number), copy.bucket(number));
            let Ok(mut lock) = from.lock() else { continue };
            if let Some(shared) = take(from.shared()) {
                carry_shared(&shared, &mut to.shared(), rules.of(None), now);
            }
            for slot in 0..SLOTS {
                let tag = from.tag(slot);
                let Some(state) = take(from.state(slot)) else { continue };
                let (old, new) = rules.of(Some(tag));
                to.set_tag(slot, tag);
                carry(
                    Fingerprint(u128::from(tag) << 64),
                    old,
                    state.as_slice(),
                    new,
                    &mut to.state(slot),
                    now,
                );
            }
            lock.mark_moved();
        }
        copy
    }

    /// The state of one key as it stands: its own, or the one that it shares. `None` when nothing is known of it.
    ///
    /// # Errors
    /// [`Moved`] when the states are in another table by now.
    pub fn state(&self, key: Fingerprint) -> Result<Option<Vec<u64>>, Moved> {
        let pair = self.pair(key);
        let _locks = (self.lock(pair.0)?, self.lock(pair.1)?);
        let state = match self.find(pair, tag(key)) {
            Some(Place { bucket, kind: Kind::Own(slot), .. }) => bucket.state(slot),
            _ => self.fresh(pair),
        };
        Ok((state.ends() > 0).then(|| (0..state.len()).map(|index| state.get(index)).collect()))
    }

    /// Puts a state that was kept elsewhere under the rule `old` into the table, under the rule `new`. Where its buckets are
    /// full it goes into the shared state, whatever else the table does when it is full.
    ///
    /// # Errors
    /// [`Moved`] when the states are in another table by now.
    pub fn restore(
        &self,
        key: Fingerprint,
        (old, new): (&Rule, &Rule),
        words: &[u64],
        now: u64,
    ) -> Result<(), Moved> {
        let pair = self.pair(key);
        let _locks = (self.lock(pair.0)?, self.lock(pair.1)?);
        let place = self.find(pair, tag(key)).unwrap_or_else(|| self.vacancy(pair, now, &[]));
        let (Kind::Own(slot) | Kind::Free(slot, false)) = place.kind else {
            carry_shared(words, &mut self.fresh(pair), (old, new), now);
            return Ok(());
        };
        let mut state = place.bucket.state(slot);
        (0..state.len()).for_each(|index| state.set(index, 0));
        carry(key, old, words, new, &mut state, now);
        place.bucket.set_tag(slot, tag(key));
        Ok(())
    }
}

/// Carries a state that keys share, perhaps of several rules and edges: whatever it comes to for one of them, it must not
/// become less. A cell stays at least where it was; a state of another shape counts as used up.
fn carry_shared(from: &[u64], to: &mut State<'_>, (old, new): (&Rule, &Rule), now: u64) {
    let key = Fingerprint::default();
    if old.shape() == new.shape() {
        let before = to.get(0);
        carry(key, old, from, new, to, now);
        if new.shape() == Shape::Cell {
            to.set(0, to.get(0).max(Words::get(from, 0)).max(before));
        }
    } else {
        Charge { policy: 0, key, rule: new, cost: new.capacity(), spare: 0 }.apply(to, now);
    }
}

//! A limiter whose counts outlive the process.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tollgate_core::{Charge, Fingerprint, Rule};
use tollgate_store::Memory;
use tollgate_store::durable::{Durability, Durable, JournalError, Kept, Opened};

use crate::policies::{Policies, PolicySet};
use crate::ready::Ready;
use crate::{Clock, Limiter, Salt};

/// What a file had to say when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// States that were live and are in force again.
    pub states: usize,
    /// How far ahead of the wall clock the file was written: above [`Clock::MAX_AHEAD`] one of the two clocks is wrong, and
    /// states that are further ahead than their policy can make them count as used up from now.
    pub ahead: Duration,
}

impl Limiter<Durable> {
    /// A limiter with these policies over a file, which is made when it is not there. Usage that is kept in it counts, also
    /// under a quota or algorithm that has changed since.
    ///
    /// # Errors
    /// [`JournalError`] when the file is locked, corrupt, not ours, or of another version or salt.
    pub fn open(
        set: PolicySet,
        salt: Salt,
        path: &Path,
        durability: Durability,
    ) -> Result<(Self, Restored), JournalError> {
        let mut opened = Opened::open(path, i64::try_from(salt.check()).unwrap_or(0))?;
        let (clock, ahead) = Clock::system_after(opened.mark);
        let kept = std::mem::take(&mut opened.kept);
        let mut states = 0;
        let now = clock.now();
        let limiter = Limiter::with_store(set, salt, clock, |policies, memory| {
            states = restore(policies, &memory, kept, now);
            opened.store(memory, &policies.journalled(), durability)
        });
        Ok((limiter, Restored { states, ahead }))
    }
}

/// Puts what was kept into the tables, and gives how much of it was live.
fn restore(policies: &Policies, memory: &Memory, kept: Vec<Kept>, now: u64) -> usize {
    let exceptions = |ready: &Ready| ready.exceptions().map(|(key, rule)| (key, *rule)).collect();
    let tiers: Vec<HashMap<Fingerprint, Rule>> = policies.tables().map(exceptions).collect();
    let mut states = 0;
    for mut kept in kept {
        let Some(ready) = policies.any_named(&kept.policy) else { continue };
        let Some(table) = memory.table(ready.index) else { continue };
        let ends = kept.words.first().copied().unwrap_or(0);
        if ends <= now {
            continue;
        }
        if ends > now.saturating_add(kept.rule.memory()) {
            // Written by a clock that is ahead of this one: what it owes at most, from now.
            kept.words.fill(0);
            let cost = kept.rule.capacity();
            Charge { policy: 0, key: kept.key, rule: &kept.rule, cost, spare: 0 }
                .apply(kept.words.as_mut_slice(), now);
        }
        let tier = tiers.get(usize::from(ready.index)).and_then(|tiers| tiers.get(&kept.key));
        // What is counted beside a policy is counted by more than one rule, and stays under its own.
        let usual = if ready.of.is_some() { &kept.rule } else { ready.usual() };
        let rule = tier.unwrap_or(usual);
        states += usize::from(table.restore(kept.key, (&kept.rule, rule), &kept.words, now).is_ok());
    }
    states
}

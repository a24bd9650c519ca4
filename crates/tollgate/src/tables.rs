//! The tables of one generation of policies: new ones, and those that outlive a reload.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::Rule;
use tollgate_store::{Rules, Table};

use crate::key::Salt;
use crate::policy::Policy;
use crate::ready::Ready;

impl Ready {
    /// A table for this policy. One whose count is elsewhere, and that counts nothing here meanwhile, needs none to speak of.
    pub(crate) fn table(&self) -> Table {
        Table::new(self.table_keys(), self.words(), self.policy.when_full)
    }

    /// Keys that its table is built for.
    pub fn table_keys(&self) -> usize {
        if self.counts_here() { self.policy.keys } else { 1 }
    }

    /// Bytes that its table takes.
    pub fn table_bytes(&self) -> usize {
        Table::bytes_for(self.table_keys(), self.words())
    }
}

impl Policy {
    /// Keys that its table is built for in one of so many instances: 1 when nothing is counted there.
    pub fn table_keys(&self, instances: u64) -> usize {
        Ready::new(self.clone(), 0, instances, &Salt::random()).table_keys()
    }

    /// Bytes that its table takes in one of so many instances, with the tables of what is counted beside it.
    pub fn table_bytes(&self, instances: u64) -> usize {
        let beside = self.beside().map(|(_, policy)| policy);
        let all = std::iter::once(self.clone()).chain(beside);
        all.map(|policy| Ready::new(policy, 0, instances, &Salt::random()).table_bytes())
            .fold(0, usize::saturating_add)
    }
}

/// The table of a policy that stays, with its states carried over to the new rules. Its size stays too.
pub(crate) fn carried(old: &Ready, table: &Arc<Table>, new: &Ready, now: u64) -> Arc<Table> {
    if new.policy.placement.is_shared() || old.policy.placement.is_shared() {
        // What is counted here beside a shared count is only for the moment.
        let same = old.same_counting(new) && new.policy.when_full == table.when_full();
        return if same { Arc::clone(table) } else { Arc::new(new.table()) };
    }
    let change = Change::between(old, new);
    let words = new.words();
    if !change.any() && words == table.words() && new.policy.when_full == table.when_full() {
        return Arc::clone(table);
    }
    Arc::new(table.carry(words, new.policy.when_full, &change, now))
}

/// The rules before and after, by key.
struct Change {
    usual: (Rule, Rule),
    exceptions: HashMap<u64, (Rule, Rule)>,
}

impl Change {
    /// Whether anything differs.
    fn any(&self) -> bool {
        let differs = |(before, after): &(Rule, Rule)| before != after;
        differs(&self.usual) || self.exceptions.values().any(differs)
    }

    fn between(old: &Ready, new: &Ready) -> Change {
        let usual = (*old.usual(), *new.usual());
        // Each key is counted by its own quota, which is not this one.
        let usual =
            if old.policy.client_quota && new.policy.client_quota { (usual.1, usual.1) } else { usual };
        let mut exceptions = HashMap::new();
        for (key, rule) in old.exceptions() {
            exceptions.insert(Table::tag(key), (*rule, usual.1));
        }
        for (key, rule) in new.exceptions() {
            exceptions.entry(Table::tag(key)).or_insert(usual).1 = *rule;
        }
        Change { usual, exceptions }
    }
}

impl Rules for Change {
    fn of(&self, tag: Option<u64>) -> (&Rule, &Rule) {
        let (old, new) = tag.and_then(|tag| self.exceptions.get(&tag)).unwrap_or(&self.usual);
        (old, new)
    }
}

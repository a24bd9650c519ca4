//! Where the count lives, and what follows from it: by which rule it is counted there, and under which key.

use std::fmt;
use std::str::FromStr;

use tollgate_core::{Fingerprint, Rule};

use crate::named::named;
use crate::policy::{Direction, Policy};

named! {
    /// Where the count lives.
    Placement {
        /// In this process: N instances admit N times the bound.
        Local = "local",
        /// In this process, at an n-th of the quota: N instances admit the bound.
        Divided = "divided",
        /// In this process and its file: a crash forgets nothing that was answered.
        Durable = "durable",
        /// In the store that the instances share: one count.
        Strict = "strict",
        /// In the shared store, from which units are bought in packs.
        Leased = "leased",
        /// In the shared store, over several keys with a part of the quota each.
        Sharded = "sharded",
        /// In this process, brought in line with the shared store in the background.
        Approximate = "approximate",
        /// In this process at twice the quota, then in the shared store.
        Layered = "layered",
    }
}

impl Placement {
    /// Whether the count is in a store that instances share.
    pub const fn is_shared(self) -> bool {
        use Placement::{Approximate, Layered, Leased, Sharded, Strict};
        matches!(self, Strict | Leased | Sharded | Approximate | Layered)
    }
}

/// How much looser than its policy the first layer of [`Placement::Layered`] is.
const FIRST_LAYER: u64 = 2;

/// Over how many keys [`Placement::Sharded`] spreads one, unless the policy says otherwise.
pub const DEFAULT_SHARDS: u64 = 8;

/// The rules that a policy, or a tier of it, is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// What is charged where the count is: the whole, or the part that is counted there.
    pub(crate) charged: Rule,
    /// What is charged in this process, before the shared store.
    pub(crate) first: Option<Rule>,
    /// What is charged in this process instead, when the shared store is out of reach.
    pub(crate) instead: Option<Rule>,
}

impl Policy {
    /// How `rule`, which is this policy's or a tier's, is counted by one of `instances`.
    pub(crate) fn counted(&self, rule: &Rule, instances: u64) -> Counted {
        // A share of less than one unit is a problem when the file is read; here it is the least that there is.
        let share = |n| rule.share(n).unwrap_or(*rule);
        let charged = match self.placement {
            Placement::Divided => share(instances),
            Placement::Sharded => share(self.shards),
            _ => *rule,
        };
        let first = (self.placement == Placement::Layered).then(|| rule.times(FIRST_LAYER).unwrap_or(*rule));
        let local = self.placement.is_shared() && self.on_unavailable == Direction::Local;
        Counted { charged, first, instead: local.then(|| share(instances)) }
    }

    /// Where it is counted on a store whose usual placement this is: a file would keep every quota that somebody ever stated.
    pub const fn placed(&self, usual: Placement) -> Placement {
        match usual {
            Placement::Durable if self.client_quota => Placement::Local,
            usual => usual,
        }
    }

    /// Over how many keys one is spread.
    pub(crate) fn spread(&self) -> u64 {
        if self.placement == Placement::Sharded { self.shards } else { 1 }
    }

    /// One of the keys that a key is spread over.
    pub(crate) fn spread_key(&self, key: Fingerprint) -> Fingerprint {
        let spread = self.spread();
        if spread > 1 { shard(key, fastrand::u64(0..spread)) } else { key }
    }
}

/// The n-th of the keys that a key is spread over: itself, and others that are as far apart as keys are.
pub(crate) fn shard(key: Fingerprint, n: u64) -> Fingerprint {
    Fingerprint(key.0 ^ u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

//! Which placements a configuration may name, and what each asks of its policy.

use tollgate_core::{Algorithm, Rule};

use crate::config::Section;
use crate::{Cost, Direction, Placement, Policy};

/// The most keys that one may be spread over.
pub(super) const MAX_SHARDS: u64 = 64;

/// The most instances that may be expected.
pub const MAX_INSTANCES: u64 = 100_000;

/// What the store at hand can do.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The placement of policies that name none.
    pub usual: Placement,
    /// Whether instances share it.
    pub shared: bool,
    /// How many instances are expected.
    pub instances: u64,
    /// Whether it can count by a rule, or why not.
    pub fits: fn(&Rule) -> Result<(), &'static str>,
}

impl Default for Host {
    /// Counts in this process.
    fn default() -> Self {
        Host { usual: Placement::Local, shared: false, instances: 1, fits: |_| Ok(()) }
    }
}

/// Reads a placement.
pub(super) fn placement(name: &str, host: &Host) -> Result<Placement, String> {
    let placement: Placement = name.parse()?;
    if placement == Placement::Durable && host.usual != Placement::Durable {
        return Err("`durable` needs a file: store.url = \"sqlite:PATH\"".to_owned());
    }
    // On a file, one process is the whole fleet.
    let on_file = host.usual == Placement::Durable && placement == Placement::Strict;
    if placement.is_shared() && !host.shared && !on_file {
        return Err(format!(
            "`{name}` needs a store that instances share: store.url = \"redis://HOST:PORT\" or \"postgres://HOST/DB\""
        ));
    }
    Ok(if on_file { Placement::Durable } else { placement })
}

/// What a placement asks of the policy and its tiers.
pub(super) fn check_placement(section: &Section<'_>, policy: &Policy, host: &Host) {
    let rules = || std::iter::once(&policy.rule).chain(policy.tiers.iter().map(|tier| &tier.rule));
    let too_small = |n: u64| rules().find(|rule| rule.share(n).is_none());
    let least = |rule: &Rule, n: u64, what: &str| {
        let burst = rule.quota().burst();
        format!("its burst of {burst} is less than one unit for each of {n} {what}")
    };
    if policy.placement == Placement::Divided
        && let Some(rule) = too_small(host.instances)
    {
        section.problem("quota", least(rule, host.instances, "instances (store.instances)"));
    }
    if policy.placement == Placement::Sharded {
        if let Some(rule) = too_small(policy.shards) {
            section.problem("quota", least(rule, policy.shards, "shards"));
        }
        // One share is what one request is charged to.
        let share = policy.rule.share(policy.shards).map_or(0, |rule| rule.capacity());
        if let Cost::Fixed(cost) = policy.cost
            && cost > share
            && share > 0
        {
            section.problem(
                "cost",
                format!("more than the {share} units that one of {} shards ever gives", policy.shards),
            );
        }
    } else if section.has("shards") {
        section.problem("shards", "only `placement = \"sharded\"` has shards");
    }
    if policy.placement.is_shared() {
        if policy.on_unavailable == Direction::Local
            && let Some(rule) = too_small(host.instances)
        {
            let what = "instances (store.instances), so `local` cannot stand in for the store";
            section.problem("on_unavailable", least(rule, host.instances, what));
        }
        for why in rules().filter_map(|rule| (host.fits)(rule).err()).take(1) {
            section.problem("quota", why);
        }
    }
    if policy.placement == Placement::Approximate && policy.rule.shape() != tollgate_core::Shape::Cell {
        section.problem("placement", "`approximate` counts no sliding-counter or sliding-log; use strict");
    }
    let packs = matches!(policy.rule.algorithm(), Algorithm::Gcra | Algorithm::TokenBucket);
    if policy.placement == Placement::Leased && !packs {
        section.problem("placement", "`leased` needs algorithm gcra or token-bucket; use strict");
    }
}

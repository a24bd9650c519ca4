//! What follows from where the count lives: the promise across instances, what a check costs, and what happens without the
//! store.

use std::time::Duration;

use tollgate::around::{LONGEST_PAUSE, PATIENCE, Wrapper};
use tollgate::{Class, Direction, Placement, Policy, WhenFull, show_duration};

use crate::explain::bound;
use crate::store::{StoreSettings, StoreUrl};

/// The promise, over all instances.
pub(super) fn promise(policy: &Policy, store: &StoreSettings) -> String {
    let n = store.instances;
    let bound = bound(policy);
    let fleet = match policy.placement {
        Placement::Local => "for each subject, in each instance: N instances admit up to N times this".to_owned(),
        Placement::Divided => format!(
            "for each subject, across {n} instances, each of which admits 1/{n} of it; a busy instance may refuse what an idle \
             one has left; more instances than store.instances = {n} admit more"
        ),
        Placement::Durable => "for each subject, by the one process that has the file".to_owned(),
        Placement::Strict => "for each subject, across all instances".to_owned(),
        Placement::Leased => {
            "for each subject, across all instances; units that an instance bought and did not spend lapse as the bucket \
             refills, and so do those of requests that another policy refused"
                .to_owned()
        }
        Placement::Sharded => format!(
            "for each subject, across all instances: {} shares, of which a request is charged to one, so that it may cost at most \
             {}; less when they are used unevenly",
            policy.shards,
            policy.rule.share(policy.shards).map_or(0, |rule| rule.capacity())
        ),
        Placement::Layered => {
            "for each subject, across all instances; the first layer refuses in each instance what is tried faster than twice \
             this"
                .to_owned()
        }
        Placement::Approximate => format!(
            "for each subject, across all instances, and beyond it at most {} units once: what {n} instances (store.instances) \
             admit before they hear of each other, each its burst and {} of its rate",
            overshoot(policy, store),
            show_duration(nanos(unheard(store)))
        ),
    };
    format!(
        "{bound}, {fleet}. Threads, bursts, reloads and refunds do not change it; {}",
        clock(policy, store)
    )
}

/// Units that an approximate policy may admit beyond its bound: N x (B + r x (2 x sync + deadline)).
pub fn overshoot(policy: &Policy, store: &StoreSettings) -> u64 {
    policy.rule.bound().at(nanos(unheard(store))).saturating_mul(store.instances)
}

fn unheard(store: &StoreSettings) -> Duration {
    store.around.sync.saturating_mul(2).saturating_add(store.around.deadline)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn clock(policy: &Policy, store: &StoreSettings) -> String {
    let own = "the clock is the process's own and steps in neither direction";
    match policy.placement {
        Placement::Local | Placement::Divided => format!("{own}; a restart begins anew"),
        Placement::Durable => format!(
            "{own}; a crash or restart forgets nothing that was answered (with durability = \"relaxed\": but the last moment)"
        ),
        _ => {
            let slack = show_duration(nanos(store.clock_slack));
            let replicas = match store.wait_replicas {
                0 => "a failover may forget what the replica had not seen (store.wait_replicas = n waits for n of them)"
                    .to_owned(),
                n => format!("a charge is admitted when {n} replicas have it"),
            };
            let replicas = match (&store.url, store.logged) {
                (StoreUrl::Postgres(_), true) => {
                    "a crash of the server forgets nothing that it had committed".to_owned()
                }
                (StoreUrl::Postgres(_), false) => {
                    "a crash of the server forgets the counts (store.logged = false)".to_owned()
                }
                _ => replicas,
            };
            format!(
                "the clock is the store's, and may step back by {slack} (store.clock_slack) but not further; {replicas}"
            )
        }
    }
}

/// What a check costs, and the wrappers that it goes through.
pub(super) fn check(policy: &Policy, store: &StoreSettings) -> String {
    let one = "one round trip, which all share that wait for the key; a refusal is remembered until its time and costs none";
    let cost = match policy.placement {
        Placement::Local | Placement::Divided => {
            return "a table in this process, no I/O; a refusal writes nothing".to_owned();
        }
        Placement::Durable => {
            return "a table in this process, and one commit that all who wait share; a refusal waits for nothing".to_owned();
        }
        Placement::Strict | Placement::Sharded => one.to_owned(),
        Placement::Leased => format!(
            "one round trip for up to {} checks of a key that is spent faster than it refills; else {one}",
            store.around.lease
        ),
        Placement::Approximate => {
            "none for a key that is known here; one round trip for a new or idle one".to_owned()
        }
        Placement::Layered => format!("a table in this process; then {one}"),
    };
    let wrappers = match policy.placement {
        Placement::Leased => store.around.leased(),
        Placement::Approximate => store.around.approximate(),
        _ => store.around.strict(),
    };
    let mut names: Vec<String> = wrappers.iter().map(name).collect();
    if store.around.order.contains(&"breaker") {
        names.push("breaker".to_owned());
    }
    names.push(store.url.to_string());
    let turns = if store.url.spreads_keys() {
        "; policies of one request are charged in turn, and a later refusal gives the earlier ones back: never over the \
         bound, for a moment under it"
    } else {
        ""
    };
    format!("{cost}; through {}{turns}", names.join(" > "))
}

fn name(wrapper: &Wrapper) -> String {
    match wrapper {
        Wrapper::Singly => "one key at a time".to_owned(),
        Wrapper::Refusals => "refusals".to_owned(),
        Wrapper::Deadline(deadline) => format!("deadline {}", show_duration(nanos(*deadline))),
        Wrapper::Coalescing => "coalescing".to_owned(),
        Wrapper::Leases(most) => format!("leases of up to {most}"),
        Wrapper::Approximate(every) => format!("synced every {}", show_duration(nanos(*every))),
        Wrapper::Breaker => "breaker".to_owned(),
    }
}

/// What it takes in this process.
pub(super) fn memory(policy: &Policy, store: &StoreSettings) -> String {
    let keys = policy.table_keys(store.instances);
    if keys < 2 && policy.placement.is_shared() {
        return "none in this process to speak of".to_owned();
    }
    let bytes = policy.table_bytes(store.instances);
    format!("{keys} keys in {} KiB, fixed; {}", bytes.div_ceil(1024), full(policy.when_full))
}

fn full(when_full: WhenFull) -> &'static str {
    match when_full {
        WhenFull::Evict => {
            "a new key that finds no place makes the key that gives back least forgotten, which loosens that key's limit"
        }
        WhenFull::Share => {
            "new keys that find no place share a count: never over the bound, perhaps under it"
        }
        WhenFull::Refuse => "new keys that find no place are refused (503) until one is free",
    }
}

/// What happens when the count is out of reach.
pub(super) fn unavailable(policy: &Policy, store: &StoreSettings) -> String {
    let when = match policy.placement {
        Placement::Local | Placement::Divided => {
            return format!("{}; a count in this process is never out of reach", policy.on_unavailable);
        }
        Placement::Durable => "when the file cannot be written, as on a full disk".to_owned(),
        _ => format!(
            "after {} without an answer, or at once while the store is given up ({PATIENCE} failures in a row; asked again \
             by one check at a time, after at most {:?})",
            show_duration(nanos(store.around.deadline)),
            LONGEST_PAUSE
        ),
    };
    let direction = match policy.on_unavailable {
        Direction::Refuse => "503 with Retry-After".to_owned(),
        Direction::Admit if policy.class == Some(Class::Read) => {
            format!(
                "admitted, all reading policies together up to {} in each instance",
                store.around.read_cap
            )
        }
        Direction::Admit => "admitted".to_owned(),
        Direction::Local if policy.placement.is_shared() => format!(
            "counted in this process meanwhile, at 1/{} of the quota (store.instances): with what the store had admitted before, \
             up to two bursts: 2 x B + r x t",
            store.instances
        ),
        Direction::Local => "counted in this process meanwhile".to_owned(),
    };
    format!("{} ({direction}); {when}", policy.on_unavailable)
}

//! The sections that make policies: `[[policy]]`, `[keys]` and `[jwt]`.

use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;
use tollgate_core::{Algorithm, Quota, Rule};
use tollgate_store::MAX_CHARGES;

use crate::config::Section;
use crate::config::about::{check_about, read_match};
use crate::config::manners::read_manners;
use crate::config::placement::{Host, MAX_SHARDS, check_placement, placement};
use crate::key::{MAX_SUBJECT_BYTES, fold_network};
use crate::{
    About, Class, Cost, DEFAULT_KEYS, Direction, List, MAX_POLICIES, Match, Missing, Policy, PolicySet,
    Prefixes, Subject, Tier, Verifier,
};

/// The largest cost that one request may be charged by configuration.
const MAX_COST: u64 = 1 << 40;

/// The most memory that the tables of one set may take, in bytes.
const MAX_TABLE_BYTES: usize = 64 << 30;

impl PolicySet {
    /// Reads the policies of a document. What is wrong is noted there, so the set means nothing unless the document then
    /// finishes without problems.
    ///
    /// What placements there are depends on the store.
    pub fn read(root: &Section<'_>, host: &Host) -> Self {
        let prefixes = root.section("keys").map(|keys| read_prefixes(&keys)).unwrap_or_default();
        let verifier = root.section("jwt").and_then(|jwt| read_verifier(&jwt));
        let mut set = PolicySet { policies: Vec::new(), prefixes, verifier, instances: host.instances };
        let sections = root.sections("policy");
        if sections.is_empty() {
            root.problem(
                "policy",
                "there is no policy; write at least one [[policy]] with a name and a quota",
            );
        }
        if sections.len() > MAX_POLICIES {
            root.problem("policy", format!("at most {MAX_POLICIES} policies, found {}", sections.len()));
        }
        let mut memory = 0_usize;
        let mut everywhere = [0, 0];
        for section in sections.iter().take(MAX_POLICIES) {
            let policy = read_policy(section, host);
            section.finish();
            let Some(policy) = policy else { continue };
            if set.policies.iter().any(|other| other.name == policy.name) {
                section.problem(
                    "name",
                    format!("another policy is named `{}`; names are distinct", policy.name),
                );
            }
            if policy.matches.about == About::Throttle
                && set.policies.iter().any(|p| p.matches == policy.matches)
            {
                section.problem("match", "another policy is about CL.THROTTLE already");
            }
            let claims = policy.subjects.iter().any(|subject| matches!(subject, Subject::Claim(_)));
            if claims && !root.has("jwt") {
                section.problem("subject", "jwt: needs a [jwt] section that says how tokens are verified");
            }
            let count = &mut everywhere[usize::from(policy.shadow)];
            *count += if policy.matches == Match::default() { policy.charges() } else { 0 };
            if *count > MAX_CHARGES {
                section.problem(
                    "match",
                    format!("at most {MAX_CHARGES} keys can be charged by one request (a ban is one more, and so is obey); this one is too many"),
                );
            }
            let bytes = policy.table_bytes(host.instances);
            memory = memory.saturating_add(bytes);
            if memory > MAX_TABLE_BYTES {
                let most = MAX_TABLE_BYTES >> 30;
                section
                    .problem("keys", format!("with this policy the tables take over {most} GiB; fewer keys"));
            }
            set.policies.push(policy);
        }
        set
    }
}

fn read_prefixes(keys: &Section<'_>) -> Prefixes {
    let usual = Prefixes::default();
    let bits = |key, most, usual: u8| {
        keys.integer(key, 1..=most).and_then(|bits| u8::try_from(bits).ok()).unwrap_or(usual)
    };
    let prefixes = Prefixes { v4: bits("ipv4_prefix", 32, usual.v4), v6: bits("ipv6_prefix", 128, usual.v6) };
    // The salt is the deployment's, not the policies': whoever starts the limiter reads it.
    keys.ignore(&["salt_file"]);
    keys.finish();
    prefixes
}

fn read_verifier(jwt: &Section<'_>) -> Option<Verifier> {
    let algorithm = jwt.text("algorithm").unwrap_or("HS256");
    let file = jwt.text("key_file");
    let (issuer, audience) = (jwt.text("issuer"), jwt.text("audience"));
    jwt.finish();
    let Some(file) = file else {
        jwt.problem("key_file", "missing; the file with the shared secret, or the public key in PEM");
        return None;
    };
    let path = jwt.document().beside(file);
    let key = std::fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    #[cfg(feature = "jwt")]
    let verifier = key.and_then(|key| Verifier::new(algorithm, &key, issuer, audience));
    #[cfg(not(feature = "jwt"))]
    let verifier: Result<Verifier, String> = key.and_then(|_| {
        let _unused = (algorithm, issuer, audience);
        Err("this build cannot verify tokens; build with the feature `jwt`".to_owned())
    });
    verifier.map_err(|error| jwt.problem("key_file", error)).ok()
}

fn read_policy(section: &Section<'_>, host: &Host) -> Option<Policy> {
    let name = section.parse("name", policy_name);
    if !section.has("name") {
        section.problem("name", "missing; every policy has a name");
    }
    let rule = read_rule(section);
    let matches = section.section("match").map(|matches| read_match(&matches)).unwrap_or_default();
    let subjects = section.list("subject", str::parse::<Subject>);
    let cost = read_cost(section);
    let missing = section.parse("missing", str::parse::<Missing>);
    let placement = section.parse("placement", |name| placement(name, host));
    let shards = section.integer("shards", 2..=MAX_SHARDS);
    let (on_unavailable, class) = read_direction(section);
    let shadow = section.boolean("shadow").unwrap_or(false);
    let client_quota = section.boolean("client_quota");
    let (allow, deny) = (read_list(section, "allow"), read_list(section, "deny"));
    let keys = section.integer("keys", 1..=1 << 32).and_then(|keys| usize::try_from(keys).ok());
    let when_full = section.parse("when_full", str::parse).unwrap_or_default();
    let tiers: Vec<Tier> =
        section.sections("tier").iter().filter_map(|tier| read_tier(tier, section)).collect();
    let mut policy = Policy::named(&name?, rule?);
    let capacity = policy.rule.capacity();
    if let Some(cost) = cost {
        if matches!(cost, Cost::Fixed(cost) if cost > capacity) {
            section
                .problem("cost", format!("more than the {capacity} units that the quota ever gives at once"));
        }
        policy.cost = cost;
    }
    if !subjects.is_empty() {
        policy.subjects = subjects;
    } else if matches!(matches.about, About::Descriptors(_)) {
        policy.subjects = vec![Subject::Descriptor];
    }
    policy.client_quota = client_quota.unwrap_or(matches.about == About::Throttle);
    policy.keys = keys.unwrap_or(DEFAULT_KEYS);
    if policy.subjects.iter().all(|subject| matches!(subject, Subject::Const(_))) && keys.is_none() {
        policy.keys = policy.subjects.len();
    }
    policy.missing = missing.unwrap_or(policy.missing);
    policy.placement = placement.unwrap_or(policy.placed(host.usual));
    policy.shards = shards.unwrap_or(policy.shards);
    policy.on_unavailable = on_unavailable.unwrap_or(policy.on_unavailable);
    let mut policy = Policy { matches, shadow, allow, deny, when_full, tiers, class, ..policy };
    read_manners(section, &mut policy);
    check_tiers(section, &policy);
    check_placement(section, &policy, host);
    check_about(section, &policy);
    Some(policy)
}

/// What tiers must have in common with their policy, and what no two of them may.
fn check_tiers(section: &Section<'_>, policy: &Policy) {
    let windowed = !matches!(
        policy.rule.algorithm(),
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyMeter | Algorithm::LeakyQueue
    );
    let mut listed = std::collections::HashSet::new();
    for (tier, read) in policy.tiers.iter().zip(section.sections("tier")) {
        if windowed && tier.rule.quota().window() != policy.rule.quota().window() {
            let window = tollgate_core::show_duration(policy.rule.quota().window());
            read.problem("quota", format!("tiers of a windowed policy have its window, {window}"));
        }
        if let Cost::Fixed(cost) = policy.cost
            && cost > tier.rule.capacity()
        {
            read.problem(
                "quota",
                format!("the policy's cost of {cost} is more than this tier ever gives at once"),
            );
        }
        for subject in tier.subjects.iter().filter(|subject| !listed.insert(subject.as_str())) {
            read.problem("subjects", format!("`{subject}` is listed before"));
        }
    }
}

fn policy_name(name: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(fine) {
        return Err(format!("`{name}` is no name; 1 to 64 letters, digits, `-`, `_` and `.`"));
    }
    Ok(name.to_owned())
}

fn read_rule(section: &Section<'_>) -> Option<Rule> {
    if !section.has("quota") {
        section.problem("quota", "missing; for example \"100/1m burst 20\"");
    }
    let quota = section.parse("quota", str::parse::<Quota>);
    let algorithm = if section.has("algorithm") {
        section.parse("algorithm", str::parse::<Algorithm>)
    } else {
        Some(Algorithm::Gcra)
    };
    let jitter = section.boolean("jittered_edges").unwrap_or(false);
    let rule = Rule::new(quota?, algorithm?).map_err(|error| section.problem("quota", error)).ok()?;
    Some(rule.with_jittered_edges(jitter))
}

fn read_tier(tier: &Section<'_>, policy: &Section<'_>) -> Option<Tier> {
    let name = tier.parse("name", policy_name);
    let subjects = tier.list("subjects", subject_text);
    if subjects.is_empty() {
        tier.problem("subjects", "missing; the subjects that are in this tier");
    }
    let quota = tier.parse("quota", str::parse::<Quota>);
    if !tier.has("quota") {
        tier.problem("quota", "missing; for example \"1000/1m\"");
    }
    tier.finish();
    let algorithm = policy.text("algorithm").and_then(|name| name.parse().ok()).unwrap_or(Algorithm::Gcra);
    let rule = Rule::new(quota?, algorithm).map_err(|error| tier.problem("quota", error)).ok()?;
    let jitter = policy.boolean("jittered_edges").unwrap_or(false);
    Some(Tier { name: name?, subjects, rule: rule.with_jittered_edges(jitter) })
}

fn subject_text(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_SUBJECT_BYTES {
        return Err(format!("a subject has 1 to {MAX_SUBJECT_BYTES} bytes"));
    }
    Ok(text.to_owned())
}

pub(super) fn read_cost(section: &Section<'_>) -> Option<Cost> {
    if !section.has("cost") {
        return None;
    }
    if !section.is_section("cost") {
        return section.integer("cost", 1..=MAX_COST).map(Cost::Fixed);
    }
    let cost = section.section("cost")?;
    let max = cost.integer("max", 1..=MAX_COST);
    if !cost.has("max") {
        cost.problem("max", "missing; a cost that the request states needs a ceiling");
    }
    let header = cost.parse("header", |name| {
        name.parse::<HeaderName>().map_err(|_| format!("`{name}` is not the name of a header field"))
    });
    let per = cost.size("size", 1..=1 << 40);
    let default = cost.integer("default", 1..=MAX_COST);
    if cost.has("header") == cost.has("size") {
        cost.problem("header", "expected either `header` or `size` to say what is counted");
    }
    cost.finish();
    match (header, per) {
        (Some(name), None) => Some(Cost::Header { name, max: max?, default: default.unwrap_or(1) }),
        (None, Some(per)) => Some(Cost::Size { per, max: max? }),
        _ => None,
    }
}

fn read_direction(section: &Section<'_>) -> (Option<Direction>, Option<Class>) {
    let direction = section.parse("on_unavailable", str::parse::<Direction>);
    let class = section.parse("class", str::parse::<Class>);
    if section.has("on_unavailable") && section.has("class") {
        section.problem("class", "says what on_unavailable says already; give one of the two");
    }
    (direction.or(class.map(Class::direction)), class)
}

fn read_list(section: &Section<'_>, key: &str) -> List {
    enum Entry {
        Network(IpNet),
        Subject(String),
    }
    let entries = section.list(key, |text| {
        if let Some(subject) = text.strip_prefix("subject:") {
            return subject_text(subject).map(Entry::Subject);
        }
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(|network| Entry::Network(fold_network(network))).map_err(|_| {
            format!("`{text}` is no network; expected an address such as 10.0.0.0/8, or subject:NAME")
        })
    });
    let mut list = List::default();
    for entry in entries {
        match entry {
            Entry::Network(network) => list.networks.push(network),
            Entry::Subject(subject) => list.subjects.push(subject),
        }
    }
    list
}

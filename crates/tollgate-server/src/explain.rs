//! `tollgate check` and `tollgate explain`: what a file says, in sentences.

mod manners;
mod placed;

use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::{
    About, Algorithm, Clock, Cost, Limiter, Pattern, Policy, PolicySet, Rule, Ruling, SECOND, Salt, Subject,
    show_duration,
};

pub use placed::overshoot;

use crate::cli::ExplainArgs;
use crate::store::StoreSettings;
use crate::{Failure, settings};

/// `tollgate check FILE`.
///
/// # Errors
/// [`Failure`] with everything that is wrong.
pub fn validate(file: &Path) -> Result<(), Failure> {
    let (_, set) = read(file)?;
    let policies = set.policies.len();
    println!("{}: {policies} {} and no problems", file.display(), plural(policies, "policy", "policies"));
    Ok(())
}

/// `tollgate explain FILE [REQUEST]`.
///
/// # Errors
/// [`Failure`] when the file or the request is wrong.
pub fn run(arguments: &ExplainArgs) -> Result<(), Failure> {
    let (settings, set) = read(&arguments.file)?;
    if arguments.request.is_empty() {
        for policy in &set.policies {
            println!("{}", explain(policy, &settings.store));
        }
        let enforced = set.policies.iter().filter(|policy| !policy.shadow).count();
        if enforced > 1 {
            println!(
                "A request that meets several policies is decided by all of them in one step: all admit and are charged, \
                 or none is charged."
            );
        }
        return Ok(());
    }
    let request = Described::read(arguments).map_err(Failure::Wrong)?;
    println!("{}", request.explain(&settings, set));
    Ok(())
}

fn read(file: &Path) -> Result<(settings::Settings, PolicySet), Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
    Ok(settings::read(&file.display().to_string(), &text, None)?)
}

/// The promise to one subject.
pub fn bound(policy: &Policy) -> String {
    if policy.client_quota {
        return "each key keeps the bound of the quota that is stated for it, while the same is stated"
            .to_owned();
    }
    policy.rule.bound().to_string()
}

/// What it does beyond yes and no: each key, and what it says.
pub fn manners(policy: &Policy) -> std::collections::BTreeMap<&'static str, String> {
    manners::manners(policy).into_iter().collect()
}

/// One line on a policy: what it promises to whom.
pub fn headline(policy: &Policy) -> String {
    let shadow = if policy.shadow { " (shadow: it only watches)" } else { "" };
    let chosen = if policy.client_quota { "what its askers state, up to " } else { "" };
    let promise = bound(policy);
    format!(
        "policy {}{shadow}: {chosen}{} by {} per {}: {promise}",
        policy.name,
        policy.rule.quota(),
        policy.rule.algorithm(),
        subjects(policy),
    )
}

/// A policy in full.
pub fn explain(policy: &Policy, store: &StoreSettings) -> String {
    let rule = &policy.rule;
    let mut text = format!("{}\n", headline(policy));
    let mut line = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    line("matches", matches(policy));
    line("subject", format!("{}; without one: {}", subjects(policy), policy.missing));
    line("at once", at_once(rule));
    line("promise", placed::promise(policy, store));
    for (length, name) in [(SECOND, "1s"), (60 * SECOND, "1m"), (3_600 * SECOND, "1h")] {
        if !policy.client_quota {
            line("", format!("in any {name}: at most {}", rule.bound().at(length)));
        }
    }
    for tier in &policy.tiers {
        let count = tier.subjects.len();
        let who = plural(count, "subject", "subjects");
        line(
            "tier",
            format!("{} for {count} {who}: {}: {}", tier.name, tier.rule.quota(), tier.rule.bound()),
        );
    }
    line("cost", cost(&policy.cost));
    for (name, says) in manners::manners(policy) {
        line(name, says);
    }
    line("check", format!("{}: {}", policy.placement, placed::check(policy, store)));
    line("memory", placed::memory(policy, store));
    line("unavailable", placed::unavailable(policy, store));
    for (name, list) in [("allow", &policy.allow), ("deny", &policy.deny)] {
        if !list.is_empty() {
            let networks = list.networks.iter().map(ToString::to_string);
            let all: Vec<String> =
                networks.chain(list.subjects.iter().map(|s| format!("subject:{s}"))).collect();
            line(
                name,
                format!("{} ({})", all.join(", "), if name == "deny" { "403" } else { "not counted" }),
            );
        }
    }
    text
}

fn at_once(rule: &Rule) -> String {
    let quota = rule.quota();
    let (capacity, window) = (rule.capacity(), show_duration(quota.window()));
    let pace = show_duration(quota.interval());
    match rule.algorithm() {
        Algorithm::FixedWindow => format!("{capacity} from cold, all back at the next edge of {window}"),
        Algorithm::SlidingLog => format!("{capacity} from cold, each back {window} after it was spent"),
        Algorithm::SlidingCounter => {
            format!("{capacity} from cold, coming back over the {window} after the window's end")
        }
        Algorithm::LeakyQueue => {
            let (burst, queue) = (quota.burst(), quota.queue());
            format!(
                "{burst} from cold without a wait and {queue} more that wait their turn, one every {pace}"
            )
        }
        _ => format!("{capacity} from cold, then one unit every {pace}"),
    }
}

fn subjects(policy: &Policy) -> String {
    match policy.matches.about {
        About::Throttle => return "key of the command".to_owned(),
        About::Name => return "subject of the question".to_owned(),
        About::Requests | About::Descriptors(_) => {}
    }
    let list: Vec<String> = policy.subjects.iter().map(Subject::to_string).collect();
    list.join(", else ")
}

fn matches(policy: &Policy) -> String {
    let any =
        |list: &[String], name: &str| if list.is_empty() { format!("any {name}") } else { list.join(" or ") };
    let m = &policy.matches;
    match &m.about {
        About::Requests => {}
        About::Throttle => return "the command CL.THROTTLE".to_owned(),
        About::Name => return "no request: it is asked by its name".to_owned(),
        About::Descriptors(Pattern { domain, entries }) => {
            let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
            let most = "where no policy is more specific";
            return format!("descriptors {} of domain {domain}, {most}", entries.join(", "));
        }
    }
    let mut text =
        format!("{}, {}, {}", any(&m.methods, "method"), any(&m.hosts, "host"), any(&m.paths, "path"));
    for (name, value) in &m.headers {
        text += &format!(", {name}: {value}");
    }
    text
}

fn cost(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(cost) => format!("{cost} per request"),
        Cost::Header { name, max, default } => {
            format!("what {name} says, 1 to {max}; {default} without it, 400 when it is no number")
        }
        Cost::Size { per, max } => {
            format!("1 for each started {per} bytes of the body, 1 to {max}; {max} when no size is announced")
        }
    }
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

/// A request of the command line.
struct Described {
    method: String,
    host: String,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    address: std::net::IpAddr,
}

impl Described {
    fn read(arguments: &ExplainArgs) -> Result<Self, String> {
        let (method, target) = match arguments.request.as_slice() {
            [target] => ("GET", target),
            [method, target] => (method.as_str(), target),
            _ => return Err("expected [METHOD] URL".to_owned()),
        };
        let mut headers = HeaderMap::new();
        for line in &arguments.headers {
            let wrong = || format!("-H: `{line}` is no header field; expected NAME: VALUE");
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
            headers.append(name, HeaderValue::from_str(value.trim()).map_err(|_| wrong())?);
        }
        let rest = target.split_once("://").map_or(target.as_str(), |(_, rest)| rest);
        let (host, target) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q.to_owned())));
        Ok(Described {
            method: method.to_ascii_uppercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query,
            headers,
            address: arguments.address,
        })
    }

    fn explain(&self, settings: &settings::Settings, set: PolicySet) -> String {
        let request = tollgate::Request {
            method: &self.method,
            host: &self.host,
            path: &self.path,
            query: self.query.as_deref(),
            headers: &self.headers,
            address: Some(self.address),
            size: None,
        };
        let clock = Clock::manual(Clock::system().now());
        let limiter = Limiter::new(set.counted_here(), Salt::random(), clock);
        let mut text = format!("{} {}{} from {}\n", self.method, self.host, self.path, self.address);
        let policies = limiter.policies();
        let met = policies.explain(&request);
        if met.is_empty() {
            text += "  meets no policy: it is admitted and not counted\n";
        }
        for (ready, subject) in &met {
            let who = match subject {
                Some((source, subject)) => format!("subject `{subject}` from {source}"),
                None => format!("no subject: {}", ready.policy.missing),
            };
            let shadow = if ready.policy.shadow { ", only watching" } else { "" };
            let rule =
                subject.as_ref().map_or(&ready.policy.rule, |(_, subject)| ready.key(subject.as_bytes()).1);
            text += &format!("  meets {}{shadow}: {who}; {}\n", ready.policy.name, rule.bound());
        }
        if request.is_preflight() {
            return text + "  is a CORS preflight, which is not charged\n";
        }
        let now = tokio::runtime::Builder::new_current_thread().build();
        let Ok(runtime) = now else { return text };
        let ruling = runtime.block_on(limiter.decide(&request));
        text += &format!("  from cold: {}\n", outcome(settings, &ruling));
        text
    }
}

fn outcome(settings: &settings::Settings, ruling: &Ruling) -> String {
    let mut headers = HeaderMap::new();
    settings.contract.write(ruling, &mut headers);
    let verdict = if ruling.is_admit() { "admitted" } else { "refused" };
    let mut text =
        format!("{verdict}, status {} ({})", ruling.reason.status().as_u16(), ruling.reason.name());
    for (name, value) in &headers {
        text += &format!("\n    {name}: {}", value.to_str().unwrap_or_default());
    }
    text
}

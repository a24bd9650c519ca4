//! What Envoy asks, read: its domain says whether descriptors name policies, describe requests, or are matched by policies.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::{Asked, Check, Descriptor, MAX_ASKED, MAX_ENTRIES, Quota, Request, Rule, SECOND, Stated};

use crate::rls::protocol::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::rls::protocol::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::rls::protocol::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::rls::protocol::envoy::r#type::v3::RateLimitUnit;

/// The domain whose descriptors name policies: each entry is a policy and a subject.
const BY_NAME: &str = "tollgate";

/// The domain whose descriptors describe requests: `method`, `host`, `path`, `remote_address` and `header:NAME`.
const BY_REQUEST: &str = "tollgate.request";

/// What was asked.
pub(super) enum Said<'r> {
    /// Policies by name, and for each descriptor which of them are its own.
    Checks(Vec<Check<'r>>, Vec<Range<usize>>),
    /// Requests, each to be charged or only looked at.
    Requests(Vec<Described<'r>>),
    /// Descriptors, for the policies of a domain.
    Descriptors(&'r str, Vec<Listed<'r>>),
}

/// A request in Envoy's words.
pub(super) struct Described<'r> {
    method: &'r str,
    host: &'r str,
    path: &'r str,
    headers: HeaderMap,
    address: Option<IpAddr>,
    look: bool,
}

/// A descriptor with what it costs, and the rule that it brings along.
pub(super) struct Listed<'r> {
    entries: Vec<(&'r str, &'r str)>,
    cost: Option<i64>,
    rule: Option<Result<Rule, ()>>,
}

/// Keys and values of each descriptor, as text.
pub(super) type Entries<'r> = Vec<Vec<(Cow<'r, str>, Cow<'r, str>)>>;

/// What is no text becomes one, so that nobody is let through for it; such values share a count.
pub(super) fn entries(request: &RateLimitRequest) -> Entries<'_> {
    request.descriptors.iter().map(|descriptor| descriptor.entries.iter().map(texts).collect()).collect()
}

impl<'r> Said<'r> {
    pub(super) fn read(request: &'r RateLimitRequest, entries: &'r Entries<'_>) -> Result<Self, String> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        if domain.is_empty() || descriptors.is_empty() {
            return Err("a domain and at least one descriptor are needed".to_owned());
        }
        if descriptors.len() > MAX_ASKED {
            return Err(format!("at most {MAX_ASKED} descriptors, found {}", descriptors.len()));
        }
        for (n, descriptor) in descriptors.iter().enumerate() {
            if !(1..=MAX_ENTRIES).contains(&descriptor.entries.len()) {
                return Err(format!("descriptors[{n}]: expected 1 to {MAX_ENTRIES} entries"));
            }
            if entries.get(n).is_some_and(|entries| entries.iter().any(|(key, _)| key.is_empty())) {
                return Err(format!("descriptors[{n}]: an entry has no key"));
            }
        }
        let costs = descriptors.iter().map(|descriptor| cost(descriptor, *hits_addend));
        match domain.as_str() {
            BY_NAME => by_name(entries, costs),
            BY_REQUEST => {
                let all = entries.iter().zip(costs).map(|(entries, cost)| Described::read(entries, cost));
                all.collect::<Result<_, _>>().map(Said::Requests)
            }
            _ => {
                let all = descriptors.iter().zip(entries).zip(costs).map(|((descriptor, entries), cost)| {
                    let entries = entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref()));
                    Listed { entries: entries.collect(), cost, rule: rule(descriptor) }
                });
                Ok(Said::Descriptors(domain, all.collect()))
            }
        }
    }

    /// The requests that are described.
    pub(super) fn requests(&self) -> Vec<Request<'_>> {
        let Said::Requests(described) = self else { return Vec::new() };
        described.iter().map(Described::request).collect()
    }

    /// What to ask the limiter.
    pub(super) fn asked<'a>(&'a self, requests: &'a [Request<'a>]) -> Vec<Asked<'a>> {
        match self {
            Said::Checks(checks, _) => checks.iter().map(|check| Asked::Check(*check)).collect(),
            Said::Requests(described) => {
                let asked = described.iter().zip(requests).filter(|(_, request)| !request.is_preflight());
                asked.map(|(d, r)| if d.look { Asked::Look(r) } else { Asked::Request(r) }).collect()
            }
            Said::Descriptors(domain, listed) => {
                let descriptor = |listed: &'a Listed<'_>| Descriptor {
                    domain,
                    entries: &listed.entries,
                    cost: listed.cost,
                    rule: match &listed.rule {
                        None => Stated::Nothing,
                        Some(Ok(rule)) => Stated::Rule(rule),
                        Some(Err(())) => Stated::NoQuota,
                    },
                };
                listed.iter().map(|listed| Asked::Descriptor(descriptor(listed))).collect()
            }
        }
    }

    /// For each descriptor, which of the things asked are its own.
    pub(super) fn of_each(&self) -> Vec<Range<usize>> {
        match self {
            Said::Checks(_, each) => each.clone(),
            Said::Requests(described) => {
                let mut at = 0;
                let each = described.iter().map(|described| {
                    let own = usize::from(!described.request().is_preflight());
                    at += own;
                    at - own..at
                });
                each.collect()
            }
            Said::Descriptors(_, listed) => (0..listed.len()).map(|n| n..n + 1).collect(),
        }
    }
}

fn texts(entry: &Entry) -> (Cow<'_, str>, Cow<'_, str>) {
    (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value))
}

/// Units, if any are stated: the descriptor's, 0 included, else the request's, where 0 says nothing.
fn cost(descriptor: &RateLimitDescriptor, hits: u32) -> Option<i64> {
    let own = descriptor.hits_addend.as_ref().copied().map(|hits| i64::try_from(hits).unwrap_or(i64::MAX));
    let stated = own.or((hits > 0).then(|| i64::from(hits)));
    if descriptor.is_negative_hits { Some(-stated.unwrap_or(1)) } else { stated }
}

fn by_name<'r>(
    descriptors: &'r Entries<'_>,
    costs: impl Iterator<Item = Option<i64>>,
) -> Result<Said<'r>, String> {
    let (mut checks, mut each) = (Vec::new(), Vec::new());
    for (entries, cost) in descriptors.iter().zip(costs) {
        let first = checks.len();
        checks.extend(entries.iter().map(|(policy, subject)| Check { policy, subject, cost }));
        each.push(first..checks.len());
    }
    if checks.len() > MAX_ASKED {
        return Err(format!("at most {MAX_ASKED} policies together, found {}", checks.len()));
    }
    Ok(Said::Checks(checks, each))
}

/// The rule of a descriptor that brings its own limit; an error when that is none.
fn rule(descriptor: &RateLimitDescriptor) -> Option<Result<Rule, ()>> {
    const DAY: u64 = 86_400 * SECOND;
    let limit = descriptor.limit.as_ref()?;
    let window = match limit.unit() {
        RateLimitUnit::Unknown => return Some(Err(())),
        RateLimitUnit::Second => SECOND,
        RateLimitUnit::Minute => 60 * SECOND,
        RateLimitUnit::Hour => 3_600 * SECOND,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
    };
    let most = u64::from(limit.requests_per_unit);
    Some(Quota::new(most, window, most, 0).map(|quota| Rule::gcra(quota).stated()).map_err(drop))
}

impl<'r> Described<'r> {
    fn read(entries: &'r [(Cow<'_, str>, Cow<'_, str>)], cost: Option<i64>) -> Result<Self, String> {
        if cost.is_some_and(|cost| cost != 0) {
            return Err(
                "a request costs what its policies say; only 0 hits, to look, may be given".to_owned()
            );
        }
        let mut described = Described {
            method: "GET",
            host: "",
            path: "/",
            headers: HeaderMap::new(),
            address: None,
            look: cost == Some(0),
        };
        for (n, (key, value)) in entries.iter().enumerate() {
            let (key, value) = (key.as_ref(), value.as_ref());
            let header = key.starts_with("header:");
            if !header && entries.iter().take(n).any(|(earlier, _)| earlier == key) {
                return Err(format!("`{key}` stands twice"));
            }
            match key {
                "method" => described.method = value,
                "host" => described.host = value,
                "path" => described.path = value,
                "remote_address" => {
                    let address = value.parse().map_err(|_| format!("remote_address: `{value}` is none"))?;
                    described.address = Some(address);
                }
                _ => {
                    let name = key.strip_prefix("header:").and_then(|name| name.parse::<HeaderName>().ok());
                    let (Some(name), Ok(value)) = (name, HeaderValue::from_str(value)) else {
                        return Err(format!(
                            "`{key}` is nothing of a request; expected method, host, path, remote_address or header:NAME"
                        ));
                    };
                    described.headers.append(name, value);
                }
            }
        }
        Ok(described)
    }

    fn request(&self) -> Request<'_> {
        let (path, query) = self.path.split_once('?').map_or((self.path, None), |(path, q)| (path, Some(q)));
        Request {
            method: self.method,
            host: self.host,
            path,
            query,
            headers: &self.headers,
            address: self.address,
            size: None,
        }
    }
}

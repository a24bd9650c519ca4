//! What a policy says beyond yes and no: `response`, `ban`, `obey`, `reserve`, `sample`.

use http::HeaderName;
use tollgate_core::{Algorithm, SECOND};

use crate::beside::{MAX_BAR_MS, MILLISECOND};
use crate::config::Section;
use crate::config::policy::read_cost;
use crate::reserve::MAX_RESERVATION;
use crate::{About, Ban, Cost, DEFAULT_KEYS, OnResponse, Placement, Policy, Reserve, parse_duration};

/// The largest number that a sampled policy draws one of.
const MAX_SAMPLE: u64 = 1_000;

/// The longest window of refusals, and the longest time in which a ban is forgotten.
const MAX_WITHIN: u64 = 366 * 86_400 * SECOND;

const HOUR: u64 = 3_600 * SECOND;

/// Reads these keys into a policy whose other keys are read.
pub(super) fn read_manners(section: &Section<'_>, policy: &mut Policy) {
    policy.response = section.section("response").map(|response| read_response(&response));
    policy.ban = section.section("ban").and_then(|ban| read_ban(&ban));
    policy.obey = section.parse("obey", |text| span(text, MAX_BAR_MS * MILLISECOND)).unwrap_or(0);
    policy.reserve = section.section("reserve").and_then(|reserve| read_reserve(&reserve, policy));
    policy.sample = section.parse("sample", sample).unwrap_or(1);
    check_manners(section, policy);
}

/// A duration from a millisecond to `most`.
fn span(text: &str, most: u64) -> Result<u64, String> {
    let span = parse_duration(text).map_err(|error| error.to_string())?;
    if !(MILLISECOND..=most).contains(&span) {
        return Err(format!("`{text}`: expected 1ms to {}", tollgate_core::show_duration(most)));
    }
    Ok(span)
}

fn sample(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no sample; expected one such as 1/10, of 2 to {MAX_SAMPLE}");
    let (one, of) = text.split_once('/').ok_or_else(wrong)?;
    let of = of.trim().parse::<u64>().ok().filter(|of| one.trim() == "1" && (2..=MAX_SAMPLE).contains(of));
    of.ok_or_else(wrong)
}

/// `401`, `4xx`, `500-599`.
fn statuses(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("`{text}` is no status; expected one such as 401, 4xx or 500-599");
    let code =
        |text: &str| text.parse::<u16>().ok().filter(|code| (100..=599).contains(code)).ok_or_else(wrong);
    let range = if let Some(hundred) = text.strip_suffix("xx") {
        let first = code(&format!("{hundred}00"))?;
        (first, first.saturating_add(99))
    } else if let Some((first, last)) = text.split_once('-') {
        (code(first)?, code(last)?)
    } else {
        (code(text)?, code(text)?)
    };
    if range.0 > range.1 { Err(wrong()) } else { Ok(range) }
}

fn read_response(section: &Section<'_>) -> OnResponse {
    let after = section.parse("charge", |text| match text {
        "before" => Ok(false),
        "after" => Ok(true),
        _ => Err("expected before (and given back when it does not count) or after"),
    });
    let headers = section.section("header").map(|headers| {
        let named = headers.texts().into_iter().filter_map(|(name, value)| {
            let parsed = name
                .parse::<HeaderName>()
                .map_err(|_| headers.problem(name, "not the name of a header field"));
            Some((parsed.ok()?, value.to_owned()))
        });
        named.collect()
    });
    if section.is_empty_list("status") {
        section.problem("status", "an empty list counts nothing; leave it out to count every status");
    }
    let response = OnResponse {
        statuses: section.list("status", statuses),
        headers: headers.unwrap_or_default(),
        cost: read_cost(section),
        after: after.unwrap_or(false),
    };
    section.finish();
    if !section.has("status") && !section.has("header") && !section.has("cost") {
        section.problem("status", "expected status, header or cost: what of the response it goes by");
    }
    response
}

fn read_ban(section: &Section<'_>) -> Option<Ban> {
    let after = section.integer("after", 1..=1_000_000);
    let within = section.parse("within", |text| span(text, MAX_WITHIN));
    let first = section.parse("for", |text| span(text, MAX_BAR_MS * MILLISECOND));
    let longest = section.parse("up_to", |text| span(text, MAX_BAR_MS * MILLISECOND));
    let forget = section.parse("forget", |text| span(text, MAX_WITHIN));
    for key in ["after", "within", "for"] {
        if !section.has(key) {
            section.problem(key, "missing; for example ban = { after = 10, within = \"1m\", for = \"5m\" }");
        }
    }
    section.finish();
    let first = first?;
    let longest = longest.unwrap_or(first.max(24 * HOUR));
    let ban = Ban::new(after?, within?, first, longest, forget.unwrap_or(longest));
    ban.map_err(|error| section.problem("for", error)).ok()
}

fn read_reserve(section: &Section<'_>, policy: &Policy) -> Option<Reserve> {
    let within = section.parse("within", |text| span(text, MAX_RESERVATION));
    let open = section.integer("open", 1..=1 << 32).and_then(|open| usize::try_from(open).ok());
    let debt = section.integer("debt", 0..=1 << 40);
    if !section.has("within") {
        section.problem("within", "missing; how long a reservation may be open, for example \"10m\"");
    }
    section.finish();
    let capacity = policy.rule.capacity();
    let reserve = Reserve::new(within?, open.unwrap_or(DEFAULT_KEYS), debt.unwrap_or(capacity).min(1 << 40));
    reserve.map_err(|error| section.problem("within", error)).ok()
}

/// What these keys ask of the rest of the policy, and of each other.
fn check_manners(section: &Section<'_>, policy: &Policy) {
    let keys = [
        ("response", policy.response.is_some()),
        ("ban", policy.ban.is_some()),
        ("obey", policy.obey > 0),
        ("reserve", policy.reserve.is_some()),
        ("sample", policy.sample > 1),
    ];
    for (key, _) in keys.iter().filter(|(_, given)| *given) {
        if policy.shadow && *key != "sample" {
            section.problem(key, "a shadow policy only watches");
        }
        if policy.client_quota {
            section.problem(key, "not for quotas that the asker chooses");
        }
        if matches!(*key, "response" | "obey") && policy.matches.about != About::Requests {
            section.problem(key, "only requests have a response that is seen");
        }
    }
    let gives_back = policy.response.as_ref().is_some_and(|response| !response.after);
    for (key, given) in [("response", gives_back), ("reserve", policy.reserve.is_some())] {
        use Placement::{Approximate, Layered, Leased};
        if given && matches!(policy.placement, Leased | Approximate | Layered) {
            let placement = policy.placement;
            section.problem(
                key,
                format!("not all is given back to a key that is counted {placement}; use strict"),
            );
        }
    }
    for (key, given) in keys {
        if given && key != "response" && policy.placement == Placement::Sharded {
            section
                .problem(key, "a sharded subject has several keys, of which one would be meant; use strict");
        }
    }
    if policy.response.is_some() && policy.rule.algorithm() == Algorithm::LeakyQueue {
        section.problem("response", "what is given back would let others overtake those that wait; use gcra");
    }
    check_costs(section, policy);
}

fn check_costs(section: &Section<'_>, policy: &Policy) {
    let rules = std::iter::once(&policy.rule).chain(policy.tiers.iter().map(|tier| &tier.rule));
    let Some(least) = rules.map(|rule| rule.capacity()).min() else { return };
    let most = |cost: &Cost| match cost {
        Cost::Fixed(cost) => *cost,
        Cost::Header { max, .. } | Cost::Size { max, .. } => *max,
    };
    if let Some(cost) = policy.response.as_ref().and_then(|response| response.cost.as_ref())
        && most(cost) > least
    {
        section.problem(
            "response",
            format!(
                "its cost of up to {} is more than the {least} units that there ever are at once",
                most(cost)
            ),
        );
    }
    if policy.sample < 2 {
        return;
    }
    if policy.response.is_some() || policy.reserve.is_some() || policy.obey > 0 {
        section.problem("sample", "not together with response, reserve or obey, which go by every request");
    }
    if policy.rule.algorithm() == Algorithm::LeakyQueue {
        section.problem("sample", "a queue makes every request wait its turn");
    }
    let drawn = most(&policy.cost).saturating_mul(policy.sample);
    if drawn > least {
        section.problem(
            "sample",
            format!(
                "one that is drawn costs {drawn}, more than the {least} units that there ever are at once"
            ),
        );
    }
}

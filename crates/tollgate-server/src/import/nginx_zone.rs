//! nginx's `limit_req_zone`: how much, and of whom.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use tollgate::Quota;

use crate::import::Imported;
use crate::import::nginx_text::Directive;

/// What nginx keeps of one key in a zone, in bytes.
const BYTES_PER_KEY: u64 = 64;

/// A `limit_req_zone`.
pub(super) struct Zone {
    pub(super) line: usize,
    pub(super) key: String,
    pub(super) rate: String,
    pub(super) keys: u64,
}

/// What the variables of a file are made of.
#[derive(Default)]
pub(super) struct Variables {
    /// `geo` variables: networks with their values, and the default.
    pub(super) geos: HashMap<String, Vec<(String, String)>>,
    /// `map` variables: their source, and what each value becomes.
    pub(super) maps: HashMap<String, (String, Vec<(String, String)>)>,
}

/// Reads a `limit_req_zone`, and gives its name with it.
pub(super) fn zone(directive: &Directive) -> Result<(String, Zone), (usize, String)> {
    let wrong = |what: &str| (directive.line, format!("limit_req_zone: {what}"));
    let option =
        |name: &str| directive.arguments().iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let key = directive.arguments().first().ok_or_else(|| wrong("no key"))?;
    let (name, size) = option("zone")
        .and_then(|zone| zone.split_once(':'))
        .ok_or_else(|| wrong("expected zone=NAME:SIZE"))?;
    let rate = option("rate").ok_or_else(|| wrong("expected rate=Nr/s or Nr/m"))?;
    let rate = match (rate.strip_suffix("r/s"), rate.strip_suffix("r/m")) {
        (Some(number), _) => format!("{number}/1s"),
        (_, Some(number)) => format!("{number}/1m"),
        _ => return Err(wrong("expected rate=Nr/s or Nr/m")),
    };
    rate.parse::<Quota>().map_err(|error| wrong(&format!("{rate}: {error}")))?;
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match size[digits.len()..].to_ascii_lowercase().as_str() {
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 1,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let keys = bytes.ok_or_else(|| wrong("expected a size such as 10m"))? / BYTES_PER_KEY;
    Ok((name.to_owned(), Zone { line: directive.line, key: key.clone(), rate, keys: keys.clamp(1, 1 << 32) }))
}

/// The subject that a key is, and the networks that have none.
pub(super) fn subject(
    key: &str,
    variables: &Variables,
    line: usize,
    to: &mut Imported,
) -> Option<(String, Vec<String>)> {
    let Some(variable) = key.strip_prefix('$') else {
        return (!key.contains('$')).then(|| (format!("const:{key}"), Vec::new()));
    };
    let variable = variable.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(variable);
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let named = |prefix: &str| variable.strip_prefix(prefix).filter(|name| plain(name));
    let subject = match variable {
        "binary_remote_addr" | "remote_addr" => {
            to.note(
                line,
                "addresses of IPv6 are cut to their /64 (keys.ipv6_prefix), where nginx counts each",
            );
            "address".to_owned()
        }
        _ => match (named("http_"), named("cookie_"), named("arg_")) {
            (Some(name), ..) => format!("header:{}", name.replace('_', "-")),
            (_, Some(name), _) => format!("cookie:{name}"),
            (.., Some(name)) => format!("query:{name}"),
            _ => return mapped(key, variables, line, to),
        },
    };
    Some((subject, Vec::new()))
}

/// A key that a `map` makes of a `geo`: nothing for some networks, a subject for all others.
fn mapped(key: &str, variables: &Variables, line: usize, to: &mut Imported) -> Option<(String, Vec<String>)> {
    let (source, values) = variables.maps.get(key)?;
    let networks = variables.geos.get(source)?;
    let becomes = |value: &str| {
        let of = |wanted: &str| values.iter().find(|(from, _)| from == wanted).map(|(_, to)| to.as_str());
        of(value).or(of("default")).unwrap_or("")
    };
    let default = networks.iter().find(|(network, _)| network == "default").map_or("", |(_, value)| value);
    let usual = becomes(default);
    if values.iter().any(|(from, _)| from.starts_with('~')) {
        return None;
    }
    let (mut allowed, mut counted): (Vec<String>, Vec<IpNet>) = (Vec::new(), Vec::new());
    let read = |network: &str| {
        network.parse::<IpNet>().ok().or_else(|| network.parse().ok().map(|address: IpAddr| address.into()))
    };
    for (network, value) in networks.iter().filter(|(network, _)| network != "default") {
        match becomes(value) {
            "" => allowed.push(network.clone()),
            same if same == usual => counted.push(read(network)?),
            _ => return None,
        }
    }
    // `geo` takes the longest prefix, a list of those who are allowed takes any.
    let inside = |network: &String| {
        let outer = read(network);
        counted.iter().any(|inner| outer.is_none_or(|outer| outer.contains(inner)))
    };
    if allowed.iter().any(inside) {
        return None;
    }
    if usual.is_empty() || variables.maps.contains_key(usual) {
        return None;
    }
    subject(usual, variables, line, to).map(|(subject, _)| (subject, allowed))
}

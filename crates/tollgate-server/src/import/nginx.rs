//! nginx's `limit_req`: zones, and the servers and locations that use them.

use std::collections::HashMap;

use crate::import::nginx_text::{Directive, parse};
use crate::import::nginx_zone::{Variables, Zone, subject, zone};
use crate::import::{Imported, listed, quoted};

/// The pattern of `location /`.
const EVERYWHERE: &str = "/**";

/// A `limit_req`, where it is in force.
#[derive(Clone, Debug)]
struct Limit {
    line: usize,
    zone: String,
    burst: u64,
    /// How much of the burst is let through at once.
    at_once: u64,
}

impl PartialEq for Limit {
    fn eq(&self, other: &Limit) -> bool {
        (&self.zone, self.burst, self.at_once) == (&other.zone, other.burst, other.at_once)
    }
}

impl Eq for Limit {}

/// A zone as it is used: by which limit, watching only, and by which hosts on which paths.
struct Use {
    limit: Limit,
    dry_run: bool,
    hosts: Vec<String>,
    /// None is every path.
    paths: Vec<String>,
}

impl Use {
    /// Whether it is about requests for a place where nginx has other limits: policies that fit all count.
    fn is_beyond(&self, scope: &Scope) -> bool {
        let hosts = self.hosts.is_empty() || self.hosts.iter().any(|host| scope.hosts.contains(host));
        let below = |pattern: &String| {
            let prefix = pattern.strip_suffix("**").filter(|prefix| prefix.starts_with('/'));
            // What is no tree may lie in any.
            let inside = |path: &String, prefix: &str| path.starts_with(prefix) || !path.starts_with('/');
            prefix.is_some_and(|prefix| scope.path.as_ref().is_some_and(|path| inside(path, prefix)))
        };
        let paths = self.paths.is_empty() || self.paths.iter().any(below);
        let here = scope.limits.contains(&self.limit) && scope.dry_run == self.dry_run;
        hosts && paths && !here
    }
}

/// What is in force where nothing else is said.
#[derive(Clone, Default, PartialEq, Eq)]
struct Scope {
    limits: Vec<Limit>,
    dry_run: bool,
    hosts: Vec<String>,
    path: Option<String>,
    /// Whether it is that of a location that is about to be read.
    is_new: bool,
}

#[derive(Default)]
struct File {
    zones: HashMap<String, Zone>,
    order: Vec<String>,
    variables: Variables,
    uses: Vec<Use>,
    /// Every server and location, with what is in force there.
    scopes: Vec<Scope>,
}

/// Translates a file.
pub(super) fn import(text: &str) -> Result<Imported, (usize, String)> {
    let directives = parse(text)?;
    let (mut to, mut file) = (Imported::default(), File::default());
    define(&directives, &mut file, &mut to)?;
    scan(&directives, &Scope::default(), &mut file, &mut to);
    for name in std::mem::take(&mut file.order) {
        let (own, others): (Vec<Use>, Vec<Use>) =
            std::mem::take(&mut file.uses).into_iter().partition(|used| used.limit.zone == name);
        file.uses = others;
        if let Some(zone) = file.zones.get(&name) {
            write(&name, zone, &own, &file, &mut to);
        }
    }
    for used in &file.uses {
        to.note(used.limit.line, format!("zone `{}` is not defined in this file: left out", used.limit.zone));
    }
    Ok(to)
}

/// Reads what is defined once: zones, and the variables that their keys may be.
fn define(directives: &[Directive], file: &mut File, to: &mut Imported) -> Result<(), (usize, String)> {
    for directive in directives {
        let arguments = directive.arguments();
        match directive.name() {
            "limit_req_zone" => {
                let (name, zone) = zone(directive)?;
                file.order.push(name.clone());
                file.zones.insert(name, zone);
            }
            "geo" => {
                let name = arguments.last().cloned().unwrap_or_default();
                if arguments.len() == 1 {
                    file.variables.geos.insert(name, pairs(&directive.block));
                }
            }
            "map" => {
                if let [source, name] = arguments {
                    file.variables.maps.insert(name.clone(), (source.clone(), pairs(&directive.block)));
                }
            }
            "include" => {
                to.note(
                    directive.line,
                    format!("`include {}` is not followed; import that file too", arguments.join(" ")),
                );
            }
            _ => {}
        }
        if !matches!(directive.name(), "map" | "geo") {
            define(&directive.block, file, to)?;
        }
    }
    Ok(())
}

fn pairs(block: &[Directive]) -> Vec<(String, String)> {
    let pair =
        |directive: &Directive| Some((directive.words.first()?.clone(), directive.words.get(1)?.clone()));
    block.iter().filter_map(pair).collect()
}

/// Reads where limits are in force. A level that has limits of its own does not inherit any.
fn scan(directives: &[Directive], outer: &Scope, file: &mut File, to: &mut Imported) {
    let mut scope = Scope { is_new: false, ..outer.clone() };
    let named = |name: &'static str| directives.iter().filter(move |directive| directive.name() == name);
    let names: Vec<&Directive> = named("server_name").collect();
    if !names.is_empty() {
        scope.hosts = hosts(&names, to);
    }
    let own: Vec<Limit> = named("limit_req").filter_map(|directive| limit(directive, to)).collect();
    let has_own = !own.is_empty();
    if has_own {
        scope.limits = own;
    }
    if let Some(dry_run) = named("limit_req_dry_run").next() {
        scope.dry_run = dry_run.arguments() == ["on"];
    }
    remarks(directives, to);
    let is_server = !names.is_empty() || named("listen").next().is_some();
    let changed = has_own || scope.dry_run != outer.dry_run;
    if (changed || is_server) && !scope.limits.is_empty() {
        place(&scope, file);
    }
    // What a server says by itself is for what no location is about.
    let everywhere = named("location").any(|location| location.arguments() == ["/"]);
    if (is_server && !everywhere) || outer.is_new {
        file.scopes.push(scope.clone());
    }
    let blocks = directives.iter().filter(|d| !d.block.is_empty() || d.name() == "location");
    for directive in blocks {
        match directive.name() {
            "http" | "server" => scan(&directive.block, &scope, file, to),
            "location" => match path(directive.arguments()) {
                Ok(path) => scan(
                    &directive.block,
                    &Scope { path: Some(path), is_new: true, ..scope.clone() },
                    file,
                    to,
                ),
                Err(why) => {
                    let own_name = directive.arguments().join(" ");
                    if !own_name.starts_with('@') {
                        let path = Some(format!(" (location {own_name})"));
                        file.scopes.push(Scope { path, ..in_force(&directive.block, &scope) });
                    }
                    let own = directive.block.iter().any(|inner| inner.name().starts_with("limit_req"));
                    if own {
                        to.note(
                            directive.line,
                            format!(
                                "location {}: {why}: its limits are left out",
                                directive.arguments().join(" ")
                            ),
                        );
                    }
                }
            },
            "map" | "geo" | "upstream" | "types" | "events" | "stream" => {}
            other => {
                if directive.block.iter().any(|inner| inner.name() == "limit_req") {
                    to.note(directive.line, format!("limits in `{other}` are left out"));
                }
            }
        }
    }
}

/// What is in force in a location whose paths are no pattern.
fn in_force(block: &[Directive], outer: &Scope) -> Scope {
    let own = block.iter().filter(|inner| inner.name() == "limit_req");
    let limits: Vec<Limit> = own.filter_map(|directive| limit(directive, &mut Imported::default())).collect();
    Scope { limits: if limits.is_empty() { outer.limits.clone() } else { limits }, ..outer.clone() }
}

/// Notes what is near a limit and has no counterpart.
fn remarks(directives: &[Directive], to: &mut Imported) {
    for directive in directives {
        let arguments = directive.arguments();
        match directive.name() {
            "limit_req_status" if arguments != ["429"] => {
                to.note(directive.line, format!("refusals are 429 here, not {}", arguments.join(" ")));
            }
            "limit_req_log_level" => {
                to.note(directive.line, "limit_req_log_level is left out: every refusal has its line");
            }
            "limit_conn" | "limit_conn_zone" | "limit_rate" | "limit_rate_after" => {
                to.note(directive.line, format!("{} is left out: it limits no requests", directive.name()));
            }
            _ => {}
        }
    }
}

fn limit(directive: &Directive, to: &mut Imported) -> Option<Limit> {
    let mut limit = Limit { line: directive.line, zone: String::new(), burst: 0, at_once: 0 };
    let (mut nodelay, mut delay) = (false, 0);
    for word in directive.arguments() {
        match word.split_once('=') {
            Some(("zone", name)) => limit.zone = name.to_owned(),
            Some((name @ ("burst" | "delay"), number)) => match number.parse::<u64>() {
                Ok(number) if name == "burst" => limit.burst = number,
                Ok(number) => delay = number,
                Err(_) => {
                    to.note(
                        directive.line,
                        format!("limit_req: `{word}` is no number: the limit is left out"),
                    );
                    return None;
                }
            },
            None if word == "nodelay" => nodelay = true,
            _ => to.note(directive.line, format!("`{word}` is left out")),
        }
    }
    limit.at_once = if nodelay { limit.burst } else { delay.min(limit.burst) };
    Some(limit)
}

fn hosts(directives: &[&Directive], to: &mut Imported) -> Vec<String> {
    let mut hosts = Vec::new();
    for (directive, name) in directives.iter().flat_map(|d| d.arguments().iter().map(move |name| (d, name))) {
        match name.as_str() {
            "_" | "" => return Vec::new(),
            name if name.starts_with('~') || name.ends_with(".*") => {
                to.note(
                    directive.line,
                    format!(
                        "server_name {name} is no host that a policy can name: its limits count on every host"
                    ),
                );
                return Vec::new();
            }
            name => match name.strip_prefix('.') {
                Some(rest) => hosts.extend([rest.to_owned(), format!("*.{rest}")]),
                None => hosts.push(name.to_owned()),
            },
        }
    }
    hosts
}

/// The pattern of a location's paths.
fn path(arguments: &[String]) -> Result<String, &'static str> {
    match arguments {
        [modifier, path] if modifier == "=" => Ok(path.clone()),
        [modifier, path] if modifier == "^~" => prefix(path),
        [modifier, regex] if modifier == "~" => ending(regex),
        [modifier, _] if modifier == "~*" => Err("a pattern tells upper from lower case"),
        [name] if name.starts_with('@') => Err("a named location has no path"),
        [path] => prefix(path),
        _ => Err("not understood"),
    }
}

fn prefix(path: &str) -> Result<String, &'static str> {
    match path {
        path if path.contains('*') => Err("a path with `*`"),
        path if path.starts_with('/') => Ok(format!("{path}**")),
        _ => Err("no path"),
    }
}

/// The one kind of regular expression that is a pattern too: `\.php$`.
fn ending(regex: &str) -> Result<String, &'static str> {
    let plain = regex.strip_prefix("\\.").and_then(|rest| rest.strip_suffix('$'));
    let plain = plain.filter(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric()));
    plain.map(|ending| format!("**.{ending}")).ok_or("a regular expression is no pattern")
}

/// Adds the limits of a scope, to the same ones of the same hosts where there are any.
fn place(scope: &Scope, file: &mut File) {
    for limit in &scope.limits {
        let same = |used: &&mut Use| {
            used.limit == *limit && used.dry_run == scope.dry_run && used.hosts == scope.hosts
        };
        let path = scope.path.as_ref().filter(|path| *path != EVERYWHERE);
        match (file.uses.iter_mut().find(same), path) {
            (Some(used), Some(path)) if !used.paths.is_empty() => used.paths.push(path.clone()),
            (Some(used), _) => used.paths.clear(),
            (None, path) => file.uses.push(Use {
                limit: limit.clone(),
                dry_run: scope.dry_run,
                hosts: scope.hosts.clone(),
                paths: path.into_iter().cloned().collect(),
            }),
        }
    }
}

fn write(name: &str, zone: &Zone, uses: &[Use], file: &File, to: &mut Imported) {
    if uses.is_empty() {
        to.note(zone.line, format!("zone `{name}` is not used in this file: left out"));
        return;
    }
    let Some(subject) = subject(&zone.key, &file.variables, zone.line, to) else {
        to.note(zone.line, format!("zone `{name}` counts by {}, which no subject is: left out", zone.key));
        return;
    };
    if uses.len() > 1 {
        to.note(
            zone.line,
            format!("zone `{name}` is used in {} ways, each of which counts by itself here", uses.len()),
        );
    }
    for used in uses {
        for scope in file.scopes.iter().filter(|scope| used.is_beyond(scope)) {
            let place = format!("{}{}", scope.hosts.join(" "), scope.path.as_deref().unwrap_or_default());
            to.note(
                used.limit.line,
                format!("zone `{name}` counts requests for {place} too, where nginx does not"),
            );
        }
        let mut keys = Vec::new();
        let parts = [("host", &used.hosts), ("path", &used.paths)];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(key, list)| format!("{key} = {}", listed(list)))
            .collect();
        if !parts.is_empty() {
            keys.push(("match", format!("{{ {} }}", parts.join(", "))));
        }
        keys.push(("subject", quoted(&subject.0)));
        let Limit { burst, at_once, .. } = used.limit;
        // nginx lets one through and counts what exceeds the rate beside it.
        let quota = format!("{} burst {}", zone.rate, at_once.saturating_add(1));
        if at_once < burst {
            keys.push(("quota", quoted(&format!("{quota} queue {}", burst - at_once))));
            keys.push(("algorithm", quoted("leaky-queue")));
        } else {
            keys.push(("quota", quoted(&quota)));
        }
        if !matches!(subject.0.as_str(), "address") && !subject.0.starts_with("const:") {
            keys.push(("missing", quoted("skip")));
        }
        if !subject.1.is_empty() {
            keys.push(("allow", listed(&subject.1)));
        }
        keys.push(("keys", zone.keys.to_string()));
        if used.dry_run {
            keys.push(("shadow", "true".to_owned()));
        }
        to.push(name, keys);
    }
}

//! envoyproxy/ratelimit's YAML: a domain, and a tree of descriptors with limits.

use saphyr::{MarkedYaml, Scalar, YamlData};
use tollgate::{Algorithm, Entry, MAX_ENTRIES, Quota, Rule, Value};

use crate::import::tree::{Limit, Node, Path, dead_ends};
use crate::import::{Imported, listed, quoted};

type Yaml<'y> = MarkedYaml<'y>;

/// Where a file makes no sense, and why.
pub(super) type Wrong = (usize, String);

/// Translates a file.
pub(super) fn import(text: &str) -> Result<Imported, Wrong> {
    let documents = load(text).map_err(|error| (error.marker().line(), format!("no YAML: {error}")))?;
    let mut to = Imported::default();
    for document in &documents {
        let Some(domain) = field(document, "domain").and_then(scalar) else {
            return Err((
                line(document),
                "no `domain`: this is no configuration of envoyproxy/ratelimit".to_owned(),
            ));
        };
        unknown(document, &["domain", "descriptors"], &mut to);
        if domain == "tollgate" || domain.starts_with("tollgate.") {
            return Err((
                line(document),
                format!("the domain `{domain}` has a meaning of its own here; rename it"),
            ));
        }
        let Some(descriptors) = field(document, "descriptors") else { continue };
        let nodes = read_all(descriptors, 1, &mut to)?;
        write_all(&domain, &nodes, &[], &mut to);
        let mut ends: Vec<Path> = Vec::new();
        for (line, path) in dead_ends(&nodes, &Vec::new()) {
            if !ends.contains(&path) {
                write(&domain, &refs(&path), (&Limit::Unlimited, false, line), &mut to);
                ends.push(path);
            }
        }
    }
    Ok(to)
}

/// Loads a file with its scalars as they stand there: `007` is no 7.
fn load(text: &str) -> Result<Vec<Yaml<'_>>, saphyr::ScanError> {
    let mut loader = saphyr::YamlLoader::<Yaml<'_>>::default();
    loader.early_parse(false);
    saphyr_parser::Parser::new_from_str(text).load(&mut loader, true)?;
    Ok(loader.into_documents())
}

fn refs(path: &Path) -> Vec<(&Entry, bool)> {
    path.iter().map(|entry| (entry, false)).collect()
}

fn line(node: &Yaml<'_>) -> usize {
    node.span.start.line()
}

fn field<'n, 'y>(node: &'n Yaml<'y>, name: &str) -> Option<&'n Yaml<'y>> {
    let YamlData::Mapping(fields) = &node.data else { return None };
    let named = |name: &str| fields.iter().find(|(key, _)| scalar(key).as_deref() == Some(name));
    if let Some((_, value)) = named(name) {
        return Some(value);
    }
    // What is merged in counts where nothing is said beside it, the first of several first.
    match named("<<").map(|(_, merged)| (merged, &merged.data)) {
        Some((_, YamlData::Sequence(several))) => several.iter().find_map(|one| field(one, name)),
        Some((one, _)) => field(one, name),
        None => None,
    }
}

/// The text of a scalar, as it stands there.
fn scalar(node: &Yaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::Integer(number)) => Some(number.to_string()),
        YamlData::Value(Scalar::Boolean(truth)) => Some(truth.to_string()),
        YamlData::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        YamlData::Representation(text, ..) => Some(text.to_string()),
        _ => None,
    }
}

fn is_true(node: &Yaml<'_>, name: &str) -> bool {
    let text = field(node, name).and_then(scalar).unwrap_or_default().to_ascii_lowercase();
    ["true", "yes", "on", "y"].contains(&text.as_str())
}

/// Notes keys that nothing is made of.
fn unknown(node: &Yaml<'_>, known: &[&str], to: &mut Imported) {
    let YamlData::Mapping(fields) = &node.data else { return };
    for (key, _) in fields {
        let name = scalar(key).unwrap_or_default();
        if name != "<<" && !known.contains(&name.as_str()) {
            to.note(line(key), format!("`{name}` is left out"));
        }
    }
}

fn read_all(list: &Yaml<'_>, depth: usize, to: &mut Imported) -> Result<Vec<Node>, Wrong> {
    let YamlData::Sequence(items) = &list.data else {
        return Err((line(list), "expected a list of descriptors".to_owned()));
    };
    if depth > MAX_ENTRIES {
        return Err((line(list), format!("deeper than {MAX_ENTRIES} entries")));
    }
    let mut nodes: Vec<Node> = Vec::new();
    for item in items {
        let node = read(item, depth, to)?;
        // The first wildcard that fits was taken there, the longest is here.
        let hides = |earlier: &&Node| {
            earlier.entry != node.entry && earlier.entry.key == node.entry.key && hides(earlier, &node)
        };
        match nodes.iter().find(hides) {
            Some(earlier) => {
                let (wide, narrow) = (earlier.entry.to_string(), node.entry.to_string());
                to.note(
                    node.line,
                    format!("`{narrow}` is left out: `{wide}` stands before it and was taken first"),
                );
            }
            None => nodes.push(node),
        }
    }
    Ok(nodes)
}

/// Whether an earlier wildcard was taken for all that a later one fits.
fn hides(earlier: &Node, later: &Node) -> bool {
    match (&earlier.entry.value, &later.entry.value) {
        (Value::Prefix(wide), Value::Prefix(narrow)) => narrow.starts_with(wide.as_str()),
        _ => false,
    }
}

fn read(node: &Yaml<'_>, depth: usize, to: &mut Imported) -> Result<Node, Wrong> {
    let key = field(node, "key").and_then(scalar).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| (line(node), "a descriptor has a `key`".to_owned()))?;
    if key.contains('=') {
        return Err((line(node), format!("a key with `=` cannot be written as a policy: {key}")));
    }
    let value = match field(node, "value").and_then(scalar) {
        None => Value::Any,
        Some(value) if value.is_empty() => Value::Any,
        Some(value) => match value.strip_suffix('*') {
            Some(prefix) => Value::Prefix(prefix.to_owned()),
            None => Value::Exact(value),
        },
    };
    let known = ["key", "value", "rate_limit", "descriptors", "shadow_mode", "share_threshold"];
    unknown(node, &[&known[..], &["detailed_metric", "value_to_metric"]].concat(), to);
    for metric in ["detailed_metric", "value_to_metric"] {
        if is_true(node, metric) {
            to.note(
                line(node),
                format!("`{metric}` is left out: metrics are labelled by policy, never by value"),
            );
        }
    }
    let children = match field(node, "descriptors") {
        Some(children) => read_all(children, depth + 1, to)?,
        None => Vec::new(),
    };
    let limit = match field(node, "rate_limit") {
        Some(limit) => read_limit(limit, to)?,
        // Neither a limit nor anything below: let through on purpose.
        None if children.is_empty() => Some(Limit::Unlimited),
        None => None,
    };
    let (shared, shadow) = (is_true(node, "share_threshold"), is_true(node, "shadow_mode"));
    Ok(Node { line: line(node), entry: Entry { key, value }, shared, limit, shadow, children })
}

fn read_limit(node: &Yaml<'_>, to: &mut Imported) -> Result<Option<Limit>, Wrong> {
    unknown(node, &["unit", "requests_per_unit", "unlimited", "name", "replaces"], to);
    if field(node, "replaces").is_some() {
        to.note(line(node), "`replaces` is left out: where both limits fit one request, both count");
    }
    if is_true(node, "unlimited") {
        return Ok(Some(Limit::Unlimited));
    }
    let requests =
        field(node, "requests_per_unit").and_then(scalar).and_then(|number| number.parse::<u64>().ok());
    let requests =
        requests.ok_or_else(|| (line(node), "expected `requests_per_unit`, a whole number".to_owned()))?;
    let unit = field(node, "unit").and_then(scalar).unwrap_or_default().to_ascii_lowercase();
    let window = match unit.as_str() {
        "second" => "1s",
        "minute" => "1m",
        "hour" => "1h",
        "day" => "1d",
        "week" => "7d",
        "month" => "30d",
        "year" => "365d",
        _ => {
            return Err((
                line(node),
                format!("`{unit}` is no unit; expected second, minute, hour, day, week, month or year"),
            ));
        }
    };
    if requests == 0 {
        to.note(line(node), "a limit of 0 becomes a deny list: 403 instead of 429");
        return Ok(Some(Limit::Nothing));
    }
    let quota = format!("{requests}/{window}");
    let rule = quota.parse::<Quota>().ok().map(|quota| Rule::new(quota, Algorithm::FixedWindow));
    if !matches!(rule, Some(Ok(_))) {
        to.note(line(node), format!("{quota} is more than can be counted: nothing is limited"));
        return Ok(Some(Limit::Unlimited));
    }
    Ok(Some(Limit::Quota(quota)))
}

fn write_all(domain: &str, nodes: &[Node], above: &[(&Entry, bool)], to: &mut Imported) {
    for node in nodes {
        let path = [above, &[(&node.entry, node.shared)]].concat();
        if let Some(limit) = &node.limit {
            write(domain, &path, (limit, node.shadow, node.line), to);
        }
        write_all(domain, &node.children, &path, to);
    }
}

/// Writes the policy of one way through the tree.
fn write(
    domain: &str,
    path: &[(&Entry, bool)],
    (limit, shadow, line): (&Limit, bool, usize),
    to: &mut Imported,
) {
    let entries: Vec<String> = path.iter().map(|(entry, _)| entry.to_string()).collect();
    let matches = format!("{{ domain = {}, descriptor = {} }}", quoted(domain), listed(&entries));
    let mut keys = vec![("match", matches)];
    match limit {
        Limit::Quota(quota) => {
            keys.push(("quota", quoted(quota)));
            keys.push(("algorithm", quoted("fixed-window")));
            keys.extend(subject(path, line, to).map(|subject| ("subject", quoted(&subject))));
        }
        Limit::Unlimited => {
            keys.push(("subject", quoted("const:unlimited")));
            keys.push(("quota", quoted("1/1s")));
            keys.push(("allow", quoted("subject:unlimited")));
        }
        Limit::Nothing => {
            keys.push(("subject", quoted("const:nobody")));
            keys.push(("quota", quoted("1/1s")));
            keys.push(("deny", quoted("subject:nobody")));
        }
    }
    if shadow {
        keys.push(("shadow", "true".to_owned()));
    }
    to.push(&format!("{domain}.{}", entries.join(".")), keys);
}

/// Who is counted, where it is not the whole descriptor: values that share a threshold are one.
fn subject(path: &[(&Entry, bool)], line: usize, to: &mut Imported) -> Option<String> {
    if path.iter().all(|(_, shared)| !shared) {
        return None;
    }
    let open = path.iter().filter(|(entry, shared)| !shared && !matches!(entry.value, Value::Exact(_)));
    match open.collect::<Vec<_>>().as_slice() {
        [] => Some("const:all".to_owned()),
        [(entry, _)] if path.iter().filter(|(other, _)| other.key == entry.key).count() == 1 => {
            Some(format!("descriptor:{}", entry.key))
        }
        _ => {
            to.note(
                line,
                "`share_threshold` is left out: beside other open values each value counts by itself",
            );
            None
        }
    }
}

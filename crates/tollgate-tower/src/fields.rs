//! The `RateLimit` field of the IETF draft, as a client reads it.

use std::time::Duration;

use http::HeaderMap;

/// The longest field that is read, in bytes.
const MAX_FIELD_BYTES: usize = 4_096;

/// How long to pause, by `RateLimit` fields: for the policies with `r=0` until something is left. That is `t`, or sooner where
/// `RateLimit-Policy` says how much comes back in which time: as long as one unit takes. A field that cannot be read says nothing.
pub(crate) fn pause(headers: &HeaderMap) -> Option<Duration> {
    let quotas = read(headers, "ratelimit-policy").unwrap_or_default();
    let mut longest = None;
    for (name, item) in read(headers, "ratelimit")? {
        let (Some(0), Some(time)) = (number(item, "r")?, number(item, "t")?) else { continue };
        let quota = quotas.iter().find(|(other, _)| *other == name);
        let one = quota.and_then(|(_, item)| {
            let (units, window) = (number(item, "q")??, number(item, "w")??);
            Some(window.div_ceil(units.max(1)))
        });
        longest = longest.max(Some(one.map_or(time, |one| one.min(time))));
    }
    longest.map(Duration::from_secs)
}

/// The items of all lines of a field: names, and what stands after them.
fn read<'h>(headers: &'h HeaderMap, field: &str) -> Option<Vec<(&'h str, &'h str)>> {
    let mut read = Vec::new();
    for line in headers.get_all(field) {
        let line = line.to_str().ok().filter(|line| line.len() <= MAX_FIELD_BYTES)?;
        read.append(&mut items(line)?);
    }
    Some(read)
}

/// What stands between commas: names in quotes, and parameters; `None` when that is not what stands there.
fn items(line: &str) -> Option<Vec<(&str, &str)>> {
    let mut items = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix('"')?.split_once('"')?;
        let (item, next) =
            after.split_once(',').map_or((after, ""), |(item, next)| (item, next.trim_start()));
        items.push((name, item.trim()));
        rest = next;
    }
    Some(items)
}

/// A parameter: `None` when it is no number, nothing inside when it is not there.
fn number(item: &str, name: &str) -> Option<Option<u64>> {
    let parameters = item.split(';').filter_map(|parameter| parameter.trim().split_once('='));
    match parameters.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back() {
        None => Some(None),
        Some(value) => Some(Some(value.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(field: &str, policy: &str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", field.parse().unwrap());
        headers.insert("ratelimit-policy", policy.parse().unwrap());
        pause(&headers).map(|pause| pause.as_secs())
    }

    #[test]
    fn what_is_left_is_read_and_nonsense_is_not() {
        for (field, expected) in [
            ("\"a\";r=0;t=12", Some(12)),
            ("\"a\";r=3;t=12", None),
            ("\"a\";r=0;t=12, \"b\";t=40;r=0;pk=:AA==:", Some(40)),
            ("\"a, b\";r=0;t=7,\"c\";r=1;t=90", Some(7)),
            ("\"a\";r=0", None),
            ("a;r=0;t=12", None),
            ("\"a\";r=-1;t=12", None),
            ("\"a\";r=0;t=soon", None),
            ("\"a", None),
            ("", None),
        ] {
            assert_eq!(seconds(field, ""), expected, "{field}");
        }
    }

    #[test]
    fn one_waits_for_one_unit_and_not_for_all() {
        let field = "\"a\";r=0;t=3600";
        assert_eq!(seconds(field, "\"a\";q=100;w=3600"), Some(36));
        assert_eq!(seconds(field, "\"b\";q=100;w=3600"), Some(3_600));
        assert_eq!(seconds(field, "\"a\";q=0;w=3600"), Some(3_600));
        assert_eq!(seconds(field, "\"a\";q=100"), Some(3_600));
        assert_eq!(seconds("\"a\";r=0;t=2", "\"a\";q=1;w=60"), Some(2), "t says when");
        assert_eq!(seconds(field, "a nonsense"), Some(3_600));
    }
}

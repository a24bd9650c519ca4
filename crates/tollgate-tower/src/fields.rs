//! The `RateLimit` field of the IETF draft, as a client reads it.

use std::time::Duration;

use http::HeaderMap;

/// The longest field that is read, in bytes.
const MAX_FIELD_BYTES: usize = 4_096;

/// How long nothing is left, by a `RateLimit` field: the longest `t` of the policies with `r=0`. A field that cannot be read says
/// nothing.
pub(crate) fn exhausted(headers: &HeaderMap) -> Option<Duration> {
    let mut longest = None;
    for line in headers.get_all("ratelimit") {
        let line = line.to_str().ok().filter(|line| line.len() <= MAX_FIELD_BYTES)?;
        for item in items(line)? {
            let (left, time) = parameters(item)?;
            if left == Some(0) {
                longest = longest.max(time);
            }
        }
    }
    longest.map(Duration::from_secs)
}

/// What stands between commas, after its name in quotes; `None` when that is not what stands there.
fn items(line: &str) -> Option<Vec<&str>> {
    let mut items = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let name = rest.strip_prefix('"')?;
        let end = name.find('"')?;
        let after = name.get(end + 1..)?;
        let (item, next) =
            after.split_once(',').map_or((after, ""), |(item, next)| (item, next.trim_start()));
        items.push(item.trim());
        rest = next;
    }
    Some(items)
}

fn parameters(item: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (mut left, mut time) = (None, None);
    for parameter in item.split(';').map(str::trim).filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("r", number)) => left = Some(number.parse().ok()?),
            Some(("t", number)) => time = Some(number.parse().ok()?),
            _ => {}
        }
    }
    Some((left, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_read_and_nonsense_is_not() {
        for (field, seconds) in [
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
            let headers: HeaderMap =
                [("ratelimit".parse().unwrap(), field.parse().unwrap())].into_iter().collect();
            assert_eq!(exhausted(&headers), seconds.map(Duration::from_secs), "{field}");
        }
    }
}

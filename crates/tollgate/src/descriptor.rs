//! Descriptors: lists of keys and values by which Envoy describes a request, and the patterns of policies about them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayVec;

/// The most entries of one descriptor.
pub const MAX_ENTRIES: usize = 16;

/// Which descriptors a policy is about: those of a domain with exactly these keys, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The domain.
    pub domain: String,
    /// The entries. At most [`MAX_ENTRIES`].
    pub entries: Vec<Entry>,
}

/// One entry of a pattern: `key`, `key=value` or `key=prefix*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
}

/// Which values an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Any.
    Any,
    /// Those that begin like this.
    Prefix(String),
    /// This one.
    Exact(String),
}

/// How specific a pattern is: entry by entry, a value before a longer prefix before a shorter one before none.
pub(crate) type Rank = ArrayVec<usize, MAX_ENTRIES>;

impl Pattern {
    /// How specific this pattern is, if a descriptor fits it.
    pub(crate) fn rank(&self, domain: &str, entries: &[(&str, &str)]) -> Option<Rank> {
        if domain != self.domain || entries.len() != self.entries.len() {
            return None;
        }
        self.entries.iter().zip(entries).map(|(entry, (key, value))| entry.rank(key, value)).collect()
    }
}

impl Entry {
    fn rank(&self, key: &str, value: &str) -> Option<usize> {
        if key != self.key {
            return None;
        }
        match &self.value {
            Value::Any => Some(0),
            Value::Prefix(prefix) => value.starts_with(prefix.as_str()).then_some(1 + prefix.len()),
            Value::Exact(exact) => (value == exact).then_some(usize::MAX),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Any => f.write_str(&self.key),
            Value::Prefix(prefix) => write!(f, "{}={prefix}*", self.key),
            Value::Exact(value) => write!(f, "{}={value}", self.key),
        }
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
        if key.is_empty() {
            return Err(format!("`{text}` has no key; expected KEY, KEY=VALUE or KEY=PREFIX*"));
        }
        let value = match value {
            None => Value::Any,
            Some(value) => match value.strip_suffix('*') {
                Some(prefix) => Value::Prefix(prefix.to_owned()),
                None => Value::Exact(value.to_owned()),
            },
        };
        Ok(Entry { key: key.to_owned(), value })
    }
}

/// The subject that a whole descriptor is: the value of its one entry, or the values of several with `/` between them (and
/// `%2F`, `%25` for `/` and `%` in them, so that no two lists are one subject).
pub(crate) fn subject<'e>(entries: &[(&str, &'e str)]) -> Cow<'e, str> {
    if let [(_, value)] = entries {
        // An empty value is one too, and no value has this in it.
        return Cow::Borrowed(if value.is_empty() { "\0" } else { value });
    }
    let escaped = entries.iter().map(|(_, value)| value.replace('%', "%25").replace('/', "%2F"));
    Cow::Owned(escaped.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(entries: &[&str]) -> Pattern {
        let entries = entries.iter().map(|entry| entry.parse().unwrap()).collect();
        Pattern { domain: "d".to_owned(), entries }
    }

    #[test]
    fn the_most_specific_pattern_ranks_highest_decided_at_the_first_difference() {
        let asked = [("a", "foobar"), ("b", "x")];
        let rank = |entries: &[&str]| pattern(entries).rank("d", &asked);
        let ordered = [
            rank(&["a", "b"]),
            rank(&["a", "b=x"]),
            rank(&["a=fo*", "b"]),
            rank(&["a=foo*", "b"]),
            rank(&["a=foobar", "b"]),
            rank(&["a=foobar", "b=*"]),
            rank(&["a=foobar", "b=x"]),
        ];
        assert!(ordered.is_sorted() && ordered.iter().all(Option::is_some));
        for other in [&["a"][..], &["b", "a"], &["a=x", "b"], &["a", "b=y*"], &["a", "b", "c"]] {
            assert_eq!(rank(other), None, "{other:?}");
        }
        assert_eq!(pattern(&["a", "b"]).rank("e", &asked), None);
    }

    #[test]
    fn no_two_descriptors_are_one_subject() {
        assert_eq!(subject(&[("a", "x/y")]), "x/y");
        assert_eq!(subject(&[("a", "x/y"), ("b", "z")]), "x%2Fy/z");
        assert_eq!(subject(&[("a", "x"), ("b", "y/z")]), "x/y%2Fz");
        assert_eq!(subject(&[("a", "x%2Fy"), ("b", "z")]), "x%252Fy/z");
    }
}

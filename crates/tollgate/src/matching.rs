//! Which requests a policy is about.

use http::HeaderName;

use crate::Request;
use crate::descriptor::Pattern;

/// What a policy is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum About {
    /// Requests.
    #[default]
    Requests,
    /// Descriptors, by which Envoy describes requests.
    Descriptors(Pattern),
    /// Whoever asks by the policy's name, and nobody else.
    Name,
    /// The command `CL.THROTTLE`, whose askers choose their quota within the policy's.
    Throttle,
}

/// What a request must look like. Every part that is given must hold; an empty `Match` holds for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// One of these methods, in capitals; any when empty.
    pub methods: Vec<String>,
    /// One of these hosts: a name, `*.example.com` for every name below it, or `*`.
    pub hosts: Vec<String>,
    /// One of these paths: see [`path_matches`].
    pub paths: Vec<String>,
    /// All of these header fields, with this value, or any when it is `*`.
    pub headers: Vec<(HeaderName, String)>,
    /// Whether it is about requests at all.
    pub about: About,
}

impl Match {
    /// Whether `request` is such a request; `paths` are its [`Request::path_readings`], of which one is enough.
    pub fn matches(&self, request: &Request<'_>, paths: &[impl AsRef<str>]) -> bool {
        let any =
            |list: &[String], test: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|p| test(p));
        self.about == About::Requests
            && any(&self.methods, &|method| method.eq_ignore_ascii_case(request.method))
            && any(&self.hosts, &|host| host_matches(host, request.host_name()))
            && any(&self.paths, &|pattern| paths.iter().any(|path| path_matches(pattern, path.as_ref())))
            && self.headers.iter().all(|(name, value)| {
                let mut lines = request.headers.get_all(name).iter();
                lines.any(|line| value == "*" || line.as_bytes() == value.as_bytes())
            })
    }
}

fn host_matches(pattern: &str, host: &str) -> bool {
    if pattern == "*" || pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(suffix) = pattern.strip_prefix('*') else { return false };
    let at = host.len().checked_sub(suffix.len()).filter(|at| *at > 0);
    at.and_then(|at| host.get(at..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

/// Whether a path fits a pattern: `*` stands for any characters but a slash, `**` for any at all.
///
/// ```
/// use tollgate::path_matches;
/// assert!(path_matches("/login", "/login"));
/// assert!(path_matches("/users/*/posts", "/users/7/posts"));
/// assert!(!path_matches("/users/*", "/users/7/posts"));
/// assert!(path_matches("/api/**", "/api/v1/users"));
/// assert!(path_matches("/api/**", "/api"));
/// assert!(path_matches("/*.png", "/logo.png"));
/// ```
pub fn path_matches(pattern: &str, path: &str) -> bool {
    if let Some(prefix) = pattern.strip_suffix("/**")
        && path_matches(prefix, path)
    {
        return true;
    }
    glob(pattern.as_bytes(), path.as_bytes())
}

/// Matches with one point to go back to for the last `*` and one for the last `**`: linear for a single wildcard, at most
/// pattern times path squared.
fn glob(pattern: &[u8], path: &[u8]) -> bool {
    let (mut p, mut s) = (0, 0);
    let mut single: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        match pattern.get(p) {
            Some(b'*') if pattern.get(p + 1) == Some(&b'*') => {
                p += 2;
                (double, single) = (Some((p, s)), None);
                continue;
            }
            Some(b'*') => {
                p += 1;
                single = Some((p, s));
                continue;
            }
            None if s == path.len() => return true,
            Some(byte) if path.get(s) == Some(byte) => {
                p += 1;
                s += 1;
                continue;
            }
            _ => {}
        }
        if let Some((after, from)) = single
            && path.get(from).is_some_and(|byte| *byte != b'/')
        {
            single = Some((after, from + 1));
            (p, s) = (after, from + 1);
        } else if let Some((after, from)) = double
            && from < path.len()
        {
            (double, single) = (Some((after, from + 1)), None);
            (p, s) = (after, from + 1);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_match_whole_names_and_subdomains() {
        assert!(host_matches("*", "anything"));
        assert!(host_matches("Example.com", "example.COM"));
        assert!(host_matches("*.example.com", "a.b.example.com"));
        assert!(!host_matches("*.example.com", "example.com"));
        assert!(!host_matches("*.example.com", "badexample.com"));
        assert!(!host_matches("example.com", "example.com.evil"));
    }

    #[test]
    fn paths_match_segments_and_trees() {
        for (pattern, path, matches) in [
            ("/", "/", true),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/a*", "/abc", true),
            ("/a*", "/abc/d", false),
            ("/*/x", "/a/x", true),
            ("/*/x", "/a/b/x", false),
            ("/**/x", "/a/b/x", true),
            ("/**/x/*.js", "/a/x/b/x/c.js", true),
            ("/**/x/*.js", "/a/x/b/c.js", false),
            ("/a/**/z", "/a/z", false),
            ("/login", "/login2", false),
            ("/login", "/Login", false),
            ("*", "/a", false),
            ("**", "/a/b", true),
        ] {
            assert_eq!(path_matches(pattern, path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn a_hostile_pattern_and_path_end_in_time() {
        let pattern = "*a".repeat(40);
        let path = "a".repeat(4_000) + "b";
        assert!(!path_matches(&pattern, &path));
        assert!(!path_matches(&"**a".repeat(40), &path));
    }
}

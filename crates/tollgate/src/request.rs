//! What a door knows of a request.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;

/// The attributes that policies match and take their subjects from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The host, with or without a port.
    pub host: &'a str,
    /// The path as it was sent, without the query.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The client's address, as the door made it out.
    pub address: Option<IpAddr>,
    /// The size of the body, where it was announced.
    pub size: Option<u64>,
}

impl<'a> Request<'a> {
    /// The one line of a header. Two lines are ambiguous: whoever reads it later may choose the other, so neither counts.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next()?;
        if lines.next().is_some() { None } else { Some(line.as_bytes()).filter(|line| !line.is_empty()) }
    }

    /// The value of a cookie.
    pub fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        let pairs = self.headers.get_all(http::header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut values = pairs.flat_map(|line| line.split(';')).filter_map(|pair| {
            let (cookie, value) = pair.trim().split_once('=')?;
            (cookie == name).then(|| value.trim_matches('"').as_bytes())
        });
        values.next().filter(|value| !value.is_empty())
    }

    /// The first value of a query parameter, percent-decoded.
    pub fn query_value(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        let mut pairs = self.query?.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(key, _)| percent_decode(key, |_| true) == name.as_bytes())?;
        Some(percent_decode(value, |_| true)).filter(|value| !value.is_empty())
    }

    /// The token of `Authorization: Bearer`.
    pub fn bearer(&self) -> Option<&'a [u8]> {
        let (scheme, token) = self.header("authorization")?.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
    }

    /// The host without its port.
    pub fn host_name(&self) -> &'a str {
        match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
            _ => self.host,
        }
    }

    /// Whether a browser asks if it may ask: a CORS preflight, which is not charged.
    pub fn is_preflight(&self) -> bool {
        self.method == "OPTIONS"
            && self.headers.contains_key(http::header::ORIGIN)
            && self.headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// The path as patterns see it, so that no other spelling of a path slips past its policy: escapes decoded (save
    /// `%2F`, and `%25`), dots resolved, slashes merged, no slash at the end.
    pub fn normal_path(&self) -> Cow<'a, str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/!$&'()*+,;=:@".contains(&byte);
        let tidy = self.path.starts_with('/')
            && !self.path.contains("//")
            && !self.path.contains("/.")
            && self.path.bytes().all(plain)
            && (self.path.len() == 1 || !self.path.ends_with('/'));
        if tidy {
            return Cow::Borrowed(self.path);
        }
        let decoded = percent_decode(self.path, |byte| byte != b'/' && byte != b'%');
        let decoded = String::from_utf8_lossy(&decoded);
        let mut segments: Vec<&str> = Vec::new();
        for segment in decoded.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment),
            }
        }
        Cow::Owned(format!("/{}", segments.join("/")))
    }
}

/// Decodes `%41` where `decode` agrees with the byte; what is no escape stays as it is.
fn percent_decode(text: &str, decode: impl Fn(u8) -> bool) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut rest = text.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let Some((first, tail)) = rest.split_first() {
        let escape = if *first == b'%' { tail.first_chunk::<2>().and_then(hex) } else { None };
        match escape.filter(|byte| decode(*byte)) {
            Some(byte) => {
                decoded.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(decoded)
}

fn hex(digits: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(digits[0])? * 16 + digit(digits[1])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(path: &'a str, query: Option<&'a str>, headers: &'a HeaderMap) -> Request<'a> {
        Request { method: "GET", host: "Example.com:8080", path, query, headers, address: None, size: None }
    }

    #[test]
    fn other_spellings_of_a_path_are_that_path() {
        let headers = HeaderMap::new();
        for path in [
            "/login",
            "/login/",
            "//login",
            "/./login",
            "/a/../login",
            "/%6Cogin",
            "/%6cogin//",
            "/a/%2e%2e/login",
        ] {
            assert_eq!(request(path, None, &headers).normal_path(), "/login", "{path}");
        }
        assert_eq!(request("/a%2Fb", None, &headers).normal_path(), "/a%2Fb");
        assert_eq!(request("/a%zz%", None, &headers).normal_path(), "/a%zz%");
        assert_eq!(request("/", None, &headers).normal_path(), "/");
        assert_eq!(request("", None, &headers).normal_path(), "/");
        assert_eq!(request("/../../etc", None, &headers).normal_path(), "/etc");
    }

    #[test]
    fn values_are_found_where_clients_put_them() {
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "alice".parse().unwrap());
        headers.append("x-twice", "a".parse().unwrap());
        headers.append("x-twice", "b".parse().unwrap());
        headers.append("cookie", "a=1; sid=\"xyz\"".parse().unwrap());
        headers.append("cookie", "b=2".parse().unwrap());
        headers.insert("authorization", "bearer  tok ".parse().unwrap());
        let request = request("/", Some("a=1&k%65y=v%20w&key=other"), &headers);
        assert_eq!(request.header("x-user"), Some(&b"alice"[..]));
        assert_eq!(request.header("x-twice"), None);
        assert_eq!(request.cookie("sid"), Some(&b"xyz"[..]));
        assert_eq!(request.cookie("b"), Some(&b"2"[..]));
        assert_eq!(request.query_value("key").as_deref(), Some(&b"v w"[..]));
        assert_eq!(request.query_value("none"), None);
        assert_eq!(request.bearer(), Some(&b"tok"[..]));
        assert_eq!(request.host_name(), "Example.com");
    }
}

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

/// What a request has to say of something that it should say once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<T> {
    /// This.
    Once(T),
    /// Nothing, or nothing but an empty value.
    Not,
    /// More than one thing. Whoever reads it later may choose the other one, so none of them counts.
    Ambiguously,
}

impl<T> Said<T> {
    /// What was said, if it was said once.
    pub fn once(self) -> Option<T> {
        if let Said::Once(value) = self { Some(value) } else { None }
    }

    fn of(mut values: impl Iterator<Item = T>) -> Self {
        match (values.next(), values.next()) {
            (None, _) => Said::Not,
            (Some(value), None) => Said::Once(value),
            (Some(_), Some(_)) => Said::Ambiguously,
        }
    }

    fn filled(self, empty: impl Fn(&T) -> bool) -> Self {
        match self {
            Said::Once(value) if empty(&value) => Said::Not,
            said => said,
        }
    }
}

impl<'a> Request<'a> {
    /// The line of a header.
    pub fn header(&self, name: &str) -> Said<&'a [u8]> {
        let lines = self.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
        Said::of(lines).filled(|line| line.is_empty())
    }

    /// The value of a cookie.
    pub fn cookie(&self, name: &str) -> Said<&'a [u8]> {
        let lines = self.headers.get_all(http::header::COOKIE).iter().map(http::HeaderValue::as_bytes);
        let values = lines.flat_map(|line| line.split(|byte| *byte == b';')).filter_map(|pair| {
            let pair = pair.trim_ascii();
            let at = pair.iter().position(|byte| *byte == b'=')?;
            (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii())
        });
        let bare =
            |value: &'a [u8]| value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
        Said::of(values.map(bare)).filled(|value| value.is_empty())
    }

    /// The value of a query parameter, decoded as forms are: `+` is a space.
    pub fn query_value(&self, name: &str) -> Said<Vec<u8>> {
        let decode = |text: &str| percent_decode(&text.replace('+', " "), |_| true).into_owned();
        let pairs = self.query.unwrap_or_default().split('&');
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let values = pairs.filter(|(key, _)| decode(key) == name.as_bytes()).map(|(_, value)| decode(value));
        Said::of(values).filled(Vec::is_empty)
    }

    /// The token of `Authorization: Bearer`.
    pub fn bearer(&self) -> Said<&'a [u8]> {
        match self.header("authorization") {
            Said::Once(line) => match line.split_at_checked(7) {
                Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                    Said::Once(token.trim_ascii()).filled(|token| token.is_empty())
                }
                _ => Said::Not,
            },
            other => other,
        }
    }

    /// The host alone: without port, user and the final dot of a full name.
    pub fn host_name(&self) -> &'a str {
        let host = self.host.rsplit_once('@').map_or(self.host, |(_user, host)| host);
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
            _ => host,
        };
        name.strip_suffix('.').unwrap_or(name)
    }

    /// Whether a browser asks if it may ask: a CORS preflight, which is not charged.
    pub fn is_preflight(&self) -> bool {
        self.method == "OPTIONS"
            && self.headers.contains_key(http::header::ORIGIN)
            && self.headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// The path as origins may read it, so that no other spelling slips past its policy: escapes decoded, dots resolved,
    /// slashes merged, no slash at the end. There is a second reading where origins differ: with `%2F` decoded too, and
    /// without the parameters (`;v=1`) of segments.
    pub fn path_readings(&self) -> Vec<Cow<'a, str>> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/!$&'()*+,=:@".contains(&byte);
        let tidy = self.path.starts_with('/')
            && !self.path.contains("//")
            && !self.path.contains("/.")
            && self.path.bytes().all(plain)
            && (self.path.len() == 1 || !self.path.ends_with('/'));
        if tidy {
            return vec![Cow::Borrowed(self.path)];
        }
        let cautious = normal(self.path, |byte| byte != b'/' && byte != b'%', false);
        let eager = normal(self.path, |byte| byte != b'%', true);
        if eager == cautious { vec![cautious.into()] } else { vec![cautious.into(), eager.into()] }
    }
}

/// A path with these escapes decoded, dots resolved and slashes merged.
pub(crate) fn normal(path: &str, decode: impl Fn(u8) -> bool, without_parameters: bool) -> String {
    let decoded = percent_decode(path, decode);
    let decoded = String::from_utf8_lossy(&decoded);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        let bare = segment.split(';').next().unwrap_or_default();
        match if without_parameters { bare } else { segment } {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
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

    fn readings(path: &str) -> Vec<String> {
        let headers = HeaderMap::new();
        request(path, None, &headers).path_readings().into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn other_spellings_of_a_path_are_that_path() {
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
            assert_eq!(readings(path), ["/login"], "{path}");
        }
        for path in ["/login;v=1", "/a/..;/login", "/%2Flogin", "/a%2f..%2Flogin"] {
            assert!(readings(path).contains(&"/login".to_owned()), "{path}: {:?}", readings(path));
        }
        assert_eq!(readings("/a%2Fb"), ["/a%2Fb", "/a/b"]);
        assert_eq!(readings("/a%zz%"), ["/a%zz%"]);
        assert_eq!(readings("/"), ["/"]);
        assert_eq!(readings(""), ["/"]);
        assert_eq!(readings("/../../etc"), ["/etc"]);
    }

    #[test]
    fn values_are_found_where_clients_put_them() {
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "alice".parse().unwrap());
        headers.append("x-twice", "a".parse().unwrap());
        headers.append("x-twice", "b".parse().unwrap());
        headers.append("x-empty", "".parse().unwrap());
        headers.append("cookie", "a=1; sid=\"xyz\"; t=1".parse().unwrap());
        headers.append("cookie", http::HeaderValue::from_bytes(b"b=\xFF; t=2").unwrap());
        headers.insert("authorization", "bearer  tok ".parse().unwrap());
        let request = request("/", Some("a=1&k%65y=v%20w&other=x+y&d=1&d=2&e="), &headers);
        assert_eq!(request.header("x-user"), Said::Once(&b"alice"[..]));
        assert_eq!(request.header("x-twice"), Said::Ambiguously);
        assert_eq!((request.header("x-empty"), request.header("x-none")), (Said::Not, Said::Not));
        assert_eq!(request.cookie("sid"), Said::Once(&b"xyz"[..]));
        assert_eq!(request.cookie("b"), Said::Once(&b"\xFF"[..]));
        assert_eq!((request.cookie("t"), request.cookie("u")), (Said::Ambiguously, Said::Not));
        assert_eq!(request.query_value("key"), Said::Once(b"v w".to_vec()));
        assert_eq!(request.query_value("other"), Said::Once(b"x y".to_vec()));
        assert_eq!(request.query_value("d"), Said::Ambiguously);
        assert_eq!((request.query_value("none"), request.query_value("e")), (Said::Not, Said::Not));
        assert_eq!(request.bearer(), Said::Once(&b"tok"[..]));
        assert_eq!(request.host_name(), "Example.com");
        let full = Request { host: "me@example.com.:80", ..request };
        assert_eq!(full.host_name(), "example.com");
    }
}

//! One line of an access log: common, combined, or JSON as nginx and Caddy write it.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value};
use tollgate::SECOND;

/// The longest line that is read, in bytes.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// The request that a line tells of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged<'l> {
    /// When, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// Who, as the log has it: an address, or a name.
    pub client: Cow<'l, str>,
    /// The method.
    pub method: Cow<'l, str>,
    /// The host, where the log has it.
    pub host: Cow<'l, str>,
    /// Path and query.
    pub target: Cow<'l, str>,
    /// The header fields that the log has.
    pub headers: HeaderMap,
    /// The status of the response, where the log has it.
    pub status: Option<StatusCode>,
    /// The bytes of its body, where the log has them.
    pub sent: Option<u64>,
}

/// Reads a line, `None` when it tells of no request.
pub fn parse(line: &str) -> Option<Logged<'_>> {
    let line = line.trim();
    if line.len() > MAX_LINE_BYTES {
        return None;
    }
    if line.starts_with('{') { parse_json(line) } else { parse_clf(line) }
}

/// `client ident user [time] "METHOD target protocol" status bytes "referer" "agent"`.
fn parse_clf(line: &str) -> Option<Logged<'_>> {
    let (mut client, rest) = line.split_once(' ')?;
    let (names, rest) = rest.split_once('[')?;
    let mut host = "";
    // Some put the host that was asked for before the client.
    if let Some((second, _)) = names.split_once(' ')
        && tollgate::client::address(client).is_none()
        && tollgate::client::address(second).is_some()
    {
        (host, client) = (client, second);
    }
    let (time, rest) = rest.split_once(']')?;
    let (request, rest) = quoted(rest)?;
    let (method, target) = request_line(request)?;
    let mut logged = Logged {
        time: clf_time(time)?,
        client: client.into(),
        host: host.into(),
        method: method.into(),
        target: target.into(),
        ..Logged::default()
    };
    let mut words = rest.split_ascii_whitespace();
    let status = words.next()?;
    logged.status = status.parse().ok();
    logged.sent = words.next().and_then(|bytes| bytes.parse().ok());
    if status.len() != 3 || !status.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if let Some((referer, rest)) = quoted(rest) {
        header(&mut logged.headers, "referer", referer);
        if let Some((agent, _)) = quoted(rest) {
            header(&mut logged.headers, "user-agent", agent);
        }
    }
    Some(logged)
}

/// The text of the next pair of quotes, escapes left as they are, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    let mut escaped = false;
    let end = rest.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some((&rest[..end], &rest[end + 1..]))
}

fn request_line(request: &str) -> Option<(&str, &str)> {
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next()?, words.next()?);
    (is_method(method) && words.next().is_none_or(|protocol| protocol.starts_with("HTTP/")))
        .then_some((method, target))
}

fn is_method(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
}

fn header(headers: &mut HeaderMap, name: &str, value: &str) {
    if value.is_empty() || value == "-" {
        return;
    }
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
        headers.append(name, value);
    }
}

fn parse_json(line: &str) -> Option<Logged<'_>> {
    let Value::Object(fields) = serde_json::from_str(line).ok()? else { return None };
    // Caddy keeps the request in an object of its own.
    let request = fields.get("request").and_then(Value::as_object).unwrap_or(&fields);
    let text = |names: &[&str]| names.iter().find_map(|name| request.get(*name)?.as_str()).map(str::to_owned);
    let line = text(&["request"]);
    let (method, target) = match line.as_deref().and_then(request_line) {
        Some((method, target)) => (method.to_owned(), target.to_owned()),
        None => (
            text(&["request_method", "method", "verb"]).filter(|method| is_method(method))?,
            text(&["request_uri", "uri", "path", "url", "target"])?,
        ),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in request {
        // nginx names a header field $http_x_user_id.
        if let (Some(name), Some(value)) = (name.strip_prefix("http_"), value.as_str()) {
            header(&mut headers, &name.replace('_', "-"), value);
        }
    }
    for (name, value) in request.get("headers").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().or_else(|| value.get(0)?.as_str());
        value.into_iter().for_each(|value| header(&mut headers, name, value));
    }
    let host = text(&["http_host", "host", "server_name"]).unwrap_or_default();
    Some(Logged {
        time: json_time(&fields)?,
        client: text(&["remote_addr", "client_ip", "remote_ip", "clientip", "ip", "client"])?.into(),
        method: method.into(),
        host: host.into(),
        target: target.into(),
        headers,
        status: number(&fields, &["status"])
            .and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok()),
        sent: number(&fields, &["body_bytes_sent", "bytes_sent", "size"]),
    })
}

/// A number that may stand as text.
fn number(fields: &Map<String, Value>, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let value = fields.get(*name)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    })
}

fn json_time(fields: &Map<String, Value>) -> Option<u64> {
    let names = ["time_iso8601", "time_local", "msec", "time", "ts", "timestamp", "@timestamp"];
    names.iter().find_map(|name| match fields.get(*name)? {
        Value::Number(number) => epoch(&number.to_string()),
        Value::String(text) => iso_time(text).or_else(|| clf_time(text)).or_else(|| epoch(text)),
        _ => None,
    })
}

/// Seconds since the epoch with a fraction, as nanoseconds.
fn epoch(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    // Thirteen digits and more are milliseconds.
    let nanos =
        if whole >= 100_000_000_000 { whole.checked_mul(1_000_000)? } else { whole.checked_mul(SECOND)? };
    nanos.checked_add(fraction_nanos(fraction)?)
}

fn fraction_nanos(digits: &str) -> Option<u64> {
    let nine: String = digits.chars().chain(std::iter::repeat('0')).take(9).collect();
    nine.parse().ok()
}

/// `17/May/2015:10:05:03 +0000`.
fn clf_time(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (stamp, zone) = text.split_once(' ')?;
    let mut parts = stamp.split(['/', ':']);
    let day = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let month = MONTHS.iter().position(|month| *month == name)?;
    let mut number = || parts.next()?.parse::<i64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    instant([year, i64::try_from(month).ok()? + 1, day, hour, minute, second], offset(zone)?, 0)
}

/// `2015-05-17T10:05:03.123Z`, or with an offset.
fn iso_time(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', ' '])?;
    let (clock, rest) = rest.split_at_checked(8)?;
    let mut numbers = date.split('-').chain(clock.split(':')).map(|part| part.parse::<i64>().ok());
    let mut fields = [0; 6];
    for field in &mut fields {
        *field = numbers.next()??;
    }
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())),
        None => ("", rest),
    };
    instant(fields, offset(zone)?, fraction_nanos(fraction)?)
}

/// `+0200`, `-05:30` or `Z`, in seconds.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" || zone.is_empty() {
        return Some(0);
    }
    let digits: String = zone.get(1..)?.chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = digits.split_at_checked(2)?;
    let number =
        |text: &str, most| text.parse::<u8>().ok().filter(|number| text.len() == 2 && *number <= most);
    let seconds = i64::from(number(hours, 23)?) * 3_600 + i64::from(number(minutes, 59)?) * 60;
    match zone.as_bytes().first()? {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn instant([year, month, day, hour, minute, second]: [i64; 6], offset: i64, nanos: u64) -> Option<u64> {
    let fine = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !fine {
        return None;
    }
    // Days since the epoch, with years that begin in March so that the leap day comes last.
    let shifted = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    u64::try_from(seconds).ok()?.checked_mul(SECOND)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: u64 = 1_431_857_103 * SECOND;

    #[test]
    fn clf_and_combined_lines_are_read() {
        let line = r#"2001:db8::1 - frank [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 2326"#;
        let logged = parse(line).unwrap();
        assert_eq!((logged.time, &*logged.client), (TIME, "2001:db8::1"));
        assert_eq!((&*logged.method, &*logged.target), ("GET", "/a?b=c"));
        let line = format!(r#"{line} "http://x/" "Agent \"quoted\" 1.0""#);
        let logged = parse(&line).unwrap();
        assert_eq!(logged.headers["referer"], "http://x/");
        assert_eq!(logged.headers["user-agent"], r#"Agent \"quoted\" 1.0"#);
    }

    #[test]
    fn a_host_before_the_client_is_one() {
        let line = r#"example.com:80 192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#;
        let logged = parse(line).unwrap();
        assert_eq!((&*logged.host, &*logged.client), ("example.com:80", "192.0.2.1"));
    }

    #[test]
    fn times_are_read_in_every_form() {
        for time in [
            r#""time_iso8601":"2015-05-17T12:05:03+02:00""#,
            r#""time":"2015-05-17T10:05:03Z""#,
            r#""time_local":"17/May/2015:05:05:03 -0500""#,
            r#""msec":"1431857103.000""#,
            r#""ts":1431857103"#,
            r#""timestamp":1431857103000"#,
        ] {
            let line = format!(r#"{{{time},"remote_addr":"192.0.2.1","request":"GET / HTTP/1.1"}}"#);
            assert_eq!(parse(&line).map(|logged| logged.time), Some(TIME), "{line}");
        }
        assert_eq!(iso_time("2015-05-17T10:05:03.25Z"), Some(TIME + SECOND / 4));
        assert_eq!(iso_time("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(iso_time("2000-02-29T00:00:00Z"), Some(951_782_400 * SECOND));
        assert_eq!(iso_time("2100-03-01T00:00:00Z"), Some(4_107_542_400 * SECOND));
    }

    #[test]
    fn json_of_nginx_and_caddy_is_read() {
        let nginx = r#"{"time_iso8601":"2015-05-17T10:05:03Z","remote_addr":"192.0.2.1","request_method":"POST",
            "request_uri":"/login?x=1","http_host":"example.com","http_x_user_id":"alice","status":"200"}"#;
        let nginx = nginx.replace('\n', "");
        let logged = parse(&nginx).unwrap();
        assert_eq!((&*logged.method, &*logged.target, &*logged.host), ("POST", "/login?x=1", "example.com"));
        assert_eq!(logged.headers["x-user-id"], "alice");
        let caddy = r#"{"ts":1431857103.5,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"example.com",
            "uri":"/","headers":{"User-Agent":["curl"]}},"status":200}"#;
        let caddy = caddy.replace('\n', "");
        let logged = parse(&caddy).unwrap();
        assert_eq!((logged.time, &*logged.client), (TIME + SECOND / 2, "192.0.2.1"));
        assert_eq!(logged.headers["user-agent"], "curl");
    }

    #[test]
    fn broken_lines_are_none() {
        for line in [
            "",
            "rubbish",
            "{",
            "{}",
            "[]",
            r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "-" 400 0"#,
            r#"1.2.3.4 - - [17/Moo/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#,
            r#"1.2.3.4 - - [99/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#,
            r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1"#,
            r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" ok 1"#,
            // Found by fuzzing: an offset of more digits than a number has.
            "\" - - [17/May/2015:10:05:03 +0\u{1}\u{4}44318571030.5,\"rehttp_eethod\":] \"GET / HTTP/1.1\" 200 1",
            r#"1.2.3.4 - - [17/May/2015:10:05:03 +99999999999999999999] "GET / HTTP/1.1" 200 1"#,
            r#"1.2.3.4 - - [17/May/2015:10:05:03 +9900] "GET / HTTP/1.1" 200 1"#,
            // Found by fuzzing: a request without a method.
            r#"{"ts":1431857103.5,"request":{"remote_ip":"1.2.3.4","method":"","uri":"/"}}"#,
            r#"{"time":"yesterday","remote_addr":"1.2.3.4","request":"GET / HTTP/1.1"}"#,
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        assert_eq!(parse(&"x".repeat(MAX_LINE_BYTES + 1)), None);
    }
}

//! Whose request it is, when proxies stand between: trusted hops, read from the right.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::HeaderMap;
use ipnet::IpNet;

use crate::key::fold;

/// The most hops that are read from a forwarding header.
pub const MAX_HOPS: usize = 64;

/// Which header the trusted proxies write. One, by configuration: mixing them invites spoofing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// None: the peer is the client.
    None,
}

impl FromStr for Forwarding {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "x-forwarded-for" => Ok(Forwarding::XForwardedFor),
            "forwarded" => Ok(Forwarding::Forwarded),
            "none" => Ok(Forwarding::None),
            _ => Err("expected x-forwarded-for, forwarded or none"),
        }
    }
}

/// Networks whose word about their own clients counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The proxies' networks.
    pub proxies: Vec<IpNet>,
    /// The header that they write.
    pub forwarding: Forwarding,
}

impl Trust {
    /// Whether this is a proxy that is believed.
    pub fn is_proxy(&self, address: IpAddr) -> bool {
        let address = fold(address);
        self.proxies.iter().any(|network| network.contains(&address))
    }

    /// The client's address, folded: from the peer leftwards through the header while the hop is a trusted proxy; the
    /// first that is not is the client. An entry that does not read as an address ends the walk at the last good hop.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = fold(peer);
        if !self.is_proxy(peer) {
            return peer;
        }
        let hops = match self.forwarding {
            Forwarding::XForwardedFor => x_forwarded_for(headers),
            Forwarding::Forwarded => forwarded(headers),
            Forwarding::None => return peer,
        };
        let mut client = peer;
        for hop in hops.into_iter().rev() {
            let Some(address) = hop else { break };
            client = address;
            if !self.is_proxy(client) {
                break;
            }
        }
        client
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks: Vec<String> = self.proxies.iter().map(ToString::to_string).collect();
        f.write_str(&networks.join(", "))
    }
}

/// The last [`MAX_HOPS`] entries, left to right, `None` for what is no address.
fn x_forwarded_for(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    last(
        lines(headers, "x-forwarded-for").flat_map(|line| line.split(',')).map(|entry| address(entry.trim())),
    )
}

fn forwarded(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let elements = lines(headers, "forwarded").flat_map(|line| split_unquoted(line, ','));
    last(elements.map(|element| {
        let mut pairs = split_unquoted(element, ';').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
        address(value.trim().trim_matches('"'))
    }))
}

fn last(hops: impl Iterator<Item = Option<IpAddr>>) -> Vec<Option<IpAddr>> {
    let mut hops: Vec<_> = hops.collect();
    hops.drain(..hops.len().saturating_sub(MAX_HOPS));
    hops
}

/// Header lines as text; one that is not is an entry that reads as no address.
fn lines<'h>(headers: &'h HeaderMap, name: &'static str) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"))
}

/// The parts between separators that do not stand in quotes. Where quotes are not balanced somebody is cheating: a proxy that
/// appends to such a line must not have its part swallowed, so every separator counts.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let balanced = text.matches('"').count().is_multiple_of(2);
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"' && balanced;
        c == separator && !quoted
    })
}

/// An address as proxies write it: bare, with a port, in brackets, with a zone. Folded.
pub fn address(text: &str) -> Option<IpAddr> {
    let bare = |text: &str| -> Option<IpAddr> {
        let text = text.split_once('%').map_or(text, |(address, _zone)| address);
        text.parse().ok()
    };
    let found = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            let port = after.strip_prefix(':').map(str::parse::<u16>);
            if !after.is_empty() && !matches!(port, Some(Ok(_))) {
                return None;
            }
            bare(inside).filter(IpAddr::is_ipv6)?
        }
        None => bare(text).or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))?,
    };
    Some(fold(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn trust(forwarding: Forwarding) -> Trust {
        let proxies = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8:aaaa::/48".parse().unwrap()];
        Trust { proxies, forwarding }
    }

    fn client(forwarding: Forwarding, peer: &str, lines: &[&str]) -> String {
        let name = if forwarding == Forwarding::Forwarded { "forwarded" } else { "x-forwarded-for" };
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_str(line).unwrap());
        }
        trust(forwarding).client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn x_forwarded_for_is_read_from_the_right_through_trusted_hops() {
        let xff = |peer, lines: &[&str]| client(Forwarding::XForwardedFor, peer, lines);
        assert_eq!(xff("192.0.2.1", &["198.51.100.9"]), "192.0.2.1", "the peer is not trusted");
        assert_eq!(xff("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["198.51.100.9"]), "198.51.100.9");
        assert_eq!(xff("10.0.0.1", &["1.1.1.1, 198.51.100.9"]), "198.51.100.9", "never the leftmost");
        assert_eq!(xff("10.0.0.1", &["1.1.1.1", "198.51.100.9, 10.2.3.4"]), "198.51.100.9");
        assert_eq!(xff("10.0.0.1", &["10.9.9.9, 10.2.3.4"]), "10.9.9.9", "all trusted: the farthest");
        assert_eq!(xff("10.0.0.1", &["198.51.100.9, rubbish, 10.2.3.4"]), "10.2.3.4", "the last good hop");
        assert_eq!(xff("10.0.0.1", &["198.51.100.9, "]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["198.51.100.9:4711"]), "198.51.100.9");
        assert_eq!(xff("10.0.0.1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(xff("10.0.0.1", &["[2001:db8::1]"]), "2001:db8::1");
        assert_eq!(xff("10.0.0.1", &["fe80::1%eth0"]), "fe80::1");
        assert_eq!(xff("::ffff:10.0.0.1", &["::ffff:198.51.100.9"]), "198.51.100.9");
        assert_eq!(xff("2001:db8:aaaa::1", &["64:ff9b::198.51.100.9"]), "198.51.100.9");
    }

    #[test]
    fn forwarded_is_read_by_its_grammar() {
        let fwd = |lines: &[&str]| client(Forwarding::Forwarded, "10.0.0.1", lines);
        assert_eq!(fwd(&["for=198.51.100.9"]), "198.51.100.9");
        assert_eq!(fwd(&["For=\"[2001:db8::1]:4711\";proto=https;by=10.0.0.1"]), "2001:db8::1");
        assert_eq!(fwd(&["for=1.1.1.1, for=198.51.100.9;host=\"a,b;c\""]), "198.51.100.9");
        assert_eq!(fwd(&["for=198.51.100.9, for=_hidden"]), "10.0.0.1", "an obfuscated hop ends the walk");
        assert_eq!(fwd(&["for=unknown"]), "10.0.0.1");
        assert_eq!(
            fwd(&["for=1.2.3.4;x=\", for=198.51.100.9"]),
            "198.51.100.9",
            "an open quote swallows nothing"
        );
        assert_eq!(fwd(&["for=1.2.3.4;x=\", for=\"[2001:db8::1]\""]), "2001:db8::1");
        assert_eq!(fwd(&["for=unknown;for=1.2.3.4"]), "10.0.0.1", "the first for is the one");
        assert_eq!(fwd(&["proto=https"]), "10.0.0.1");
        assert_eq!(client(Forwarding::None, "10.0.0.1", &["198.51.100.9"]), "10.0.0.1");
    }

    #[test]
    fn a_long_header_is_read_from_its_end() {
        let line = vec!["10.1.1.1"; 10_000].join(",");
        assert_eq!(client(Forwarding::XForwardedFor, "10.0.0.1", &[&line]), "10.1.1.1");
    }

    proptest::proptest! {
        #[test]
        fn no_header_makes_the_walk_panic(line in ".{0,200}", forwarded: bool) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
                headers.append(if forwarded { "forwarded" } else { "x-forwarded-for" }, value);
            }
            let forwarding = if forwarded { Forwarding::Forwarded } else { Forwarding::XForwardedFor };
            trust(forwarding).client("10.0.0.1".parse().unwrap(), &headers);
        }
    }
}

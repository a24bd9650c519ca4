//! A policy: which requests it is about, who is counted, how much is allowed, and what happens when that cannot be told.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::HeaderName;
use ipnet::IpNet;
use tollgate_core::Rule;
use tollgate_store::WhenFull;

use crate::Request;
use crate::beside::Ban;
use crate::key::fold;
use crate::matching::Match;
use crate::named::named;
use crate::placement::Placement;
use crate::reserve::Reserve;
use crate::response::OnResponse;

/// Keys that a policy's table is built for, unless it says otherwise.
pub const DEFAULT_KEYS: usize = 100_000;

/// A named rule.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name: 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Which requests it is about.
    pub matches: Match,
    /// Where the subject is looked for: the first that is present counts.
    pub subjects: Vec<Subject>,
    /// What happens when none is present.
    pub missing: Missing,
    /// How much is allowed.
    pub rule: Rule,
    /// What a request costs.
    pub cost: Cost,
    /// Where the count lives.
    pub placement: Placement,
    /// Over how many keys [`Placement::Sharded`] spreads one.
    pub shards: u64,
    /// Whether those who ask may choose their own quota, up to this policy's.
    pub client_quota: bool,
    /// What happens when the count is out of reach.
    pub on_unavailable: Direction,
    /// What it protects, if it says so.
    pub class: Option<Class>,
    /// Whether it only watches: decided apart, and never refusing.
    pub shadow: bool,
    /// Other quotas for listed subjects.
    pub tiers: Vec<Tier>,
    /// Whom it does not count.
    pub allow: List,
    /// Whom it always refuses (403).
    pub deny: List,
    /// How many keys its table is built for.
    pub keys: usize,
    /// What its table does with a new key when it is full.
    pub when_full: WhenFull,
    /// What goes by the response, where the door sees it.
    pub response: Option<OnResponse>,
    /// What becomes of a subject that is refused too often.
    pub ban: Option<Ban>,
    /// For how many nanoseconds at most an origin's Retry-After holds a subject; 0 when it does not.
    pub obey: u64,
    /// How its reservations end, if it takes any.
    pub reserve: Option<Reserve>,
    /// One in so many requests is charged, so many times its cost; the others only look whether that is there.
    pub sample: u64,
}

/// Where a subject is found in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A header field.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A query parameter.
    Query(String),
    /// The token of `Authorization: Bearer`, as it is.
    Bearer,
    /// A claim of a verified JSON Web Token.
    Claim(String),
    /// The client's address, cut to its network.
    Address,
    /// One subject for everybody.
    Const(String),
    /// The values of a descriptor.
    Descriptor,
    /// The value of a descriptor's entry.
    Entry(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Header(name) => write!(f, "header:{name}"),
            Subject::Cookie(name) => write!(f, "cookie:{name}"),
            Subject::Query(name) => write!(f, "query:{name}"),
            Subject::Bearer => f.write_str("bearer"),
            Subject::Claim(name) => write!(f, "jwt:{name}"),
            Subject::Address => f.write_str("address"),
            Subject::Const(value) => write!(f, "const:{value}"),
            Subject::Descriptor => f.write_str("descriptor"),
            Subject::Entry(key) => write!(f, "descriptor:{key}"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        let named =
            || if name.is_empty() { Err(format!("`{kind}:` needs a name after it")) } else { Ok(name) };
        Ok(match kind {
            "header" => {
                let name = named()?;
                Subject::Header(
                    name.parse().map_err(|_| format!("`{name}` is not the name of a header field"))?,
                )
            }
            "cookie" => Subject::Cookie(named()?.to_owned()),
            "query" => Subject::Query(named()?.to_owned()),
            "jwt" => Subject::Claim(named()?.to_owned()),
            "const" => Subject::Const(named()?.to_owned()),
            "bearer" if name.is_empty() => Subject::Bearer,
            "address" if name.is_empty() => Subject::Address,
            "descriptor" if name.is_empty() => Subject::Descriptor,
            "descriptor" => Subject::Entry(name.to_owned()),
            _ => {
                return Err(format!(
                    "`{text}` is no subject; expected header:NAME, cookie:NAME, query:NAME, bearer, jwt:CLAIM, address, descriptor, descriptor:KEY or const:VALUE"
                ));
            }
        })
    }
}

named! {
    /// What happens to a request without a subject.
    Missing {
        /// It is answered 400.
        Reject = "reject",
        /// The policy does not apply to it.
        Skip = "skip",
    }
}

named! {
    /// What answers when the count is out of reach.
    Direction {
        /// Refuse, 503.
        Refuse = "refuse",
        /// Admit.
        Admit = "admit",
        /// Count in this process meanwhile.
        Local = "local",
    }
}

named! {
    /// What a policy protects, from which its [`Direction`] follows.
    Class {
        /// Passwords and codes: refuse.
        Credential = "credential",
        /// Money: refuse.
        Spend = "spend",
        /// Somebody else's limits: refuse.
        Upstream = "upstream",
        /// Reading: admit.
        Read = "read",
        /// Events that will be sent again: admit.
        Webhook = "webhook",
    }
}

impl Class {
    /// The direction of this class.
    pub const fn direction(self) -> Direction {
        match self {
            Class::Credential | Class::Spend | Class::Upstream => Direction::Refuse,
            Class::Read | Class::Webhook => Direction::Admit,
        }
    }
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always this.
    Fixed(u64),
    /// What a header says, from 1 up to `max`; `default` without the header, and 400 when it is not a number.
    Header {
        /// The header.
        name: HeaderName,
        /// The ceiling.
        max: u64,
        /// Without the header.
        default: u64,
    },
    /// One for each started `per` bytes of the body, at least 1, up to `max`; `max` when the size is not announced.
    Size {
        /// Bytes a unit.
        per: u64,
        /// The ceiling.
        max: u64,
    },
}

impl Cost {
    /// What `request` costs, or the header's name when it is not a number.
    pub fn of(&self, request: &Request<'_>) -> Result<u64, String> {
        match self {
            Cost::Fixed(cost) => Ok(*cost),
            Cost::Size { max, .. } => Ok(request.size.map_or(*max, |size| self.of_size(size))),
            Cost::Header { name, max, default } => {
                if !request.headers.contains_key(name) {
                    return Ok(*default);
                }
                let text =
                    request.header(name.as_str()).once().and_then(|line| std::str::from_utf8(line).ok());
                let number = text.and_then(|text| text.trim().parse::<u64>().ok());
                number.map(|cost| cost.clamp(1, (*max).max(1))).ok_or_else(|| name.to_string())
            }
        }
    }
}

/// Another quota for some subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Who is in it.
    pub subjects: Vec<String>,
    /// How much they are allowed.
    pub rule: Rule,
}

/// Networks and subjects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Networks of client addresses.
    pub networks: Vec<IpNet>,
    /// Subjects.
    pub subjects: Vec<String>,
}

impl List {
    pub(crate) fn holds(&self, address: Option<IpAddr>, subject: Option<&[u8]>) -> bool {
        address.map(fold).is_some_and(|address| self.networks.iter().any(|n| n.contains(&address)))
            || subject.is_some_and(|subject| self.subjects.iter().any(|s| s.as_bytes() == subject))
    }

    /// Whether nobody is on it.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.subjects.is_empty()
    }
}

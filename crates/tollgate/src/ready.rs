//! A policy made ready to decide: what it makes of a request, and by which rule and key that is counted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use tollgate_core::{Fingerprint, Rule};

use crate::beside::{Beside, KINDS};
use crate::key::{Keys, MAX_SUBJECT_BYTES, Prefixes, Salt};
use crate::placement::Counted;
use crate::policy::{Missing, Policy, Subject};
use crate::request::Said;
use crate::{Request, token::Tokens};

/// A policy made ready to decide: its place, the hasher of its keys, and its tiers by subject.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The policy.
    pub policy: Policy,
    /// Its number, which is that of its table.
    pub index: u16,
    keys: Keys,
    /// The rules of the policy, and those of its tiers.
    counted: Vec<Counted>,
    /// By key, which of them.
    tiers: HashMap<Fingerprint, u16>,
    /// The numbers of what is counted beside it.
    pub(crate) beside: [Option<u16>; KINDS],
    /// Beside which policy it is counted, and what, when nobody wrote it down.
    pub(crate) of: Option<(u16, Beside)>,
}

/// What a policy makes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading<'p> {
    /// Nothing: it is not about it, or does not count it.
    Pass,
    /// This key is charged.
    Key { key: Fingerprint, rule: &'p Rule },
    /// It is on the deny list.
    Denied,
    /// It has no subject, and must have one.
    NoSubject,
}

impl Ready {
    pub(crate) fn new(policy: Policy, index: u16, instances: u64, salt: &Salt) -> Self {
        let keys = salt.keys_of(&policy.name);
        let listed = (1..).zip(&policy.tiers);
        let tiers = listed.flat_map(|(n, tier)| tier.subjects.iter().map(move |s| (s, n)));
        let tiers = tiers.map(|(subject, n)| (keys.of(subject.as_bytes()), n)).collect();
        let rules = std::iter::once(&policy.rule).chain(policy.tiers.iter().map(|tier| &tier.rule));
        let counted = rules.map(|rule| policy.counted(rule, instances)).collect();
        Ready { tiers, counted, policy, index, keys, beside: [None; KINDS], of: None }
    }

    /// The same, counted beside a policy.
    pub(crate) fn counted_beside(self, owner: u16, kind: Beside) -> Self {
        Ready { of: Some((owner, kind)), ..self }
    }

    /// The key of a subject, and the rule that it is charged by where its count is.
    pub fn key(&self, subject: &[u8]) -> (Fingerprint, &Rule) {
        let key = self.keys.of(subject);
        (key, self.rule(self.rule_number(key)))
    }

    /// Which of its rules a key is charged by.
    pub(crate) fn rule_number(&self, key: Fingerprint) -> u16 {
        if self.tiers.is_empty() { 0 } else { self.tiers.get(&key).copied().unwrap_or(0) }
    }

    /// The rule of this number, where the count is.
    pub(crate) fn rule(&self, number: u16) -> &Rule {
        self.counted.get(usize::from(number)).map_or(&self.policy.rule, |counted| &counted.charged)
    }

    /// The number of a rule that is charged.
    pub(crate) fn number(&self, charged: &Rule) -> u16 {
        (0..)
            .zip(&self.counted)
            .find(|(_, counted)| counted.charged == *charged)
            .map_or(0, |(number, _)| number)
    }

    /// The rules that go with the one that is charged.
    pub(crate) fn counted(&self, charged: &Rule) -> Option<&Counted> {
        self.counted.iter().find(|counted| counted.charged == *charged)
    }

    /// The rule that keys without a tier are charged by.
    pub(crate) fn usual(&self) -> &Rule {
        self.counted.first().map_or(&self.policy.rule, |counted| &counted.charged)
    }

    /// Whether anything is counted in this process.
    pub(crate) fn counts_here(&self) -> bool {
        let beside = |counted: &Counted| counted.first.is_some() || counted.instead.is_some();
        !self.policy.placement.is_shared() || self.counted.iter().any(beside)
    }

    /// Whether another generation of this policy counts every key as this one does.
    pub(crate) fn same_counting(&self, other: &Ready) -> bool {
        self.counted == other.counted
            && self.tiers == other.tiers
            && self.policy.placement == other.policy.placement
    }

    /// Words that the longest state in this process takes.
    pub(crate) fn words(&self) -> usize {
        let each = |counted: &Counted| {
            let others = counted.first.into_iter().chain(counted.instead);
            others.map(|rule| rule.words()).fold(counted.charged.words(), usize::max)
        };
        self.counted.iter().map(each).max().unwrap_or(1)
    }

    /// The keys that have a rule of their own.
    pub(crate) fn exceptions(&self) -> impl Iterator<Item = (Fingerprint, &Rule)> {
        self.tiers.iter().map(|(key, number)| (*key, self.rule(*number)))
    }

    /// What the policy makes of a subject that is given as it is.
    pub(crate) fn read_subject(&self, subject: &[u8]) -> Reading<'_> {
        self.read_found(None, &Found::of(Cow::Borrowed(subject)))
    }

    /// What the policy makes of a descriptor that fits it.
    pub(crate) fn read_descriptor(&self, entries: &[(&str, &str)]) -> Reading<'_> {
        let found = self.policy.subjects.iter().map(|source| match source {
            Subject::Descriptor => Found::of(into_bytes(crate::descriptor::subject(entries))),
            Subject::Entry(name) => {
                let value = entries.iter().find(|(key, _)| key == name);
                value.map_or(Found::Nothing, |(_, value)| Found::of(Cow::Borrowed(value.as_bytes())))
            }
            Subject::Const(value) => Found::of(Cow::Borrowed(value.as_bytes())),
            _ => Found::Nothing,
        });
        let first = found.into_iter().find(|found| *found != Found::Nothing);
        self.read_found(None, &first.unwrap_or(Found::Nothing))
    }

    /// What the policy makes of a request that it matches.
    pub(crate) fn read(&self, request: &Request<'_>, tokens: &Tokens<'_>, prefixes: Prefixes) -> Reading<'_> {
        let found = self.policy.subjects.iter().map(|source| find(source, request, tokens, prefixes));
        let first = found.into_iter().find(|found| *found != Found::Nothing);
        self.read_found(request.address, &first.unwrap_or(Found::Nothing))
    }

    fn read_found(&self, address: Option<IpAddr>, found: &Found<'_>) -> Reading<'_> {
        let subject = if let Found::Subject(subject) = found { Some(subject.as_ref()) } else { None };
        if self.policy.deny.holds(address, subject) {
            return Reading::Denied;
        }
        if self.policy.allow.holds(address, subject) {
            return Reading::Pass;
        }
        if let Some(subject) = subject {
            let (key, rule) = self.key(subject);
            return Reading::Key { key, rule };
        }
        // Who says two things at once is not let off as one who says nothing.
        let skip = *found == Found::Nothing && self.policy.missing == Missing::Skip;
        if skip { Reading::Pass } else { Reading::NoSubject }
    }
}

/// What a source finds in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found<'r> {
    /// This subject.
    Subject(Cow<'r, [u8]>),
    /// None: the next source is asked.
    Nothing,
    /// More than one, or one longer than [`MAX_SUBJECT_BYTES`]: no other source stands in for it.
    Unclear,
}

impl<'r> Found<'r> {
    /// What was found, by its length.
    fn of(subject: Cow<'r, [u8]>) -> Self {
        match subject.len() {
            0 => Found::Nothing,
            1..=MAX_SUBJECT_BYTES => Found::Subject(subject),
            _ => Found::Unclear,
        }
    }
}

fn into_bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

impl<'r, T: Into<Cow<'r, [u8]>>> From<Said<T>> for Found<'r> {
    fn from(said: Said<T>) -> Self {
        match said {
            Said::Once(subject) => Found::Subject(subject.into()),
            Said::Not => Found::Nothing,
            Said::Ambiguously => Found::Unclear,
        }
    }
}

/// What `source` finds in a request.
pub(crate) fn find<'r>(
    source: &'r Subject,
    request: &Request<'r>,
    tokens: &Tokens<'_>,
    prefixes: Prefixes,
) -> Found<'r> {
    let or_nothing =
        |text: Option<String>| text.map_or(Said::Not, |text| Said::Once(text.into_bytes())).into();
    let found: Found<'r> = match source {
        Subject::Header(name) => request.header(name.as_str()).into(),
        Subject::Cookie(name) => request.cookie(name).into(),
        Subject::Query(name) => request.query_value(name).into(),
        Subject::Bearer => request.bearer().into(),
        Subject::Claim(name) => or_nothing(tokens.claim(request, name)),
        Subject::Address => or_nothing(request.address.map(|address| prefixes.subject(address))),
        Subject::Const(value) => Found::Subject(Cow::Borrowed(value.as_bytes())),
        Subject::Descriptor | Subject::Entry(_) => Found::Nothing,
    };
    match found {
        Found::Subject(subject) => Found::of(subject),
        found => found,
    }
}

//! What may be asked: about a request, by a policy's name, about a descriptor, or under a quota that the asker chose.

use tollgate_core::Rule;

use crate::Request;

/// The most things that may be asked together.
pub const MAX_ASKED: usize = 16;

/// One thing that is asked. Several are decided together: all admit and are charged, or none is charged.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// To charge every policy that this request meets.
    Request(&'a Request<'a>),
    /// The same by a door that will see the response, and tell it: see [`Limiter::responded`](crate::Limiter::responded).
    Exchange(&'a Request<'a>),
    /// Where this request stands with every policy that it meets.
    Look(&'a Request<'a>),
    /// A policy by its name.
    Check(Check<'a>),
    /// The policies of a descriptor.
    Descriptor(Descriptor<'a>),
    /// The policy of the command `CL.THROTTLE`.
    Throttle(Throttle<'a>),
    /// To reserve units of a policy.
    Reserve(Reserved<'a>),
}

/// One check by name: a policy, a subject that is used as it is, and a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// Who is charged; empty for nobody, of which the policy's `missing` says what it means.
    pub subject: &'a str,
    /// Units: 0 looks, less than 0 gives back. Without it, the policy's fixed cost, or 1.
    pub cost: Option<i64>,
}

/// Units to be reserved, of which it turns out later how many are used: see [`Limiter::settle`](crate::Limiter::settle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved<'a> {
    /// The policy's name, which takes reservations.
    pub policy: &'a str,
    /// Who is charged.
    pub subject: &'a str,
    /// How many units.
    pub units: u64,
    /// What makes it one reservation however often it is asked for, of at most [`MAX_ID_BYTES`](crate::MAX_ID_BYTES). The same id for
    /// another subject or number of units is another reservation.
    pub id: &'a [u8],
}

/// A list of keys and values in a domain, as Envoy describes a request. Of the policies that fit, the most specific counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// The domain.
    pub domain: &'a str,
    /// Keys and values, in order.
    pub entries: &'a [(&'a str, &'a str)],
    /// As for a [`Check`].
    pub cost: Option<i64>,
    /// A rule instead of the policy's, for policies that let the asker choose.
    pub rule: Stated<'a>,
}

/// A quota that comes with a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stated<'a> {
    /// None.
    #[default]
    Nothing,
    /// This: see [`Rule::stated`].
    Rule(&'a Rule),
    /// Something that is no quota. A policy that lets the asker choose refuses it.
    NoQuota,
}

/// A key under a quota that the asker chose, within the policy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle<'a> {
    /// Who is charged.
    pub key: &'a [u8],
    /// By which rule.
    pub rule: &'a Rule,
    /// Units; 0 looks.
    pub cost: u64,
}

/// What becomes of a charge's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// They are taken.
    Take(u64),
    /// They are to be there, and are not taken.
    Find(u64),
    /// They are given back.
    GiveBack(u64),
}

impl Units {
    pub(crate) const fn of(cost: i64) -> Self {
        if cost < 0 { Units::GiveBack(cost.unsigned_abs()) } else { Units::Take(cost.unsigned_abs()) }
    }
}

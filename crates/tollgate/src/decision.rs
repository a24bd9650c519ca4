//! What comes back: total, with no error to forget.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Fingerprint, Outcome, Rule, Shape, Verdict};

use crate::policies::Policies;
use crate::policy::{Cost, Direction, Policy};
use crate::reserve::Reservation;

/// What is taken, and what is given back.
const MAX_PARTS: usize = 2 * tollgate_store::MAX_CHARGES;

/// The most policies that may watch one request beside those that are enforced.
pub const MAX_SHADOWS: usize = 8;

/// The decision about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on.
    Admit(Standing),
    /// Do not.
    Refuse(Refusal),
}

impl Decision {
    /// What a limiter without policies says: it limits nothing.
    pub(crate) const UNLIMITED: Decision = Decision::Admit(Standing {
        limit: u64::MAX,
        remaining: u64::MAX,
        reset_after: Duration::ZERO,
        wait: Duration::ZERO,
    });

    /// What is said when the count cannot be had from here.
    pub(crate) const OUT_OF_REACH: Decision = Decision::Refuse(Refusal {
        retry_after: None,
        unavailable: true,
        standing: Standing { limit: 0, remaining: 0, reset_after: Duration::ZERO, wait: Duration::ZERO },
    });

    /// Whether the answer is yes.
    pub const fn is_admit(&self) -> bool {
        matches!(self, Decision::Admit(_))
    }
}

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Units that a rested key may spend at once.
    pub limit: u64,
    /// Units that are left.
    pub remaining: u64,
    /// Until all are back.
    pub reset_after: Duration,
    /// How long to wait before going on: more than zero only for a leaky queue.
    pub wait: Duration,
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When the same will be admitted, if nobody else is; `None` when it never will: it costs more than the capacity.
    pub retry_after: Option<Duration>,
    /// Whether the fault is ours: there was no room to count the key, or its count is not in this process.
    pub unavailable: bool,
    /// Where the key stands.
    pub standing: Standing,
}

impl From<Outcome> for Decision {
    fn from(outcome: Outcome) -> Self {
        let standing = Standing {
            limit: outcome.limit,
            remaining: outcome.remaining,
            reset_after: Duration::from_nanos(outcome.reset_after),
            wait: Duration::ZERO,
        };
        let refuse =
            |retry_after, unavailable| Decision::Refuse(Refusal { retry_after, unavailable, standing });
        match outcome.verdict {
            Verdict::Admit { wait } => {
                Decision::Admit(Standing { wait: Duration::from_nanos(wait), ..standing })
            }
            Verdict::Refuse { retry_after } => refuse(Some(Duration::from_nanos(retry_after)), false),
            Verdict::Full { retry_after } => refuse(Some(Duration::from_nanos(retry_after)), true),
            Verdict::Never | Verdict::Unasked => refuse(None, false),
        }
    }
}

/// Why a request was answered as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every policy admits it, or none is about it.
    Admitted,
    /// A policy refuses it for now: 429.
    Throttled,
    /// It costs more than a policy can ever give: 429 without a time.
    TooCostly,
    /// The count could not be kept: 503.
    Unavailable,
    /// It is on a deny list: 403.
    Blocked,
    /// Its subject was refused too often, and is banned for a while: 403.
    Banned,
    /// An origin asked to be left alone by its subject for a while: 429.
    Held,
    /// It has no subject, and the policy wants one: 400.
    NoSubject,
    /// Its cost header is not a number: 400.
    BadCost,
    /// The quota that the asker chose is none, or above the policy's: 400.
    BadQuota,
    /// The policy takes no reservations: 400.
    NoReservations,
    /// No policy has the name that was asked for: 404.
    UnknownPolicy,
}

impl Reason {
    /// The name used in bodies, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Admitted => "admit",
            Reason::Throttled => "refuse",
            Reason::TooCostly => "never",
            Reason::Unavailable => "unavailable",
            Reason::Blocked => "blocked",
            Reason::Banned => "banned",
            Reason::Held => "held",
            Reason::NoSubject => "no_subject",
            Reason::BadCost => "bad_cost",
            Reason::BadQuota => "bad_quota",
            Reason::NoReservations => "no_reservations",
            Reason::UnknownPolicy => "unknown_policy",
        }
    }
}

/// One policy's part in a ruling.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The policy's number.
    pub(crate) policy: u16,
    /// Nanoseconds in which the whole limit comes back.
    pub window: u64,
    /// Who was counted.
    pub key: Fingerprint,
    /// What was asked for, or given back.
    pub cost: u64,
    /// Whether the cost was given back.
    pub given_back: bool,
    /// Which of the things asked together it answers: a bit for each.
    pub(crate) asked: u16,
    /// By which of the policy's rules it was counted.
    pub(crate) rule: u16,
    /// What was to be there beyond the cost.
    pub(crate) spare: u64,
    /// When it was charged, by the store's time.
    pub(crate) charged: u64,
    /// Whether the response has had its say.
    pub(crate) settled: bool,
    /// What was decided.
    pub outcome: Outcome,
}

impl Part {
    /// What it was decided for: its cost, or what was to be there without being taken.
    pub(crate) const fn charged_for(&self) -> u64 {
        if self.cost == 0 { self.spare } else { self.cost }
    }

    /// In how many nanoseconds the same would be admitted once more, as far as the outcome tells.
    pub(crate) fn next(&self, rule: &Rule, now: u64) -> u64 {
        if rule.shape() != Shape::Cell {
            return 0;
        }
        let charge = Charge { policy: self.policy, key: self.key, rule, cost: self.cost, spare: 0 };
        match charge.judge(&[self.outcome.cell], now) {
            Verdict::Refuse { retry_after } => retry_after,
            _ => 0,
        }
    }
}

/// A place in the queue of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The key.
    pub key: Fingerprint,
    /// Nanoseconds until it leaves.
    pub wait: u64,
    /// Nanoseconds that it takes up in the queue.
    pub length: u64,
}

/// The decision about a request: that of every policy it meets, and what follows from them.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// Why.
    pub reason: Reason,
    /// When it was decided, in nanoseconds since the Unix epoch.
    pub now: u64,
    /// What answered when the store could not: the direction of the policies' that decided it.
    pub fallback: Option<Direction>,
    /// The reservation that was asked for.
    pub reservation: Option<Reservation>,
    /// Whether a ban began with this refusal.
    pub ban_began: bool,
    /// For how many nanoseconds somebody is barred beside what the policies say.
    pub(crate) barred: Option<u64>,
    /// Whether nobody looked if somebody is, for it was refused before.
    pub(crate) bars_unasked: bool,
    pub(crate) policies: Arc<Policies>,
    pub(crate) scope: Option<u16>,
    pub(crate) parts: ArrayVec<Part, MAX_PARTS>,
    pub(crate) shadows: ArrayVec<Part, MAX_SHADOWS>,
}

impl Ruling {
    pub(crate) fn new(policies: Arc<Policies>, now: u64, reason: Reason, scope: Option<u16>) -> Self {
        Ruling {
            reason,
            now,
            fallback: None,
            reservation: None,
            ban_began: false,
            barred: None,
            bars_unasked: false,
            policies,
            scope,
            parts: ArrayVec::new(),
            shadows: ArrayVec::new(),
        }
    }

    /// Whether the request may go on.
    pub fn is_admit(&self) -> bool {
        self.reason == Reason::Admitted
    }

    /// The policies that were decided together, in their order, each with its part.
    pub fn parts(&self) -> impl Iterator<Item = (&Policy, &Part)> {
        self.named(&self.parts)
    }

    /// The parts that answer the n-th of the things asked together, from 0.
    pub fn parts_of(&self, n: usize) -> impl Iterator<Item = (&Policy, &Part)> {
        self.parts().filter(move |(_, part)| {
            part.asked.checked_shr(u32::try_from(n).unwrap_or(16)).unwrap_or(0) & 1 == 1
        })
    }

    /// What became of one policy's part: `give_back`, `banned` or `held`, `look` at cost 0, its own refusal, `admit`, or `uncharged` when it would have admitted
    /// but another policy refused.
    pub fn part_name(&self, part: &Part) -> &'static str {
        match part.outcome.verdict {
            _ if part.given_back => "give_back",
            // Whoever is barred is refused whatever is left.
            _ if matches!(self.reason, Reason::Banned | Reason::Held) && self.scope == Some(part.policy) => {
                self.reason.name()
            }
            Verdict::Admit { .. } if part.charged_for() == 0 => "look",
            Verdict::Admit { .. } if self.is_admit() => Reason::Admitted.name(),
            Verdict::Admit { .. } => "uncharged",
            Verdict::Refuse { .. } => Reason::Throttled.name(),
            Verdict::Never => Reason::TooCostly.name(),
            Verdict::Full { .. } | Verdict::Unasked => Reason::Unavailable.name(),
        }
    }

    /// The policies that only watched.
    pub fn shadows(&self) -> impl Iterator<Item = (&Policy, &Part)> {
        self.named(&self.shadows)
    }

    fn named<'s>(&'s self, parts: &'s [Part]) -> impl Iterator<Item = (&'s Policy, &'s Part)> {
        parts.iter().filter_map(|part| Some((self.policies.get(part.policy)?, part)))
    }

    /// The policies that refused.
    pub fn violated(&self) -> impl Iterator<Item = &Policy> {
        self.parts().filter(|(_, part)| !part.outcome.verdict.is_admit()).map(|(policy, _)| policy)
    }

    /// The policy that fired: of those that refused the one with the longest wait.
    pub fn scope(&self) -> Option<&Policy> {
        self.scope.and_then(|index| self.policies.get(index))
    }

    /// Nanoseconds until the same request is admitted, if nothing else is; `None` for what has no such time.
    pub fn retry_after(&self) -> Option<u64> {
        let refused = |part: &Part| match part.outcome.verdict {
            Verdict::Refuse { retry_after } | Verdict::Full { retry_after } => Some(retry_after),
            _ => None,
        };
        match self.reason {
            Reason::Throttled | Reason::Unavailable | Reason::Held | Reason::Banned => {
                self.parts.iter().filter_map(refused).chain(self.barred).max()
            }
            _ => None,
        }
    }

    /// The ruling on one check, as the decision about one key.
    pub(crate) fn one(&self) -> Decision {
        let Some(outcome) = self.parts.first().map(|part| part.outcome) else {
            // Whoever is on the allow list is not counted.
            return if self.is_admit() { Decision::UNLIMITED } else { Decision::OUT_OF_REACH };
        };
        match Decision::from(outcome) {
            admit @ Decision::Admit(_) if self.is_admit() => admit,
            Decision::Admit(standing) | Decision::Refuse(Refusal { standing, .. }) => {
                Decision::Refuse(Refusal {
                    retry_after: self.retry_after().map(Duration::from_nanos),
                    unavailable: self.reason == Reason::Unavailable,
                    standing,
                })
            }
        }
    }

    /// For how many nanoseconds a subject is barred: banned, or held by an origin.
    pub const fn barred(&self) -> Option<u64> {
        self.barred
    }

    /// Nanoseconds to wait before going on: the longest of the leaky queues'.
    pub fn wait(&self) -> u64 {
        let wait = |part: &Part| if let Verdict::Admit { wait } = part.outcome.verdict { wait } else { 0 };
        if self.is_admit() { self.parts.iter().map(wait).max().unwrap_or(0) } else { 0 }
    }

    /// The turn to wait for before going on, if there is one: the longest of the leaky queues'.
    pub fn turn(&self) -> Option<Turn> {
        if !self.is_admit() {
            return None;
        }
        let turn = |part: &Part| {
            let Verdict::Admit { wait: wait @ 1.. } = part.outcome.verdict else { return None };
            let interval = self.policies.ready(part.policy)?.rule(part.rule).quota().interval();
            Some(Turn { key: part.key, wait, length: part.cost.saturating_mul(interval) })
        };
        self.parts.iter().filter_map(turn).max_by_key(|turn| turn.wait)
    }

    /// Whether a policy wants to be told of the response: see [`Limiter::responded`](crate::Limiter::responded) and
    /// [`Limiter::obey`](crate::Limiter::obey).
    pub fn goes_by_response(&self) -> bool {
        self.parts().any(|(policy, _)| policy.response.is_some() || policy.obey > 0)
    }

    /// Whether a policy is still to be told how many bytes the response has: see [`Limiter::streamed`](crate::Limiter::streamed).
    pub fn goes_by_size(&self) -> bool {
        self.parts().any(|(policy, part)| {
            let cost = policy.response.as_ref().and_then(|response| response.cost.as_ref());
            !part.settled && matches!(cost, Some(Cost::Size { .. }))
        })
    }

    /// The set of policies that decided.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }
}

//! A set of policies, ready to decide: which ones a request meets, and with which keys.

use std::sync::Arc;

use tollgate_core::{Charge, Outcome, Rule, Verdict};
use tollgate_store::{Answer, Demand};

use crate::beside::Beside;
use crate::key::{Prefixes, Salt};
use crate::placement::Placement;
use crate::policy::Policy;
use crate::ready::{Found, Ready};
use crate::token::{Tokens, Verifier};
use crate::{Part, Reason, Request, Ruling};

/// The most policies in one set.
pub const MAX_POLICIES: usize = 1_024;

/// Policies as they were read: valid, but without the salt that makes keys of subjects.
#[derive(Clone, Debug)]
pub struct PolicySet {
    /// The policies, in the file's order. At most [`MAX_POLICIES`], names distinct.
    pub policies: Vec<Policy>,
    /// How much of an address is one subject.
    pub prefixes: Prefixes,
    /// What verifies tokens.
    pub verifier: Option<Verifier>,
    /// How many instances are expected to run: what one counts alone, it counts to that share.
    pub instances: u64,
}

impl Default for PolicySet {
    fn default() -> Self {
        PolicySet { policies: Vec::new(), prefixes: Prefixes::default(), verifier: None, instances: 1 }
    }
}

impl PolicySet {
    /// The same policies, each counted in this process as if that were all there is: for trying them out.
    #[must_use]
    pub fn counted_here(mut self) -> Self {
        self.policies.iter_mut().for_each(|policy| policy.placement = Placement::Local);
        self
    }
}

/// Policies with their keys: one generation of the configuration.
#[derive(Clone, Debug)]
pub struct Policies {
    /// The policies, and after them what is counted beside them.
    ready: Vec<Ready>,
    /// How many were written down.
    written: usize,
    prefixes: Prefixes,
    verifier: Option<Verifier>,
    share: bool,
    waits: bool,
    /// Counts up with every reload, from 1.
    pub generation: u64,
}

impl Policies {
    /// Joins a set with the deployment's salt.
    pub fn new(set: PolicySet, salt: &Salt, generation: u64) -> Self {
        let PolicySet { policies, prefixes, verifier, instances } = set;
        let share = policies.iter().any(|policy| policy.placement.is_shared());
        let waits = share || policies.iter().any(|policy| policy.placement == Placement::Durable);
        let ready = |(index, policy)| Ready::new(policy, index, instances, salt);
        let mut ready: Vec<Ready> = (0..).zip(policies).map(ready).collect();
        let written = ready.len();
        let mut beside = Vec::new();
        for (owner, next) in (0..).zip(&mut ready) {
            for (kind, policy) in next.policy.beside() {
                let number = u16::try_from(written.saturating_add(beside.len())).unwrap_or(u16::MAX);
                next.beside[kind as usize] = Some(number);
                beside.push(Ready::new(policy, number, instances, salt).counted_beside(owner, kind));
            }
        }
        ready.append(&mut beside);
        Policies { ready, written, prefixes, verifier, generation, share, waits }
    }

    /// The policies with their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Ready> {
        self.ready.iter().take(self.written)
    }

    /// The same, and what is counted beside them: one for each table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Ready> {
        self.ready.iter()
    }

    /// What of this kind is counted beside a policy.
    pub(crate) fn beside(&self, ready: &Ready, kind: Beside) -> Option<&Ready> {
        self.ready(ready.beside[kind as usize]?)
    }

    /// The policy with this number.
    pub fn get(&self, index: u16) -> Option<&Policy> {
        self.ready.get(usize::from(index)).map(|ready| &ready.policy)
    }

    /// The policy with this number, made ready.
    pub(crate) fn ready(&self, index: u16) -> Option<&Ready> {
        self.ready.get(usize::from(index))
    }

    /// Whether some count is shared with other instances.
    pub(crate) const fn share(&self) -> bool {
        self.share
    }

    pub(crate) const fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    pub(crate) const fn verifier(&self) -> Option<&Verifier> {
        self.verifier.as_ref()
    }

    /// Whether some policy makes requests wait for their turn.
    pub fn queue(&self) -> bool {
        self.iter().any(|ready| ready.policy.rule.algorithm() == tollgate_core::Algorithm::LeakyQueue)
    }

    /// Whether some decision has to be waited for.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// The policy with this name.
    pub fn named(&self, name: &str) -> Option<&Ready> {
        self.iter().find(|ready| ready.policy.name == name)
    }

    /// The same, or what is counted beside a policy.
    pub(crate) fn any_named(&self, name: &str) -> Option<&Ready> {
        self.ready.iter().find(|ready| ready.policy.name == name)
    }

    /// The names of the policies, where they are to outlive the process.
    pub fn journalled(&self) -> Vec<Option<&str>> {
        let durable = |ready: &Ready| ready.policy.placement == Placement::Durable;
        self.ready.iter().map(|ready| durable(ready).then_some(ready.policy.name.as_str())).collect()
    }

    /// The policies that a request meets, in order, with what each makes of it (the subject is shown, so this is for
    /// `explain`, not for logs).
    pub fn explain(&self, request: &Request<'_>) -> Vec<(&Ready, Option<(String, String)>)> {
        let tokens = Tokens::new(self.verifier.as_ref());
        let paths = request.path_readings();
        let met = self.iter().filter(|ready| ready.policy.matches.matches(request, &paths));
        met.map(|ready| {
            let find = |source| match crate::ready::find(source, request, &tokens, self.prefixes) {
                Found::Subject(subject) => Some((source, subject)),
                _ => None,
            };
            let found = ready.policy.subjects.iter().find_map(find);
            let shown =
                found.map(|(source, s)| (source.to_string(), String::from_utf8_lossy(&s).into_owned()));
            (ready, shown)
        })
        .collect()
    }
}

/// What the store answered to a demand, as a ruling.
pub(crate) fn rule_on(policies: &Arc<Policies>, demand: &Demand<'_>, answer: &Answer) -> Ruling {
    let parts = parts(policies, demand.charges(), answer).collect();
    let mut ruling =
        Ruling { parts, ..Ruling::new(Arc::clone(policies), answer.now, Reason::Admitted, None) };
    if answer.is_admit() {
        return ruling;
    }
    // No retry helps one that never fits; a key's own refusal says more than our lack of room.
    let rank = |part: &Part| match part.outcome.verdict {
        Verdict::Admit { .. } | Verdict::Unasked => (0, 0, Reason::Admitted),
        Verdict::Full { retry_after } => (1, retry_after, Reason::Unavailable),
        Verdict::Refuse { retry_after } => (2, retry_after, Reason::Throttled),
        Verdict::Never => (3, 0, Reason::TooCostly),
    };
    let parts = ruling.parts.iter().map(|part| (rank(part), part.policy));
    let bars = bars(policies, demand, answer);
    if let Some(((_, _, reason), scope)) =
        parts.chain(bars.clone()).max_by_key(|((rank, after, _), _)| (*rank, *after))
    {
        (ruling.reason, ruling.scope) = (reason, Some(scope));
    }
    ruling.barred = bars.map(|((_, after, _), _)| after).max();
    let bans = |charge: &Charge<'_>| {
        matches!(policies.ready(charge.policy).and_then(|r| r.of), Some((_, Beside::Bans)))
    };
    let mut unasked =
        demand.charges().iter().zip(answer.outcomes()).filter(|(_, o)| o.verdict == Verdict::Unasked);
    ruling.bars_unasked =
        unasked.any(|(charge, _)| bans(charge)) || answer.outcomes().len() < demand.charges().len();
    if ruling.reason == Reason::Admitted {
        ruling.reason = Reason::Unavailable;
    }
    ruling
}

/// Who is barred beside the policies of a demand: how much that weighs, for how long and why, and by which policy.
fn bars<'a>(
    policies: &'a Policies,
    demand: &'a Demand<'_>,
    answer: &'a Answer,
) -> impl Iterator<Item = ((u8, u64, Reason), u16)> + Clone + 'a {
    demand.charges().iter().zip(answer.outcomes()).filter_map(|(charge, outcome)| {
        let (owner, kind) = policies.ready(charge.policy)?.of?;
        let after = match outcome.verdict {
            Verdict::Refuse { retry_after } => retry_after,
            Verdict::Full { retry_after } => return Some(((1, retry_after, Reason::Unavailable), owner)),
            _ => return None,
        };
        let obeys = policies.get(owner).is_some_and(|policy| policy.obey > 0);
        Some(match kind {
            Beside::Bans => ((4, after, Reason::Banned), owner),
            Beside::Holds if obeys => ((2, after, Reason::Held), owner),
            _ => ((2, after, Reason::Throttled), owner),
        })
    })
}

/// The outcomes as the policies publish them. A charge that nobody looked at has no part, nor has what is counted beside them.
pub(crate) fn parts<'a>(
    policies: &'a Policies,
    charges: &'a [Charge<'_>],
    answer: &'a Answer,
) -> impl Iterator<Item = Part> + 'a {
    let asked = charges.iter().zip(answer.outcomes()).filter(|(_, o)| o.verdict != Verdict::Unasked);
    asked.filter_map(|(charge, outcome)| {
        let ready = policies.ready(charge.policy).filter(|ready| ready.of.is_none())?;
        // Of a key that is spread over several, one was asked.
        let spread = ready.policy.spread();
        let outcome = Outcome {
            limit: outcome.limit.saturating_mul(spread),
            remaining: outcome.remaining.saturating_mul(spread),
            ..*outcome
        };
        Some(Part {
            policy: charge.policy,
            window: window(charge.rule),
            key: charge.key,
            cost: charge.cost,
            given_back: false,
            asked: 1,
            rule: ready.number(charge.rule),
            spare: charge.spare,
            charged: answer.charged,
            settled: false,
            outcome,
        })
    })
}

/// The time that the published quota takes to come back: the capacity at the sustained rate.
fn window(rule: &Rule) -> u64 {
    let quota = rule.quota();
    if rule.capacity() == quota.limit() {
        quota.window()
    } else {
        rule.capacity().saturating_mul(quota.interval())
    }
}

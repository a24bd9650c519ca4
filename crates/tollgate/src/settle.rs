//! After the decision: what was charged is given back, or more is owed, as it turns out.

use tollgate_core::{Algorithm, Charge, Outcome, Rule, Shape, Verdict};
use tollgate_store::{Demand, Intent, Store, Unanswered};

use crate::policies::{Policies, parts};
use crate::policy::Policy;
use crate::ready::Ready;
use crate::response::Response;
use crate::{Limiter, Part, Ruling};

/// What becomes of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Adjust {
    /// It stays.
    Keep,
    /// So many of its units are given back, as charged at this time.
    Back(u64, u64),
    /// So many more are owed.
    Owe(u64),
}

impl<S: Store> Limiter<S> {
    /// Gives back all that a request was charged: it is not passed on. The places that it has in queues count as new, for their time
    /// has not come.
    pub async fn give_back(&self, ruling: &mut Ruling) {
        let all = |_: &Policy, part: &Part| {
            let queues = matches!(part.outcome.verdict, Verdict::Admit { wait } if wait > 0);
            Adjust::Back(part.cost, if queues { Charge::LATELY } else { part.charged })
        };
        self.adjust(ruling, all).await;
    }

    /// Tells what came of a request that was asked about with [`Asked::Exchange`](crate::Asked::Exchange): policies that go by the
    /// response charge what it costs, as far as that is known from its head. Costs that go by a size which is not announced are
    /// told by [`Limiter::streamed`].
    pub async fn responded(&self, ruling: &mut Ruling, response: &Response<'_>) {
        let known = |policy: &Policy, part: &Part| {
            let Some(on) = &policy.response else { return Adjust::Keep };
            let rule = policy.rule;
            on.cost(response, part.charged_for()).map_or(Adjust::Keep, |cost| turned_out(&rule, part, cost))
        };
        self.adjust(ruling, known).await;
    }

    /// Tells how many bytes the body of a response had that [`Limiter::responded`] could not tell yet.
    pub async fn streamed(&self, ruling: &mut Ruling, bytes: u64) {
        let sized = |policy: &Policy, part: &Part| {
            let cost = policy.response.as_ref().and_then(|on| on.cost.as_ref());
            cost.map_or(Adjust::Keep, |cost| turned_out(&policy.rule, part, cost.of_size(bytes)))
        };
        self.adjust(ruling, sized).await;
    }

    /// Tells that no response came of a request that was passed on: its client has gone, or it failed. Policies that charge after the
    /// response charge what it may have cost; what was charged before stays charged.
    pub async fn unanswered(&self, ruling: &mut Ruling) {
        let owes = |policy: &Policy, part: &Part| match &policy.response {
            Some(on) if on.after && part.cost == 0 => Adjust::Owe(on.most(part.charged_for())),
            _ => Adjust::Keep,
        };
        self.adjust(ruling, owes).await;
    }

    async fn adjust(&self, ruling: &mut Ruling, what: impl Fn(&Policy, &Part) -> Adjust) {
        if !ruling.is_admit() {
            return;
        }
        let instead = ruling.fallback.is_some();
        let policies = std::sync::Arc::clone(&ruling.policies);
        for part in &mut ruling.parts {
            let Some(ready) = policies.ready(part.policy).filter(|_| !part.given_back && !part.settled)
            else {
                continue;
            };
            // What answered instead of the store has charged nothing there.
            if instead && ready.policy.placement.is_shared() {
                continue;
            }
            let adjust = what(&ready.policy, part);
            if matches!(adjust, Adjust::Keep) {
                continue;
            }
            part.settled = true;
            let target = Target { policies: &policies, ready, key: part.key, rule: part.rule };
            if let Ok(Some(outcome)) = self.settle_one(&target, adjust).await {
                part.outcome = Outcome { verdict: part.outcome.verdict, ..outcome };
            }
        }
    }

    /// Gives back or owes, and tells how the key stands then, if that was anything.
    pub(crate) async fn settle_one(
        &self,
        target: &Target<'_>,
        adjust: Adjust,
    ) -> Result<Option<Outcome>, Unanswered> {
        let (cost, intent) = match adjust {
            Adjust::Keep | Adjust::Back(0, _) | Adjust::Owe(0) => return Ok(None),
            Adjust::Back(cost, charged) => (cost, Intent::GiveBack { charged }),
            Adjust::Owe(cost) => (cost, Intent::Owe),
        };
        loop {
            let active = self.load();
            let policies = &active.policies;
            // A policy that was reloaded meanwhile is told under its new rule.
            let same = policies.generation == target.policies.generation;
            let named = || policies.any_named(&target.ready.policy.name);
            let ready = if same { policies.ready(target.ready.index) } else { named() };
            let Some(ready) = ready else { return Ok(None) };
            let rule = ready.rule(target.rule);
            let charge = Charge { policy: ready.index, key: target.key, rule, cost, spare: 0 };
            let places = self.places(&active);
            match places.settle(&Demand::of(charge).to(intent), self.clock().now()).await {
                Err(Unanswered::Moved) => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(answer) => {
                    let part = parts(policies, std::slice::from_ref(&charge), &answer).next();
                    return Ok(part.map(|part| part.outcome));
                }
            }
        }
    }
}

/// What a part becomes whose response cost so much.
fn turned_out(rule: &Rule, part: &Part, cost: u64) -> Adjust {
    // Without a cost it was only looked whether there is room.
    match part.cost.checked_sub(cost) {
        _ if part.cost == 0 => Adjust::Owe(cost),
        Some(over) => Adjust::Back(over, credited(rule, part.charged, RESPONSE_GRACE)),
        None => Adjust::Owe(cost.saturating_sub(part.cost)),
    }
}

/// One key of a policy.
pub(crate) struct Target<'p> {
    /// The policies that decided.
    pub(crate) policies: &'p Policies,
    /// The one of the key.
    pub(crate) ready: &'p Ready,
    /// The key.
    pub(crate) key: tollgate_core::Fingerprint,
    /// Which of its rules the key is counted by.
    pub(crate) rule: u16,
}

/// Within this time of its charge what a response did not cost comes back whole, in nanoseconds: ten seconds.
///
/// A refund of a cell gives back its length less its age, for what has leaked away meanwhile is given back by time. Of requests that
/// are under way together each would lose its age, though time passes once for all of them; so busy subjects would run out of
/// what nobody used. Given back whole within a time G, a cell is never further behind that of what counted alone than G: what
/// counts keeps B + r (t + G) in every interval of t.
pub const RESPONSE_GRACE: u64 = 10 * tollgate_core::SECOND;

/// When a charge counts as made that is given back: up to `grace` later than it was, where nothing has edges. In windows nothing leaks,
/// and one's units are not another's.
pub(crate) fn credited(rule: &Rule, charged: u64, grace: u64) -> u64 {
    let continuous = rule.shape() == Shape::Cell && rule.algorithm() != Algorithm::FixedWindow;
    charged.saturating_add(if continuous { grace } else { 0 })
}

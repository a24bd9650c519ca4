//! Keys that cannot be decided together are decided in turn, and a later refusal gives the earlier ones back: never over a
//! bound, for a moment under it.

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Outcome};

use crate::{Answer, Demand, Intent, MAX_CHARGES, Store, Unanswered};

/// A store that is asked about one key at a time.
#[derive(Debug)]
pub struct Singly<S> {
    inner: S,
}

impl<S> Singly<S> {
    /// Asks `inner` about one key at a time.
    pub const fn new(inner: S) -> Self {
        Singly { inner }
    }
}

impl<S: Store> Singly<S> {
    /// Gives back what was charged, and brings the outcomes up to date. What fails stays charged until time gives it back.
    async fn give_back(&self, charged: &[(Charge<'_>, u64)], times: u64, outcomes: &mut [Outcome], now: u64) {
        for ((charge, at), outcome) in charged.iter().zip(outcomes) {
            let all = Charge { cost: charge.cost.saturating_mul(times), ..*charge };
            let back = self.inner.decide(&Demand::of(all).to(Intent::GiveBack { charged: *at }), now).await;
            if let Some(after) = back.ok().and_then(|answer| answer.outcomes().first().copied()) {
                *outcome = Outcome { verdict: outcome.verdict, ..after };
            }
        }
    }

    async fn in_turn(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let (mut admitted, mut at) = (demand.asked(), now);
        let mut outcomes: ArrayVec<Outcome, MAX_CHARGES> = ArrayVec::new();
        let mut charged: ArrayVec<(Charge<'_>, u64), MAX_CHARGES> = ArrayVec::new();
        for charge in demand.charges() {
            if admitted == 0 {
                outcomes.push(charge.unasked());
                continue;
            }
            let one = match self
                .inner
                .decide(&Demand::of(*charge).times(admitted).fleeting(demand.is_fleeting()), now)
                .await
            {
                Ok(one) => one,
                Err(error) => {
                    self.give_back(&charged, admitted, &mut outcomes, now).await;
                    return Err(error);
                }
            };
            let excess = admitted.saturating_sub(one.admitted);
            if excess > 0 {
                self.give_back(&charged, excess, &mut outcomes, now).await;
            }
            (admitted, at) = (one.admitted, at.max(one.now));
            outcomes.extend(one.outcomes().first().copied());
            charged.push((*charge, one.charged));
        }
        let earliest = charged.iter().map(|(_, at)| *at).min().unwrap_or(at);
        let mut answer = Answer::new(at, admitted).charged_at(earliest);
        outcomes.into_iter().for_each(|outcome| answer.push(outcome));
        Ok(answer)
    }
}

impl<S: Store> Store for Singly<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let charges = demand.charges();
        if charges.len() < 2 {
            return self.inner.decide(demand, now).await;
        }
        if matches!(demand.intent(), Intent::Take { .. }) {
            return self.in_turn(demand, now).await;
        }
        let mut answer = Answer::new(now, 0);
        for charge in charges {
            let one = self.inner.decide(&Demand::of(*charge).to(demand.intent()), now).await?;
            answer.admitted = answer.admitted.saturating_add(one.admitted);
            one.outcomes().iter().for_each(|outcome| answer.push(*outcome));
        }
        Ok(answer)
    }
}

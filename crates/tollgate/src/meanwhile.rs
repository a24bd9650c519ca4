//! What is answered while the shared store is out of reach.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Rule};
use tollgate_store::{Demand, MAX_CHARGES, Moved, Store, Unanswered};

use crate::Reason;
use crate::decision::Ruling;
use crate::placement::Placement;
use crate::places::{Places, instead_key};
use crate::policies::{Policies, rule_on};
use crate::policy::{Class, Direction};
use crate::ready::Ready;

impl<S: Store> Places<'_, S> {
    /// What is answered when the count is out of reach: that of the policies' directions that lets least through. What is
    /// counted in this process is still counted, and what is counted here meanwhile is.
    pub(crate) async fn without_store(
        &self,
        policies: Arc<Policies>,
        demand: &Demand<'_>,
        now: u64,
    ) -> Result<Ruling, Moved> {
        let mut directions: ArrayVec<(&Ready, Direction), MAX_CHARGES> = ArrayVec::new();
        let mut rules: ArrayVec<(Charge<'_>, Option<Rule>), MAX_CHARGES> = ArrayVec::new();
        for charge in demand.charges() {
            let Some(ready) = self.policies.ready(charge.policy) else { continue };
            let shared = ready.policy.placement.is_shared();
            // A count in this process alone is never out of reach, so its policy has no say.
            if shared || ready.policy.placement == Placement::Durable {
                directions.push((ready, ready.policy.on_unavailable));
            }
            let instead = ready.counted(charge.rule).and_then(|counted| counted.instead);
            if !shared || instead.is_some() {
                rules.push((*charge, instead));
            }
        }
        let of = |wanted| directions.iter().find(|(_, direction)| *direction == wanted).copied();
        let first = of(Direction::Refuse).or(of(Direction::Local)).or(directions.first().copied());
        let decided = first.map(|(ready, _)| ready.index);
        let capped = directions.iter().find(|(ready, _)| ready.policy.class == Some(Class::Read));
        let refused = first.is_some_and(|(_, direction)| direction == Direction::Refuse);
        let mut ruling = if refused {
            Ruling::new(Arc::clone(&policies), now, Reason::Unavailable, decided)
        } else if self.policies.share() && !rules.is_empty() {
            self.meanwhile(Arc::clone(&policies), &rules, now).await?
        } else {
            Ruling::new(Arc::clone(&policies), now, Reason::Admitted, decided)
        };
        // Asked last, so that what is refused anyway takes nothing of it.
        let cost = demand.charges().iter().map(|charge| charge.cost).max().unwrap_or(0);
        if let (true, Some((ready, _)), Some(stacks)) = (ruling.is_admit(), capped, self.stacks)
            && !stacks.read_cap.admits(cost, now)
        {
            ruling = Ruling::new(policies, now, Reason::Unavailable, Some(ready.index));
        }
        ruling.fallback = first.map(|(_, direction)| direction);
        Ok(ruling)
    }

    /// Decides in this process what is counted here anyway, and what is counted here meanwhile.
    async fn meanwhile(
        &self,
        policies: Arc<Policies>,
        rules: &[(Charge<'_>, Option<Rule>)],
        now: u64,
    ) -> Result<Ruling, Moved> {
        let mut demand = Demand::new();
        for (charge, instead) in rules {
            let charge = match instead {
                Some(rule) => Charge { key: instead_key(charge.key), rule, ..*charge },
                None => *charge,
            };
            let _never_more_than_there_were = demand.push(charge);
        }
        match self.here.decide(&demand, now).await {
            Ok(answer) => Ok(rule_on(&policies, &demand, &answer)),
            Err(Unanswered::Moved) => Err(Moved),
            Err(_) => Ok(Ruling::new(policies, now, Reason::Unavailable, None)),
        }
    }
}

//! One demand over several places: what is counted in this process, and what in the store that instances share.
//!
//! What can be decided at once is; places are asked in turn, the cheapest first, and a later refusal gives the earlier
//! charges back: never over a bound, for a moment under it.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Fingerprint, Outcome, Rule, Verdict};
use tollgate_store::{Answer, Demand, Intent, MAX_CHARGES, Moved, Shared, Store, Unanswered};

use crate::decision::Ruling;
use crate::placement::{Placement, shard};
use crate::plan::Plan;
use crate::policies::{Policies, parts};
use crate::policy::{Direction, Policy};
use crate::ready::Ready;
use crate::{Part, Reason};

/// The store that instances share, as it is asked by placement: each the same store behind wrappers of its own.
#[derive(Clone, Debug)]
pub struct Stacks {
    /// For [`Placement::Strict`], [`Placement::Sharded`] and [`Placement::Layered`].
    pub strict: Shared,
    /// For [`Placement::Leased`].
    pub leased: Shared,
    /// For [`Placement::Approximate`].
    pub approximate: Shared,
    /// How much this instance admits while the store is out of reach, over all policies of class [`Class::Read`](crate::Class::Read).
    pub read_cap: ReadCap,
    /// How long a decision may take, over all places.
    pub deadline: std::time::Duration,
}

/// A limit of this process for everybody together.
#[derive(Clone, Debug)]
pub struct ReadCap {
    rule: Rule,
    cell: Arc<std::sync::Mutex<[u64; 1]>>,
}

impl ReadCap {
    /// At most this, by GCRA.
    pub fn new(quota: tollgate_core::Quota) -> Self {
        ReadCap { rule: Rule::gcra(quota), cell: Arc::default() }
    }

    pub(crate) fn admits(&self, cost: u64, now: u64) -> bool {
        let charge = Charge { policy: 0, key: Fingerprint::default(), rule: &self.rule, cost, spare: 0 };
        let mut cell = self.cell.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        charge.decide(&mut *cell, now).verdict.is_admit()
    }
}

/// Where a charge is decided, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Here,
    Approximate,
    Strict,
    /// Last: what is taken from a lease cannot be given back.
    Leased,
}

const PLACES: [Place; 4] = [Place::Here, Place::Approximate, Place::Strict, Place::Leased];

impl Placement {
    const fn place(self) -> Place {
        match self {
            Placement::Local | Placement::Divided | Placement::Durable => Place::Here,
            Placement::Approximate => Place::Approximate,
            Placement::Leased => Place::Leased,
            Placement::Strict | Placement::Sharded | Placement::Layered => Place::Strict,
        }
    }
}

/// The places of one generation of policies.
pub(crate) struct Places<'p, S> {
    pub(crate) policies: &'p Policies,
    pub(crate) here: &'p S,
    pub(crate) stacks: Option<&'p Stacks>,
}

/// Charges with their places in the demand.
type Group<'d> = (Demand<'d>, ArrayVec<usize, MAX_CHARGES>);

impl<S: Store> Places<'_, S> {
    /// Decides a demand: all admit and are charged, or none is.
    pub(crate) async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if !self.policies.share() {
            return self.here.decide(demand, now).await;
        }
        if let Some(refused) = self.first_layer(demand, now).await? {
            return Ok(refused);
        }
        let mut groups = PLACES.iter().map(|place| (*place, self.group(demand, *place)));
        let mut groups: ArrayVec<(Place, Group<'_>), 4> =
            groups.by_ref().filter(|(_, (_, indices))| !indices.is_empty()).collect();
        if groups.len() <= 1 {
            let place = groups.pop().map_or(Place::Here, |(place, _)| place);
            if demand.charges().len() < 2 || place == Place::Here {
                return self.ask(place, demand, now).await;
            }
            // Several keys may be on several servers, which are asked in turn.
            let decided = self.in_time(self.ask(place, demand, now)).await;
            return decided.unwrap_or(Err(Unanswered::Unavailable));
        }
        // One place keeps its own time; several have it together.
        let decided = self.in_time(self.in_turn(demand, &groups, now)).await;
        decided.unwrap_or(Err(Unanswered::Unavailable))
    }

    /// Waits no longer than a decision may take. `None` when that is over.
    async fn in_time<T>(&self, decided: impl Future<Output = T>) -> Option<T> {
        #[cfg(feature = "shared")]
        if let Some(stacks) = self.stacks {
            return tokio::time::timeout(stacks.deadline, decided).await.ok();
        }
        Some(decided.await)
    }

    async fn ask(&self, place: Place, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        match (place, self.stacks) {
            (Place::Here, _) => self.here.decide(demand, now).await,
            (_, None) => Err(Unanswered::Unavailable),
            (Place::Approximate, Some(stacks)) => stacks.approximate.decide(demand, now).await,
            (Place::Leased, Some(stacks)) => stacks.leased.decide(demand, now).await,
            (Place::Strict, Some(stacks)) => stacks.strict.decide(demand, now).await,
        }
    }

    fn place(&self, charge: &Charge<'_>) -> Place {
        self.policies.get(charge.policy).map_or(Place::Here, |policy| policy.placement.place())
    }

    fn group<'d>(&self, demand: &Demand<'d>, place: Place) -> Group<'d> {
        let mut group = (Demand::new().fleeting(demand.is_fleeting()), ArrayVec::new());
        for (index, charge) in demand.charges().iter().enumerate() {
            if self.place(charge) == place && group.0.push(*charge).is_ok() {
                group.1.push(index);
            }
        }
        group
    }

    async fn in_turn(
        &self,
        demand: &Demand<'_>,
        groups: &[(Place, Group<'_>)],
        now: u64,
    ) -> Result<Answer, Unanswered> {
        let mut outcomes: ArrayVec<Outcome, MAX_CHARGES> =
            demand.charges().iter().map(Charge::unasked).collect();
        let mut charged: ArrayVec<(Place, &Group<'_>, u64), 4> = ArrayVec::new();
        let mut answer = Answer::new(now, 1);
        for (place, group) in groups {
            let asked = self.ask(*place, &group.0, now).await;
            if asked.as_ref().map_or(true, |answer| !answer.is_admit()) {
                for (place, group, at) in &charged {
                    let back = group.0.clone().to(Intent::GiveBack { charged: *at });
                    // What fails stays charged until time gives it back.
                    if let Ok(back) = self.ask(*place, &back, now).await {
                        set(&mut outcomes, group, &back);
                    }
                }
            }
            let part = asked?;
            answer.now = answer.now.max(part.now);
            set(&mut outcomes, group, &part);
            if !part.is_admit() {
                answer.admitted = 0;
                break;
            }
            charged.push((*place, group, part.charged));
        }
        outcomes.into_iter().for_each(|outcome| answer.push(outcome));
        Ok(answer)
    }

    /// Charges the first layers of layered policies, which count what is tried. The answer, when one refuses.
    async fn first_layer(&self, demand: &Demand<'_>, now: u64) -> Result<Option<Answer>, Unanswered> {
        for (index, charge) in demand.charges().iter().enumerate() {
            let counted = self.policies.ready(charge.policy).and_then(|ready| ready.counted(charge.rule));
            let Some(first) = counted.and_then(|counted| counted.first) else { continue };
            let tried = Charge { key: first_key(charge.key), rule: &first, ..*charge };
            let tried = self.here.decide(&Demand::of(tried), now).await?;
            if tried.is_admit() {
                continue;
            }
            let mut refused = Answer::new(now, 0);
            for (other, charge) in demand.charges().iter().enumerate() {
                let outcome = tried.outcomes().first().filter(|_| other == index);
                // The limit that is published is the policy's, of which nothing is left.
                refused.push(outcome.map_or_else(
                    || charge.unasked(),
                    |outcome| Outcome { limit: charge.rule.capacity(), remaining: 0, ..*outcome },
                ));
            }
            return Ok(Some(refused));
        }
        Ok(None)
    }

    /// Gives back what is to be given back, when the rest was admitted by the store. What cannot be given back stays charged; when
    /// nothing else was asked for, the ruling says so.
    pub(crate) async fn give_back(
        &self,
        plan: &Plan<'_>,
        now: u64,
        ruling: &mut Ruling,
    ) -> Result<(), Moved> {
        let demand = &plan.back.demand;
        if demand.charges().is_empty() || !ruling.is_admit() {
            return Ok(());
        }
        let only_back = plan.take.demand.charges().is_empty();
        // Nobody waits a second time for a store that has just not answered.
        let given = match ruling.fallback {
            Some(_) => None,
            None => self.in_time(self.give_back_all(demand, now, ruling)).await,
        };
        match given {
            Some(Ok(())) => {}
            // Begun again, what was given back already would be given back twice.
            Some(Err(Unanswered::Moved)) if only_back && !ruling.parts.iter().any(|part| part.given_back) => {
                return Err(Moved);
            }
            _ if only_back => {
                (ruling.reason, ruling.scope) =
                    (Reason::Unavailable, demand.charges().first().map(|c| c.policy));
                // Nobody is let through or kept out by it, but it has not happened.
                ruling.fallback = Some(Direction::Refuse);
            }
            _ => {}
        }
        Ok(())
    }

    async fn give_back_all(
        &self,
        demand: &Demand<'_>,
        now: u64,
        ruling: &mut Ruling,
    ) -> Result<(), Unanswered> {
        for charge in demand.charges() {
            let answer = self.give_back_one(charge, now).await?;
            let part = parts(self.policies, std::slice::from_ref(charge), &answer).next();
            ruling.parts.extend(part.map(|part| Part { given_back: true, ..part }));
        }
        Ok(())
    }

    /// Of a key that is spread over several nobody knows which one was charged, and a lease holds what was: they are only told
    /// where they stand.
    async fn give_back_one(&self, charge: &Charge<'_>, now: u64) -> Result<Answer, Unanswered> {
        let place = self.place(charge);
        let spread = self.policies.get(charge.policy).map_or(1, Policy::spread);
        if spread == 1 && place != Place::Leased {
            let back = Demand::of(*charge).to(Intent::GiveBack { charged: Charge::LATELY });
            return self.ask(place, &back, now).await;
        }
        self.ask(place, &Demand::of(Charge { cost: 0, ..*charge }), now).await
    }

    /// Adds what the watching policies would have decided, each alone. One that cannot be asked just now is not watched.
    pub(crate) async fn watch(&self, plan: &Plan<'_>, now: u64, ruling: &mut Ruling) {
        if plan.shadows.is_empty() {
            return;
        }
        let watch = async {
            for (charge, back) in &plan.shadows {
                let place = self.place(charge);
                // While the store is out of reach nobody waits for those that only watch.
                if place != Place::Here && ruling.fallback.is_some() {
                    continue;
                }
                if *back {
                    let _what_it_took = self.give_back_one(charge, now).await;
                } else if let Ok(answer) = self.ask(place, &Demand::of(*charge), now).await {
                    ruling.shadows.extend(parts(self.policies, std::slice::from_ref(charge), &answer));
                }
            }
        };
        let _cut_short = self.in_time(watch).await;
    }

    /// Asks about one key, where it is counted, in the time that a decision may take.
    pub(crate) async fn settle(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let place = demand.charges().first().map_or(Place::Here, |charge| self.place(charge));
        if place == Place::Here {
            return self.here.decide(demand, now).await;
        }
        self.in_time(self.ask(place, demand, now)).await.unwrap_or(Err(Unanswered::Unavailable))
    }

    /// Forgets a subject wherever it is counted, and gives whether it was known.
    pub(crate) async fn forget(&self, ready: &Ready, subject: &[u8], now: u64) -> Result<bool, Unanswered> {
        let (key, rule) = ready.key(subject);
        let place = ready.policy.placement.place();
        let forget =
            |key| Demand::of(Charge { policy: ready.index, key, rule, cost: 0, spare: 0 }).to(Intent::Forget);
        if place != Place::Here {
            for key in [first_key(key), instead_key(key)] {
                self.here.decide(&forget(key), now).await?;
            }
        }
        let mut known = false;
        for n in 0..ready.policy.spread() {
            known |= self.ask(place, &forget(shard(key, n)), now).await?.admitted > 0;
        }
        Ok(known)
    }
}

fn set(outcomes: &mut [Outcome], group: &Group<'_>, answer: &Answer) {
    for (index, outcome) in group.1.iter().zip(answer.outcomes()) {
        if let Some(slot) = outcomes.get_mut(*index) {
            // What was given back was admitted before, by itself.
            let kept = slot.verdict != Verdict::Unasked && outcome.verdict.is_admit();
            *slot = Outcome { verdict: if kept { slot.verdict } else { outcome.verdict }, ..*outcome };
        }
    }
}

/// The key under which the first layer counts here.
const fn first_key(key: Fingerprint) -> Fingerprint {
    Fingerprint(key.0 ^ 0x6669_7273_745F_6C61_7965_725F_6865_7265)
}

/// The key under which a count that is out of reach is kept here meanwhile.
pub(crate) const fn instead_key(key: Fingerprint) -> Fingerprint {
    Fingerprint(key.0 ^ 0x696E_7374_6561_645F_6F66_5F74_6865_7265)
}

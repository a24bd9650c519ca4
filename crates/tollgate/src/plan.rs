//! What is asked, made into charges: the enforced ones as one demand, the watching ones apart.

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Rule};
use tollgate_store::{Demand, MAX_CHARGES};

use crate::asked::{Asked, Check, Descriptor, MAX_ASKED, Reserved, Stated, Throttle, Units};
use crate::beside::Beside;
use crate::decision::MAX_SHADOWS;
use crate::matching::About;
use crate::policies::Policies;
use crate::policy::Cost;
use crate::ready::{Reading, Ready};
use crate::reserve::MAX_ID_BYTES;
use crate::token::Tokens;
use crate::{Reason, Request, Ruling};

/// Why there is nothing to ask of the store: the reason and the policy.
pub(crate) type Early = (Reason, Option<u16>);

/// Charges, and for each by which of the things asked it is wanted: a bit for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debits<'p> {
    pub(crate) demand: Demand<'p>,
    by: ArrayVec<u16, MAX_CHARGES>,
}

/// What is asked of the store.
#[derive(Debug, Default)]
pub(crate) struct Plan<'p> {
    /// What is taken: all of it or nothing.
    pub(crate) take: Debits<'p>,
    /// What is given back, when all that is taken was admitted.
    pub(crate) back: Debits<'p>,
    /// What only watches: charges that are taken, and those that are given back.
    pub(crate) shadows: ArrayVec<(Charge<'p>, bool), MAX_SHADOWS>,
    /// Which of the things asked is being read: its bit.
    asking: u16,
    /// Whether a reservation is asked for.
    pub(crate) reserves: bool,
}

/// For what a request is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Charge,
    Exchange,
    Look,
}

impl<'p> Debits<'p> {
    /// Adds a charge. One key cannot be charged by two rules at once.
    fn push(&mut self, charge: Charge<'p>, asking: u16) -> bool {
        let other =
            |c: &Charge<'p>| (c.policy, c.key) == (charge.policy, charge.key) && c.rule != charge.rule;
        if self.demand.charges().iter().any(other) {
            return false;
        }
        let Ok(place) = self.demand.push(charge) else { return false };
        match self.by.get_mut(place) {
            Some(by) => *by |= asking,
            None => self.by.push(asking),
        }
        true
    }

    /// Adds a charge of what is counted beside a policy, which is nobody's part.
    fn push_beside(&mut self, charge: Charge<'p>) -> Option<()> {
        let place = self.demand.push(charge).ok()?;
        if place == self.by.len() {
            self.by.push(0);
        }
        Some(())
    }

    /// The charge that is counted under `key` of a policy, and by which things it is wanted.
    fn by(&self, wanted: impl Fn(&Charge<'_>) -> bool) -> u16 {
        let charges = self.demand.charges().iter().zip(&self.by);
        charges.filter(|(charge, _)| wanted(charge)).fold(0, |bits, (_, by)| bits | by)
    }
}

impl Policies {
    /// The charges of what is asked, or why it is answered without the store.
    pub(crate) fn plan<'p>(&'p self, asked: &[Asked<'p>]) -> Result<Plan<'p>, Early> {
        if asked.len() > MAX_ASKED {
            return Err((Reason::Unavailable, None));
        }
        let mut plan = Plan::default();
        // A reservation is asked for by itself, so that nobody else's part is taken for it.
        if asked.len() > 1 && asked.iter().any(|one| matches!(one, Asked::Reserve(_))) {
            return Err((Reason::NoReservations, None));
        }
        for (index, one) in asked.iter().enumerate() {
            plan.asking = u32::try_from(index).ok().and_then(|bit| 1_u16.checked_shl(bit)).unwrap_or(0);
            match one {
                Asked::Request(request) => self.plan_request(&mut plan, request, Purpose::Charge)?,
                Asked::Exchange(request) => self.plan_request(&mut plan, request, Purpose::Exchange)?,
                Asked::Look(request) => self.plan_request(&mut plan, request, Purpose::Look)?,
                Asked::Check(check) => self.plan_check(&mut plan, check)?,
                Asked::Descriptor(descriptor) => self.plan_descriptor(&mut plan, descriptor)?,
                Asked::Throttle(throttle) => self.plan_throttle(&mut plan, throttle)?,
                Asked::Reserve(reserved) => self.plan_reservation(&mut plan, reserved)?,
            }
        }
        Ok(plan)
    }

    fn plan_request<'p>(
        &'p self,
        plan: &mut Plan<'p>,
        request: &Request<'_>,
        purpose: Purpose,
    ) -> Result<(), Early> {
        let tokens = Tokens::new(self.verifier());
        let paths = request.path_readings();
        for ready in self.iter().filter(|ready| ready.policy.matches.matches(request, &paths)) {
            let units = ready.units_of(request, purpose);
            let reading = ready.read(request, &tokens, self.prefixes());
            plan.add(self, ready, reading, units)?;
        }
        Ok(())
    }

    fn plan_check<'p>(&'p self, plan: &mut Plan<'p>, check: &Check<'_>) -> Result<(), Early> {
        let ready = self.named(check.policy).ok_or((Reason::UnknownPolicy, None))?;
        plan.add(self, ready, ready.read_subject(check.subject.as_bytes()), Ok(ready.units(check.cost)))
    }

    /// A check whose subject is any bytes.
    pub(crate) fn plan_subject<'p>(
        &'p self,
        ready: &'p Ready,
        subject: &[u8],
        cost: u64,
    ) -> Result<Plan<'p>, Early> {
        let mut plan = Plan { asking: 1, ..Plan::default() };
        plan.add(self, ready, ready.read_subject(subject), Ok(Units::Take(cost)))?;
        Ok(plan)
    }

    fn plan_descriptor<'p>(&'p self, plan: &mut Plan<'p>, descriptor: &Descriptor<'p>) -> Result<(), Early> {
        let Descriptor { domain, entries, cost, rule } = *descriptor;
        let fits = |ready: &'p Ready| match &ready.policy.matches.about {
            About::Descriptors(pattern) => pattern.rank(domain, entries).map(|rank| (ready, rank)),
            _ => None,
        };
        let Some((_, best)) = self.iter().filter_map(fits).max_by(|(_, a), (_, b)| a.cmp(b)) else {
            return Ok(());
        };
        for (ready, _) in self.iter().filter_map(fits).filter(|(_, rank)| *rank == best) {
            let reading = match rule {
                _ if !ready.policy.client_quota => ready.read_descriptor(entries),
                Stated::Nothing => ready.read_descriptor(entries),
                Stated::Rule(rule) => ready.chosen(ready.read_descriptor(entries), rule)?,
                Stated::NoQuota => return Err((Reason::BadQuota, Some(ready.index))),
            };
            plan.add(self, ready, reading, Ok(ready.units(cost)))?;
        }
        Ok(())
    }

    fn plan_throttle<'p>(&'p self, plan: &mut Plan<'p>, throttle: &Throttle<'p>) -> Result<(), Early> {
        let about = |ready: &&Ready| ready.policy.matches.about == About::Throttle;
        let ready = self.iter().find(about).ok_or((Reason::UnknownPolicy, None))?;
        let reading = ready.chosen(ready.read_subject(throttle.key), throttle.rule)?;
        plan.add(self, ready, reading, Ok(Units::Take(throttle.cost)))
    }

    fn plan_reservation<'p>(&'p self, plan: &mut Plan<'p>, reserved: &Reserved<'p>) -> Result<(), Early> {
        let ready = self.named(reserved.policy).ok_or((Reason::UnknownPolicy, None))?;
        let scope = Some(ready.index);
        let open = self.beside(ready, Beside::Open).filter(|_| plan.take.demand.charges().is_empty());
        let open = open.ok_or((Reason::NoReservations, scope))?;
        if reserved.units == 0 || reserved.id.is_empty() || reserved.id.len() > MAX_ID_BYTES {
            return Err((Reason::BadCost, scope));
        }
        let reading = ready.read_subject(reserved.subject.as_bytes());
        if let Reading::Key { key, .. } = reading {
            let opening = open.opening(key, reserved.units, reserved.id);
            plan.add(self, ready, reading, Ok(Units::Take(reserved.units)))?;
            // Last: where keys are charged in turn, whoever dies in between has charged too much and not too little.
            plan.take.push_beside(opening).ok_or((Reason::Unavailable, scope))?;
            plan.reserves = true;
            return Ok(());
        }
        plan.add(self, ready, reading, Ok(Units::Take(reserved.units)))
    }
}

impl Ready {
    /// What a request comes to.
    fn units_of(&self, request: &Request<'_>, purpose: Purpose) -> Result<Units, Reason> {
        if purpose == Purpose::Look {
            return Ok(Units::Take(0));
        }
        let cost = self.policy.cost.of(request).map_err(|_| Reason::BadCost)?;
        Ok(match &self.policy.response {
            Some(on) if purpose == Purpose::Exchange && on.after => Units::Find(cost),
            Some(on) if purpose == Purpose::Exchange => Units::Take(on.most(cost)),
            _ => Units::Take(cost),
        })
    }

    /// The same of a sampled policy: one in so many is charged for all of them.
    fn sampled(&self, units: Units) -> Units {
        match units {
            Units::Take(cost) if self.policy.sample > 1 && cost > 0 => {
                let all = cost.saturating_mul(self.policy.sample);
                if fastrand::u64(0..self.policy.sample) == 0 { Units::Take(all) } else { Units::Find(all) }
            }
            units => units,
        }
    }

    /// What a cost that somebody stated comes to.
    fn units(&self, cost: Option<i64>) -> Units {
        let usual = if let Cost::Fixed(cost) = self.policy.cost { cost } else { 1 };
        cost.map_or(Units::Take(usual), Units::of)
    }

    /// The same key under a rule that the asker chose, if the policy's is no lower.
    fn chosen<'p>(&self, reading: Reading<'p>, rule: &'p Rule) -> Result<Reading<'p>, Early> {
        let Reading::Key { key, rule: usual } = reading else { return Ok(reading) };
        if !rule.is_within(usual) {
            return Err((Reason::BadQuota, Some(self.index)));
        }
        Ok(Reading::Key { key, rule })
    }
}

impl<'p> Plan<'p> {
    fn add(
        &mut self,
        policies: &'p Policies,
        ready: &'p Ready,
        reading: Reading<'p>,
        units: Result<Units, Reason>,
    ) -> Result<(), Early> {
        let shadow = ready.policy.shadow;
        let scope = Some(ready.index);
        let (key, rule) = match reading {
            Reading::Key { key, rule } => (key, rule),
            Reading::Pass => return Ok(()),
            _ if shadow => return Ok(()),
            Reading::Denied => return Err((Reason::Blocked, scope)),
            Reading::NoSubject => return Err((Reason::NoSubject, scope)),
        };
        let (cost, spare, back) = match units.map(|units| ready.sampled(units)) {
            Ok(Units::Take(cost)) => (cost, 0, false),
            Ok(Units::Find(spare)) => (0, spare, false),
            Ok(Units::GiveBack(cost)) => (cost, 0, true),
            Err(_) if shadow => return Ok(()),
            Err(reason) => return Err((reason, scope)),
        };
        let charge = Charge { policy: ready.index, key: ready.policy.spread_key(key), rule, cost, spare };
        // Bars are looked at in the same step. One that is not drawn of a count elsewhere looks at nothing else.
        let not_drawn = spare > 0 && ready.policy.remembers_samples();
        if !back && !shadow {
            let revocable = ready.policy.response.is_some() || ready.beside.iter().any(Option::is_some);
            if revocable {
                self.take.demand = std::mem::take(&mut self.take.demand).fleeting(true);
            }
            for beside in
                [Beside::Bans, Beside::Holds].iter().filter_map(|kind| policies.beside(ready, *kind))
            {
                self.take.push_beside(beside.barred(key)).ok_or((Reason::Unavailable, scope))?;
            }
        }
        if not_drawn {
            return Ok(());
        }
        if shadow {
            // One that finds no room only fails to watch.
            let _unwatched = self.shadows.try_push((charge, back));
            return Ok(());
        }
        let debits = if back { &mut self.back } else { &mut self.take };
        if debits.push(charge, self.asking) { Ok(()) } else { Err((Reason::Unavailable, scope)) }
    }

    /// Says of each part of a ruling which of the things asked it answers.
    pub(crate) fn attribute(&self, ruling: &mut Ruling) {
        if self.asking <= 1 {
            return;
        }
        for part in &mut ruling.parts {
            let here = |charge: &Charge<'_>| {
                charge.policy == part.policy
                    && (charge.key == part.key || crate::places::instead_key(charge.key) == part.key)
            };
            part.asked = if part.given_back { self.back.by(here) } else { self.take.by(here) };
        }
    }
}

//! A refusal is a promise about the future, so it is remembered: a key refused until `x` is refused here until `x`, and a retry
//! storm costs the store nothing.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate_core::{Charge, Fingerprint, Outcome, Rule, Shape, Verdict};

use crate::around::Now;
use crate::{Answer, Demand, Event, Intent, Store, Tally, Unanswered};

/// How many refusals are remembered: a power of two. A newer one takes the place of an older one.
const PLACES: usize = 1 << 15;

/// How long a refusal is remembered that may be taken back early ([`Demand::fleeting`]), in nanoseconds.
const MOMENT: u64 = tollgate_core::SECOND;

/// A store that remembers whom the one inside refused. What clears a refusal early (a refund or a reset by another instance) is
/// not seen here before its time; one by this instance is.
pub struct Refusals<S> {
    inner: S,
    places: Box<[Mutex<Option<Refusal>>]>,
    now: Option<Now>,
    tally: Arc<Tally>,
}

impl<S> std::fmt::Debug for Refusals<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusals(..)")
    }
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    key: Fingerprint,
    rule: Rule,
    cost: u64,
    spare: u64,
    outcome: Outcome,
    /// The store's time of the refusal, and the caller's when it asked: no later than that, so that the store's time as
    /// it is reckoned from them is never behind.
    store: u64,
    sent: u64,
    /// When the answer was here: no earlier than the refusal, so that a time to retry that is reckoned from it is never early.
    received: u64,
    fleeting: bool,
}

impl Refusal {
    /// What the store would say now, as far as that is known: cells only grow, and other states are known to refuse this cost
    /// until a time.
    fn recall(&self, charge: &Charge<'_>, now: u64) -> Option<Outcome> {
        if self.key != charge.key || self.rule != *charge.rule {
            return None;
        }
        let passed = now.saturating_sub(self.sent);
        if self.fleeting && passed > MOMENT {
            return None;
        }
        let at = self.store.saturating_add(passed);
        if charge.rule.shape() == Shape::Cell {
            let cell = [self.outcome.cell];
            // It is refused for certain, and until then: by the later of two reckonings, and by the earlier.
            if !matches!(charge.judge(&cell, at), Verdict::Refuse { .. }) {
                return None;
            }
            let at = self.store.saturating_add(now.saturating_sub(self.received));
            return Some(charge.outcome(charge.judge(&cell, at), &cell, at));
        }
        // While one unit is refused nothing is left; of other costs the standing would have to be known.
        let Verdict::Refuse { retry_after } = self.outcome.verdict else { return None };
        retry_after.checked_sub(passed).filter(|left| *left > 0)?;
        let passed = now.saturating_sub(self.received);
        let retry_after = retry_after.saturating_sub(passed);
        let one = |cost: u64, spare: u64| (cost, spare) == (1, 0);
        (one(charge.cost, charge.spare) && one(self.cost, self.spare)).then(|| Outcome {
            verdict: Verdict::Refuse { retry_after },
            reset_after: self.outcome.reset_after.saturating_sub(passed),
            ..self.outcome
        })
    }
}

impl<S> Refusals<S> {
    /// Remembers the refusals of `inner`.
    pub fn new(inner: S, tally: Arc<Tally>) -> Self {
        Refusals { inner, places: (0..PLACES).map(|_| Mutex::new(None)).collect(), now: None, tally }
    }

    /// Measures by this clock how long an answer took.
    #[must_use]
    pub fn by(mut self, now: Option<Now>) -> Self {
        self.now = now;
        self
    }

    #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn place(&self, key: Fingerprint) -> Option<&Mutex<Option<Refusal>>> {
        self.places.get(key.0 as usize & (PLACES - 1))
    }

    fn recall(&self, charge: &Charge<'_>, now: u64) -> Option<Outcome> {
        let place = self.place(charge.key)?.lock().unwrap_or_else(PoisonError::into_inner);
        place.as_ref().filter(|_| !charge.only_looks())?.recall(charge, now)
    }

    /// The answer, when a charge of the demand is known to be refused: the store need not be asked about the others.
    fn known(&self, demand: &Demand<'_>, now: u64) -> Option<Answer> {
        let mut answer = Answer::new(now, 0);
        let mut refused = false;
        for charge in demand.charges() {
            let known = self.recall(charge, now);
            refused |= known.is_some();
            answer.push(known.unwrap_or_else(|| charge.unasked()));
        }
        refused.then_some(answer)
    }

    /// Remembers who was refused, and what became of those who had been and now are not.
    fn remember(&self, demand: &Demand<'_>, answer: &Answer, (sent, received): (u64, u64)) {
        for (charge, outcome) in
            demand.charges().iter().zip(answer.outcomes()).filter(|(c, _)| !c.only_looks())
        {
            let Some(place) = self.place(charge.key) else { continue };
            let Charge { key, rule, cost, spare, .. } = *charge;
            let refusal = Refusal {
                key,
                rule: *rule,
                fleeting: demand.is_fleeting(),
                cost,
                spare,
                outcome: *outcome,
                store: answer.now,
                sent,
                received,
            };
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            let refused = matches!(outcome.verdict, Verdict::Refuse { .. });
            let moved = answer.is_admit() && place.is_some_and(|known| known.key == key);
            if refused || moved {
                *place = Some(refusal);
            }
        }
    }

    fn clear(&self, demand: &Demand<'_>) {
        for charge in demand.charges() {
            let Some(place) = self.place(charge.key) else { continue };
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            if place.is_some_and(|refusal| refusal.key == charge.key) {
                *place = None;
            }
        }
    }
}

impl<S: Store> Store for Refusals<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if !matches!(demand.intent(), Intent::Take { .. }) {
            let answer = self.inner.decide(demand, now).await;
            self.clear(demand);
            return answer;
        }
        if let Some(answer) = self.known(demand, now) {
            self.tally.add(Event::Remembered, 1);
            return Ok(answer);
        }
        let begun = self.now.as_ref().map(|clock| clock());
        let answer = self.inner.decide(demand, now).await?;
        let passed = begun.zip(self.now.as_ref()).map_or(0, |(begun, clock)| clock().saturating_sub(begun));
        self.remember(demand, &answer, (now, now.saturating_add(passed)));
        Ok(answer)
    }
}

//! Units are bought in packs and spent here: of `k` checks of a hot key one asks the store.
//!
//! What keeps the bound exact: a charge that moved the cell to position `p` may be spent only up to `p - interval` by the
//! store's clock. After that its debt has been refilled, and spending it would count it twice (an old pack and a full bucket
//! are more than B). So unit j of a pack that moved the cell from c to c + k x interval lapses at c + (j - 1) x interval, and
//! every admitted unit still has its own position in (s, s + capacity], which is the whole proof of B + r t.
//!
//! Nothing is given back to such a key: a refund would move the cell below positions that units of a lease still hold.
//!
//! The store's time is reckoned from the local time at which the pack was asked for, so that an unknown delay only makes it lapse
//! early.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::{Algorithm, Charge, Fingerprint, Outcome, Rule, Verdict};

use crate::around::Now;
use crate::{Answer, Demand, Event, Intent, Store, Tally, Unanswered};

/// How many locks the leases are spread over: a power of two.
const LOCKS: usize = 64;

/// The most keys with a lease under one lock; others ask the store each time.
const MAX_LEASES: usize = 4_096;

/// A store from which units are bought in packs. The pack grows while a key is spent faster than its bucket refills, and
/// shrinks else, so that a slow key is never kept waiting for units that lie here.
pub struct Leases<S> {
    inner: S,
    /// The most units in a pack.
    most: u64,
    locks: [Mutex<HashMap<Fingerprint, Lease>>; LOCKS],
    lapsing: bool,
    now: Option<Now>,
    tally: Arc<Tally>,
}

impl<S> std::fmt::Debug for Leases<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("most", &self.most).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    rule: Rule,
    /// The position of the first unit that is left, and how many are.
    first: u64,
    left: u64,
    /// The store's time and the caller's when it was bought.
    store: u64,
    sent: u64,
    /// The size of the next pack, and of the last one.
    pack: u64,
    bought: u64,
}

impl Lease {
    /// The store's time, or later than that.
    const fn at(&self, now: u64) -> u64 {
        self.store.saturating_add(now.saturating_sub(self.sent))
    }

    /// Drops the units whose time has passed.
    fn lapse(&mut self, now: u64) {
        let interval = self.rule.quota().interval();
        let late = self.at(now).saturating_sub(self.first.saturating_sub(interval));
        let gone = late.div_ceil(interval).min(self.left);
        self.first = self.first.saturating_add(gone.saturating_mul(interval));
        self.left = self.left.saturating_sub(gone);
    }

    /// Spends up to `times` charges of `cost`, and gives how many there were.
    fn spend(&mut self, cost: u64, times: u64) -> u64 {
        let spent = self.left.checked_div(cost).unwrap_or(0).min(times);
        let units = spent.saturating_mul(cost);
        self.left = self.left.saturating_sub(units);
        self.first = self.first.saturating_add(units.saturating_mul(self.rule.quota().interval()));
        spent
    }

    /// What a check is told that was spent from here: the store's standing as of the pack, and what is left of it.
    fn outcome(&self, charge: &Charge<'_>, now: u64) -> Outcome {
        let interval = self.rule.quota().interval();
        let end = [self.first.saturating_add(self.left.saturating_mul(interval)).saturating_sub(interval)];
        let stands = charge.outcome(Verdict::Admit { wait: 0 }, &end, self.at(now));
        let remaining = stands.remaining.saturating_add(self.left).min(stands.limit);
        Outcome { remaining, ..stands }
    }
}

/// What was spent from a lease.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    spent: u64,
    /// When it was bought.
    charged: u64,
    /// When that was all that was asked for: the outcome, and the store's time.
    outcome: Option<(Outcome, u64)>,
    /// How many units to buy beyond what is needed.
    more: u64,
}

impl<S> Leases<S> {
    /// Buys from `inner` up to `most` units at once.
    pub fn new(inner: S, most: u64, tally: Arc<Tally>) -> Self {
        let locks = std::array::from_fn(|_| Mutex::default());
        Leases { inner, most, locks, lapsing: true, now: None, tally }
    }

    /// Reckons by this clock instead of by the time at which a caller came, who may have waited since.
    #[must_use]
    pub fn by(mut self, now: Option<Now>) -> Self {
        self.now = now;
        self
    }

    /// Without the rule that units lapse, to show what it is for.
    #[doc(hidden)]
    #[must_use]
    pub fn naive(mut self) -> Self {
        self.lapsing = false;
        self
    }

    #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn of(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<Fingerprint, Lease>> {
        let lock = &self.locks[(key.0 >> 64) as usize & (LOCKS - 1)];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spends from the lease of a key, and gives how often, and how many units more to ask for.
    fn spend(&self, charge: &Charge<'_>, times: u64, now: u64) -> Spent {
        let mut leases = self.of(charge.key);
        let Some(lease) = leases.get_mut(&charge.key).filter(|lease| lease.rule == *charge.rule) else {
            return Spent::default();
        };
        if self.lapsing {
            lease.lapse(now);
        }
        let (spent, charged) = (lease.spend(charge.cost, times), lease.store);
        if spent == times {
            return Spent {
                spent,
                charged,
                outcome: Some((lease.outcome(charge, now), lease.at(now))),
                more: 0,
            };
        }
        // Spent faster than the bucket refills?
        let since = lease.at(now).saturating_sub(lease.store);
        let fast = since < lease.bought.saturating_mul(lease.rule.quota().interval());
        let most = self.most.min(charge.rule.capacity() / 8);
        lease.pack = if fast { lease.pack.saturating_mul(2).min(most) } else { lease.pack / 2 }.max(1);
        Spent { spent, charged, outcome: None, more: lease.pack.saturating_sub(1) }
    }

    /// Keeps what was bought beyond what was needed.
    fn keep(
        &self,
        charge: &Charge<'_>,
        outcome: &Outcome,
        bought: u64,
        units: u64,
        (store, sent): (u64, u64),
    ) {
        let interval = charge.rule.quota().interval();
        let back = units.saturating_sub(1).saturating_mul(interval);
        let first = outcome.cell.saturating_sub(if units > 0 { back } else { 0 });
        let mut leases = self.of(charge.key);
        if leases.len() >= MAX_LEASES && !leases.contains_key(&charge.key) {
            leases.retain(|_, lease| lease.at(sent).saturating_sub(lease.store) < lease.rule.memory());
            if leases.len() >= MAX_LEASES {
                return;
            }
        }
        let pack = leases.get(&charge.key).map_or(1, |lease| lease.pack);
        let lease = Lease { rule: *charge.rule, first, left: units, store, sent, pack, bought };
        leases.insert(charge.key, lease);
    }
}

impl<S: Store> Store for Leases<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if demand.intent() == Intent::Forget {
            for charge in demand.charges() {
                self.of(charge.key).remove(&charge.key);
            }
        }
        let leased =
            |charge: &Charge<'_>| matches!(charge.rule.algorithm(), Algorithm::Gcra | Algorithm::TokenBucket);
        if matches!(demand.intent(), Intent::GiveBack { .. }) && demand.charges().iter().any(leased) {
            // It would move the cell below positions that units of a lease still hold, here or elsewhere. So it stays
            // charged, and lapses.
            return Ok(Answer::new(now, 0));
        }
        let ([charge], Intent::Take { times }) = (demand.charges(), demand.intent()) else {
            return self.inner.decide(demand, now).await;
        };
        let now = self.now.as_ref().map_or(now, |clock| clock());
        if !leased(charge) || charge.cost == 0 || charge.spare > 0 || charge.is_never() {
            return self.inner.decide(demand, now).await;
        }
        let Spent { spent, charged, outcome, more } = self.spend(charge, times, now);
        self.tally.add(Event::Leased, spent);
        if let Some((outcome, at)) = outcome {
            let mut answer = Answer::new(at, spent).charged_at(charged);
            answer.push(outcome);
            return Ok(answer);
        }
        let needed = times.saturating_sub(spent);
        let asked = needed.saturating_add(more.checked_div(charge.cost).unwrap_or(0));
        let bought = self.inner.decide(&demand.clone().times(asked), now).await?;
        let used = bought.admitted.min(needed);
        let Some(outcome) = bought.outcomes().first() else { return Ok(bought) };
        let units = |charges: u64| charges.saturating_mul(charge.cost);
        let kept = units(bought.admitted.saturating_sub(used));
        if bought.admitted > 0 {
            self.keep(charge, outcome, units(bought.admitted), kept, (bought.now, now));
        }
        let mut answer = Answer::new(bought.now, spent.saturating_add(used));
        answer.charged = if spent > 0 { charged } else { bought.now };
        // When all that was needed was there, the refusal of what was asked for beyond it is nobody's.
        let verdict = if used == needed { Verdict::Admit { wait: 0 } } else { outcome.verdict };
        answer.push(Outcome { verdict, remaining: outcome.remaining.saturating_add(kept), ..*outcome });
        Ok(answer)
    }
}

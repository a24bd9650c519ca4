//! Decisions in this process, brought in line with the shared store in the background.
//!
//! A key is decided here while what is known of it is fresh, and what was admitted is owed to the store, which adds it up
//! whatever it comes to. What is known is fresh for two sync intervals; a key that is new here, or stale, is decided by the store
//! itself. So beyond the bound there is at most what the instances admit before they hear of each other: each at most
//! `B + r x (2 x sync + deadline)`, once, for what is owed is refilled before anything else is admitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate_core::{Charge, Fingerprint, Rule, Shape, Verdict};

use crate::{Answer, Demand, Event, Intent, MAX_CHARGES, Store, Tally, Unanswered};

/// How many locks the keys are spread over: a power of two.
const LOCKS: usize = 64;

/// The most keys under one lock; others are decided by the store.
const MAX_KEYS: usize = 16_384;

/// Reports under way at once.
const MAX_REPORTS: usize = 32;

/// A store that hears afterwards what was admitted here.
#[derive(Debug)]
pub struct Approximate<S> {
    known: Arc<Known<S>>,
    reporter: OnceLock<()>,
}

#[derive(Debug)]
struct Known<S> {
    inner: S,
    every: Duration,
    locks: [Mutex<HashMap<Fingerprint, View>>; LOCKS],
    /// The latest time that a caller came with.
    latest: AtomicU64,
    tally: Arc<Tally>,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
struct View {
    policy: u16,
    rule: Rule,
    cell: [u64; 1],
    /// Units that were admitted here and are not reported yet, those that are on their way, and since when.
    owed: u64,
    sending: u64,
    since: u64,
    /// The store's time and the caller's when the store was last heard of.
    store: u64,
    sent: u64,
}

impl View {
    const fn at(&self, now: u64) -> u64 {
        self.store.saturating_add(now.saturating_sub(self.sent))
    }

    const fn charge(&self, key: Fingerprint, cost: u64) -> Charge<'_> {
        Charge { policy: self.policy, key, rule: &self.rule, cost, spare: 0 }
    }
}

impl<S: Store + 'static> Approximate<S> {
    /// Reports to `inner` every so often.
    pub fn new(inner: S, every: Duration, tally: Arc<Tally>) -> Self {
        let locks = std::array::from_fn(|_| Mutex::default());
        let known = Arc::new(Known { inner, every, locks, latest: AtomicU64::new(0), tally });
        Approximate { known, reporter: OnceLock::new() }
    }
}

impl<S: Store> Known<S> {
    #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn of(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<Fingerprint, View>> {
        self.lock((key.0 >> 64) as usize & (LOCKS - 1))
    }

    fn lock(&self, number: usize) -> MutexGuard<'_, HashMap<Fingerprint, View>> {
        self.locks[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh_for(&self) -> u64 {
        u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX).saturating_mul(2)
    }

    fn here(&self, charge: &Charge<'_>, now: u64) -> Option<Answer> {
        let mut views = self.of(charge.key);
        let view = views.get_mut(&charge.key)?;
        let late = |since: u64| now.saturating_sub(since) > self.fresh_for();
        let unheard = view.owed > 0 || view.sending > 0;
        if view.rule != *charge.rule || late(view.sent) || (unheard && late(view.since)) {
            return None;
        }
        let at = view.at(now);
        let outcome = charge.decide(&mut view.cell, at);
        let admit = outcome.verdict.is_admit();
        if admit {
            view.since = if unheard { view.since } else { now };
            view.owed = view.owed.saturating_add(charge.cost);
        }
        let mut answer = Answer::new(at, u64::from(admit));
        answer.push(outcome);
        Some(answer)
    }

    /// Gives back what the store has not heard of.
    fn give_back(&self, charge: &Charge<'_>, charged: u64, now: u64) -> Option<Answer> {
        let mut views = self.of(charge.key);
        let view = views.get_mut(&charge.key).filter(|view| view.rule == *charge.rule)?;
        view.owed = view.owed.checked_sub(charge.cost)?;
        let at = view.at(now);
        charge.refund(&mut view.cell, charged, at);
        let mut answer = Answer::new(at, 1);
        answer.push(charge.outcome(Verdict::Admit { wait: 0 }, &view.cell, at));
        Some(answer)
    }

    /// Takes the store's word for a key, with what it has not heard of yet on top.
    fn learn(&self, charge: &Charge<'_>, cell: u64, (store, sent): (u64, u64)) {
        let mut views = self.of(charge.key);
        if views.len() >= MAX_KEYS && !views.contains_key(&charge.key) {
            return;
        }
        let (owed, sending, since) =
            views.get(&charge.key).map_or((0, 0, sent), |view| (view.owed, view.sending, view.since));
        let (policy, rule) = (charge.policy, *charge.rule);
        let mut view = View { policy, rule, cell: [cell], owed, sending, since, store, sent };
        Charge { cost: owed.saturating_add(sending), ..*charge }.owe(&mut view.cell, store);
        views.insert(charge.key, view);
    }

    /// The keys that owe, in groups for a demand each. Those that owe nothing and are stale are forgotten.
    fn owing(&self) -> Vec<Vec<Fingerprint>> {
        let latest = self.latest.load(Ordering::Relaxed);
        let mut owing = Vec::new();
        for number in 0..LOCKS {
            let mut views = self.lock(number);
            let owes = |view: &View| view.owed > 0 || view.sending > 0;
            views.retain(|_, view| owes(view) || latest.saturating_sub(view.sent) <= self.fresh_for());
            owing.extend(views.iter().filter(|(_, view)| view.owed > 0).map(|(key, _)| *key));
        }
        owing.chunks(MAX_CHARGES).map(<[_]>::to_vec).collect()
    }

    /// Reports what these keys owe by now.
    async fn report(&self, keys: Vec<Fingerprint>) {
        let sent = self.latest.load(Ordering::Relaxed);
        let mut owing: Vec<(Fingerprint, View)> = Vec::new();
        for key in keys {
            if let Some(view) = self.of(key).get_mut(&key) {
                (view.sending, view.owed) = (view.sending.saturating_add(view.owed), 0);
                owing.push((key, *view));
            }
        }
        let mut demand = Demand::new().to(Intent::Owe);
        for (key, view) in &owing {
            let _one_each = demand.push(view.charge(*key, view.sending));
        }
        let answer = self.inner.decide(&demand, sent).await;
        for (index, (key, view)) in owing.iter().enumerate() {
            let heard =
                answer.as_ref().ok().and_then(|answer| Some((answer.now, answer.outcomes().get(index)?)));
            self.settle(*key, view.sending, heard.is_some(), sent);
            // Under a rule that has changed meanwhile the store's word is asked for anew.
            let same = self.of(*key).get(key).is_some_and(|known| known.rule == view.rule);
            if let (Some((now, outcome)), true) = (heard, same) {
                self.learn(&view.charge(*key, 0), outcome.cell, (now, sent));
            }
        }
    }

    /// What was on its way is there; or it is owed again, for whether the store heard is not known: it will hear again, which
    /// can only refuse more.
    fn settle(&self, key: Fingerprint, units: u64, heard: bool, sent: u64) {
        if let Some(view) = self.of(key).get_mut(&key) {
            view.sending = view.sending.saturating_sub(units);
            if heard {
                view.since = sent;
            } else {
                view.owed = view.owed.saturating_add(units);
            }
        }
    }
}

/// Reports until nobody decides here any more.
async fn report_all<S: Store + 'static>(known: Weak<Known<S>>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(known) = known.upgrade() else { return };
        let mut under_way = JoinSet::new();
        for owing in known.owing() {
            if under_way.len() >= MAX_REPORTS {
                under_way.join_next().await;
            }
            let known = Arc::clone(&known);
            under_way.spawn(async move { known.report(owing).await });
        }
        while under_way.join_next().await.is_some() {}
    }
}

impl<S: Store + 'static> Store for Approximate<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let known = &self.known;
        known.latest.fetch_max(now, Ordering::Relaxed);
        // Without a runtime nobody would report, so then the store decides everything.
        let Ok(runtime) = Handle::try_current() else { return known.inner.decide(demand, now).await };
        self.reporter.get_or_init(|| drop(runtime.spawn(report_all(Arc::downgrade(known), known.every))));
        if demand.intent() == Intent::Forget {
            for charge in demand.charges() {
                known.of(charge.key).remove(&charge.key);
            }
        }
        if let ([charge], Intent::GiveBack { charged }) = (demand.charges(), demand.intent())
            && let Some(answer) = known.give_back(charge, charged, now)
        {
            return Ok(answer);
        }
        let ([charge], Intent::Take { times: 1 }) = (demand.charges(), demand.intent()) else {
            return known.inner.decide(demand, now).await;
        };
        if charge.rule.shape() != Shape::Cell {
            return known.inner.decide(demand, now).await;
        }
        if let Some(answer) = known.here(charge, now) {
            known.tally.add(Event::Leased, answer.admitted);
            return Ok(answer);
        }
        let answer = known.inner.decide(demand, now).await?;
        if let Some(outcome) = answer.outcomes().first() {
            known.learn(charge, outcome.cell, (answer.now, now));
        }
        Ok(answer)
    }
}

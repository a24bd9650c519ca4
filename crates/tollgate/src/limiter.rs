//! The decision path: policies that match, keys, one demand, the store, a ruling.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tollgate_core::{Charge, Quota, Rule};
use tollgate_store::{InProcess, Memory, Moved, Store, Table, Unanswered, WhenFull};

use crate::asked::{Asked, Check, MAX_ASKED};
use crate::clock::Clock;
use crate::config::Problems;
use crate::key::Salt;
use crate::placement::{DEFAULT_SHARDS, Placement};
use crate::places::{Places, Stacks};
use crate::plan::Plan;
use crate::policies::{Policies, PolicySet, rule_on};
use crate::policy::{Cost, DEFAULT_KEYS, Direction, List, Missing, Policy, Subject};
use crate::ready::Ready;
use crate::tables::carried;
use crate::{Decision, Match, Reason, Request, Ruling};

/// How many keys an in-process limiter counts, and what it does with more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    keys: usize,
    when_full: WhenFull,
}

impl Capacity {
    /// Room for `keys` live keys; when they are more, they share (never over a bound).
    pub const fn keys(keys: usize) -> Self {
        Capacity { keys, when_full: WhenFull::Share }
    }

    /// Another choice for when the room is used up.
    #[must_use]
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }
}

/// One more than can be asked together, to tell that it is too many.
const MORE_THAN_ASKED: usize = MAX_ASKED + 1;

/// Decides, by policies, over a store.
#[derive(Debug)]
pub struct Limiter<S = Memory> {
    active: ArcSwap<Active<S>>,
    /// The store that this instance shares with others, if there is one.
    stacks: Option<Stacks>,
    clock: Clock,
    salt: Salt,
    /// Held while policies are exchanged, so that reloads come one after the other.
    reloading: Mutex<()>,
}

/// One generation of policies, and where they are counted.
#[derive(Debug)]
pub(crate) struct Active<S> {
    pub(crate) policies: Arc<Policies>,
    pub(crate) store: S,
}

impl Limiter<Memory> {
    /// A limiter with one GCRA quota, counted in this process.
    pub fn in_process(quota: Quota, capacity: Capacity) -> Self {
        let mut policy = Policy::named("default", Rule::gcra(quota));
        (policy.keys, policy.when_full) = (capacity.keys, capacity.when_full);
        Limiter::new(
            PolicySet { policies: vec![policy], ..PolicySet::default() },
            Salt::random(),
            Clock::system(),
        )
    }

    /// A limiter with the policies of a file's text (`[[policy]]`, `[keys]`, `[jwt]`), counted in this process.
    ///
    /// # Errors
    /// [`Problems`]: everything that is wrong, each with its line.
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        Ok(Limiter::new(PolicySet::from_toml(text)?, Salt::random(), Clock::system()))
    }

    /// The same under a salt that other instances have too: for counts that they share.
    ///
    /// # Errors
    /// As for [`Limiter::from_toml`].
    pub fn salted(text: &str, salt: Salt) -> Result<Self, Problems> {
        Ok(Limiter::new(PolicySet::from_toml(text)?, salt, Clock::system()))
    }

    /// A limiter over this set, salt and clock.
    pub fn new(set: PolicySet, salt: Salt, clock: Clock) -> Self {
        Limiter::with_store(set, salt, clock, |_, memory| memory)
    }

    /// Charges `subject` one unit under the first policy. No await, no allocation, no lock that is held for long. So it cannot
    /// ask a store that instances share: a policy with such a placement is refused as unavailable here; use
    /// [`Limiter::decide_checks`].
    pub fn check(&self, subject: impl AsRef<[u8]>) -> Decision {
        self.check_at(subject, 1, self.clock.now())
    }

    /// Where `subject` stands under the first policy, without charging it.
    pub fn peek(&self, subject: impl AsRef<[u8]>) -> Decision {
        self.check_at(subject, 0, self.clock.now())
    }

    /// Charges `subject` `cost` units under the first policy, at the time `now` in nanoseconds since the Unix epoch.
    pub fn check_at(&self, subject: impl AsRef<[u8]>, cost: u64, now: u64) -> Decision {
        loop {
            let active = self.active.load();
            let Some(ready) = active.policies.iter().next() else { return Decision::UNLIMITED };
            if ready.policy.placement.is_shared() {
                return Decision::OUT_OF_REACH;
            }
            if ready.beside.iter().any(Option::is_some) {
                return self.check_with_bars(subject.as_ref(), cost, now);
            }
            let (key, rule) = ready.key(subject.as_ref());
            if let Ok(outcome) = active.store.check(&Charge { policy: 0, key, rule, cost, spare: 0 }, now) {
                return outcome.into();
            }
            // A reload is about to put the next generation in force.
            std::thread::yield_now();
        }
    }

    /// The same for a policy beside which something is counted.
    fn check_with_bars(&self, subject: &[u8], cost: u64, now: u64) -> Decision {
        loop {
            let active = self.load();
            let Some(ready) = active.policies.iter().next() else { return Decision::UNLIMITED };
            let Ok(plan) = active.policies.plan_subject(ready, subject, cost) else {
                return Decision::OUT_OF_REACH;
            };
            match self.at_once(self.decide_plan(&active, &plan, now)) {
                Some(Ok(ruling)) => return ruling.one(),
                Some(Err(Moved)) => std::thread::yield_now(),
                None => return Decision::OUT_OF_REACH,
            }
        }
    }
}

impl<S: InProcess + Store> Limiter<S> {
    /// A limiter whose store is made over empty tables, one a policy.
    pub fn with_store(
        set: PolicySet,
        salt: Salt,
        clock: Clock,
        store: impl FnOnce(&Policies, Memory) -> S,
    ) -> Self {
        let policies = Policies::new(set, &salt, 1);
        let memory = Memory::new(policies.tables().map(Ready::table).collect::<Vec<_>>());
        let store = store(&policies, memory);
        let active = ArcSwap::from_pointee(Active { policies: Arc::new(policies), store });
        Limiter { active, stacks: None, clock, salt, reloading: Mutex::new(()) }
    }

    /// Exchanges the policies. Usage is kept for every policy whose name and subjects stay, and a changed quota applies to it
    /// at once; no charge falls between the two generations. Gives the new one's number.
    pub fn reload(&self, set: PolicySet) -> u64 {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.active.load_full();
        let policies = Policies::new(set, &self.salt, before.policies.generation + 1);
        let now = self.clock.now();
        let tables = policies.tables().map(|ready| {
            let old = before.policies.any_named(&ready.policy.name);
            let old = old.filter(|old| old.policy.subjects == ready.policy.subjects);
            let kept = old.and_then(|old| Some((old, before.store.memory().table(old.index)?)));
            kept.map_or_else(|| Arc::new(ready.table()), |(old, table)| carried(old, table, ready, now))
        });
        let memory = Memory::new(tables.collect::<Vec<_>>());
        let store = before.store.over(memory, &policies.journalled());
        let generation = policies.generation;
        self.active.store(Arc::new(Active { policies: Arc::new(policies), store }));
        generation
    }

    /// Decides like [`Limiter::decide_all`], at once: `None`, and nothing is charged, where a policy of the set has its count out of
    /// this process or waits for a commit. Needs no await, no box and no task.
    pub fn decide_now(&self, asked: &[Asked<'_>]) -> Option<Ruling> {
        if self.active.load().policies.waits() {
            return None;
        }
        // A reload that has just moved it out of this process is a refusal for want of an answer, since something may have been
        // charged.
        let unanswered = || Ruling::new(self.policies(), self.clock.now(), Reason::Unavailable, None);
        Some(self.at_once(self.decide_all(asked)).unwrap_or_else(unanswered))
    }

    /// The table of each policy.
    pub fn tables(&self) -> Vec<(String, Arc<Table>)> {
        let active = self.active.load();
        let table = |ready: &Ready| {
            Some((ready.policy.name.clone(), Arc::clone(active.store.memory().table(ready.index)?)))
        };
        active.policies.tables().filter_map(table).collect()
    }
}

impl<S: Clone> Limiter<S> {
    /// The same limiter with its store inside another, such as a choice of stores.
    pub fn map_store<T>(self, into: impl FnOnce(S) -> T) -> Limiter<T> {
        let active = self.active.into_inner();
        let (policies, store) = (Arc::clone(&active.policies), into(active.store.clone()));
        let active = ArcSwap::from_pointee(Active { policies, store });
        Limiter { active, stacks: self.stacks, clock: self.clock, salt: self.salt, reloading: self.reloading }
    }
}

impl<S> Limiter<S> {
    /// Counts the policies of a shared placement in the store that these stand around. Without one they are answered as
    /// when it is out of reach.
    #[must_use]
    pub fn store(mut self, stacks: Stacks) -> Self {
        self.stacks = Some(stacks);
        self
    }

    pub(crate) fn load(&self) -> Arc<Active<S>> {
        self.active.load_full()
    }

    pub(crate) fn places<'a>(&'a self, active: &'a Active<S>) -> Places<'a, S> {
        Places { policies: &active.policies, here: &active.store, stacks: self.stacks.as_ref() }
    }

    pub(crate) const fn salt(&self) -> &Salt {
        &self.salt
    }

    /// What a decision comes to that waits for nothing: what is in this process is ready when it is first looked at.
    fn at_once<T>(&self, decision: impl Future<Output = T>) -> Option<T> {
        match std::pin::pin!(decision).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decided) => Some(decided),
            Poll::Pending => None,
        }
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What instances compare their salts by.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn salt_check(&self) -> u64 {
        self.salt.check()
    }

    /// What stands around the shared store.
    pub const fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_ref()
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request by every policy that it meets: all admit and are charged, or none is charged.
    pub async fn decide(&self, request: &Request<'_>) -> Ruling {
        self.decide_all(&[Asked::Request(request)]).await
    }

    /// What [`Limiter::decide`] would make of a request: the standing of every policy, charging none.
    pub async fn look(&self, request: &Request<'_>) -> Ruling {
        self.decide_all(&[Asked::Look(request)]).await
    }

    /// Decides checks by name, together. Beyond [`MAX_ASKED`](crate::MAX_ASKED) of them nothing is decided: see
    /// [`Limiter::decide_all`].
    pub async fn decide_checks(&self, checks: &[Check<'_>]) -> Ruling {
        let asked: ArrayVec<Asked<'_>, MORE_THAN_ASKED> =
            checks.iter().take(MORE_THAN_ASKED).map(|check| Asked::Check(*check)).collect();
        self.decide_all(&asked).await
    }

    /// Decides several things together: all that is asked for admits and is charged, or none is charged; what is given back
    /// is given back when all the rest was admitted. More than [`MAX_ASKED`](crate::MAX_ASKED) things are answered as
    /// unavailable: that many cannot be decided in one step.
    pub async fn decide_all(&self, asked: &[Asked<'_>]) -> Ruling {
        self.decide_at(asked, self.clock.now()).await
    }

    async fn decide_at(&self, asked: &[Asked<'_>], now: u64) -> Ruling {
        loop {
            let active = self.load();
            match active.policies.plan(asked) {
                Ok(plan) => match self.decide_plan(&active, &plan, now).await {
                    Ok(ruling) => return ruling,
                    // A reload is about to put the next generation in force.
                    Err(Moved) => std::thread::yield_now(),
                },
                Err((reason, scope)) => {
                    return Ruling::new(Arc::clone(&active.policies), now, reason, scope);
                }
            }
        }
    }

    async fn decide_plan(&self, active: &Active<S>, plan: &Plan<'_>, now: u64) -> Result<Ruling, Moved> {
        let (places, policies) = (self.places(active), &active.policies);
        let demand = &plan.take.demand;
        let mut ruling = match places.decide(demand, now).await {
            Ok(answer) => {
                let ruling = rule_on(policies, demand, &answer);
                if plan.reserves {
                    self.with_reservation(ruling, &places, demand, &answer).await
                } else {
                    ruling
                }
            }
            Err(Unanswered::Unavailable | Unanswered::Contended) => {
                places.without_store(Arc::clone(policies), demand, now).await?
            }
            Err(Unanswered::Moved) => return Err(Moved),
        };
        places.give_back(plan, now, &mut ruling).await?;
        plan.attribute(&mut ruling);
        if ruling.reason == Reason::Throttled {
            places.refused(&mut ruling, now).await;
        }
        places.drawn(&ruling, now).await;
        places.watch(plan, now, &mut ruling).await;
        Ok(ruling)
    }

    /// Forgets one subject of a policy, so that it is as new: also that it was banned or held. `None` without such a policy, else whether it was known.
    ///
    /// # Errors
    /// [`Unanswered::Unavailable`] when the count is out of reach.
    pub async fn reset(&self, policy: &str, subject: &str) -> Result<Option<bool>, Unanswered> {
        loop {
            let active = self.active.load_full();
            let Some(ready) = active.policies.named(policy) else { return Ok(None) };
            match self.places(&active).forget(ready, subject.as_bytes(), self.clock.now()).await {
                Err(Unanswered::Moved) => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(known) => {
                    let barred = self.lift(&ready.policy, ready.key(subject.as_bytes()).0).await?;
                    return Ok(Some(known || barred));
                }
            }
        }
    }

    /// The policies in force.
    pub fn policies(&self) -> Arc<Policies> {
        Arc::clone(&self.active.load().policies)
    }
}

impl Policy {
    /// A policy about everything, counting by client address, with nothing out of the ordinary.
    pub fn named(name: &str, rule: Rule) -> Self {
        Policy {
            name: name.to_owned(),
            matches: Match::default(),
            subjects: vec![Subject::Address],
            missing: Missing::Reject,
            rule,
            cost: Cost::Fixed(1),
            placement: Placement::Local,
            shards: DEFAULT_SHARDS,
            on_unavailable: Direction::Refuse,
            class: None,
            shadow: false,
            tiers: Vec::new(),
            allow: List::default(),
            deny: List::default(),
            client_quota: false,
            keys: DEFAULT_KEYS,
            when_full: WhenFull::default(),
            response: None,
            ban: None,
            obey: 0,
            reserve: None,
            sample: 1,
        }
    }
}

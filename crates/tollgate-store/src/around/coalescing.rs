//! While one round trip for a key is under way, later checks of that key wait, and are sent together as "admit up to n": a hot
//! key costs the store one command per round trip, however many ask. Still exact.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_core::{Charge, Fingerprint, Rule};

use crate::{Answer, Demand, Event, Intent, Store, Tally, Unanswered};

/// How many locks the lanes are spread over: a power of two.
const LOCKS: usize = 64;

/// The most checks of one key that wait; beyond them the count is out of reach.
const MAX_WAITING: usize = 100_000;

/// A store that is asked once at a time about each key.
#[derive(Debug)]
pub struct Coalescing<S> {
    inner: Arc<S>,
    lanes: Arc<Lanes>,
    tally: Arc<Tally>,
}

/// The checks that wait, by key. A key has a lane exactly while somebody asks about it.
#[derive(Debug)]
struct Lanes([Mutex<HashMap<Fingerprint, VecDeque<Waiter>>>; LOCKS]);

#[derive(Debug)]
struct Waiter {
    rule: Rule,
    cost: u64,
    fleeting: bool,
    tell: oneshot::Sender<Told>,
}

/// What a waiter is told.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are answers")]
enum Told {
    /// Its answer.
    Answer(Result<Answer, Unanswered>),
    /// That it is its turn to ask, for itself and for these.
    Ask(Turn),
}

/// The right to ask about a key. Whoever has it passes it on, also when its caller leaves.
#[derive(Debug)]
struct Turn {
    lanes: Arc<Lanes>,
    key: Fingerprint,
    others: Vec<Waiter>,
    asking: bool,
}

impl<S> Coalescing<S> {
    /// Asks `inner` once at a time about each key.
    pub fn new(inner: S, tally: Arc<Tally>) -> Self {
        let lanes = std::array::from_fn(|_| Mutex::default());
        Coalescing { inner: Arc::new(inner), lanes: Arc::new(Lanes(lanes)), tally }
    }

    /// The turn, at once or when it has come; or the answer, when another asked for this one too.
    async fn turn(&self, charge: &Charge<'_>, fleeting: bool) -> Result<Turn, Result<Answer, Unanswered>> {
        let told = {
            let mut lanes = self.lanes.of(charge.key);
            let Some(waiting) = lanes.get_mut(&charge.key) else {
                lanes.insert(charge.key, VecDeque::new());
                let lanes = Arc::clone(&self.lanes);
                return Ok(Turn { lanes, key: charge.key, others: Vec::new(), asking: false });
            };
            if waiting.len() >= MAX_WAITING {
                return Err(Err(Unanswered::Unavailable));
            }
            let (tell, told) = oneshot::channel();
            waiting.push_back(Waiter { rule: *charge.rule, cost: charge.cost, fleeting, tell });
            told
        };
        match told.await {
            Ok(Told::Ask(turn)) => Ok(turn),
            Ok(Told::Answer(answer)) => {
                self.tally.add(Event::Together, 1);
                Err(answer)
            }
            // Who asked for this one left before the answer came.
            Err(_) => Err(Err(Unanswered::Unavailable)),
        }
    }
}

impl<S: Store + 'static> Store for Coalescing<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let ([charge], Intent::Take { times: 1 }) = (demand.charges(), demand.intent()) else {
            return self.inner.decide(demand, now).await;
        };
        if charge.cost == 0 || charge.spare > 0 {
            return self.inner.decide(demand, now).await;
        }
        let mut turn = match self.turn(charge, demand.is_fleeting()).await {
            Ok(turn) => turn,
            Err(answer) => return answer,
        };
        turn.asking = true;
        if turn.others.is_empty() {
            return self.inner.decide(demand, now).await;
        }
        // Others depend on it: it goes on also when this caller leaves.
        let (tell, told) = oneshot::channel();
        let fleeting = demand.is_fleeting();
        turn.others.insert(0, Waiter { rule: *charge.rule, cost: charge.cost, fleeting, tell });
        let asked = ask(Arc::clone(&self.inner), turn, charge.policy, now);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(asked)),
            Err(_) => asked.await,
        }
        match told.await {
            Ok(Told::Answer(answer)) => answer,
            _ => Err(Unanswered::Unavailable),
        }
    }
}

/// Asks for all that wait, and tells each its part.
async fn ask<S: Store>(store: Arc<S>, mut turn: Turn, policy: u16, now: u64) {
    let Some(first) = turn.others.first() else { return };
    let (rule, cost, fleeting) = (first.rule, first.cost, first.fleeting);
    let charge = Charge { policy, key: turn.key, rule: &rule, cost, spare: 0 };
    let times = u64::try_from(turn.others.len()).unwrap_or(u64::MAX);
    let answer = store.decide(&Demand::of(charge).times(times).fleeting(fleeting), now).await;
    for (nth, other) in (1..).zip(turn.others.drain(..)) {
        let _gone = other.tell.send(Told::Answer(part(&charge, &answer, nth)));
    }
}

/// What the `nth` of those that asked together is told.
fn part(charge: &Charge<'_>, answer: &Result<Answer, Unanswered>, nth: u64) -> Result<Answer, Unanswered> {
    let answer = answer.as_ref().map_err(|error| *error)?;
    let mut own = Answer::new(answer.now, u64::from(nth <= answer.admitted)).charged_at(answer.charged);
    for outcome in answer.outcomes() {
        own.push(charge.nth(outcome, answer.admitted, nth, answer.now));
    }
    Ok(own)
}

impl Lanes {
    #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    fn of(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<Fingerprint, VecDeque<Waiter>>> {
        let lock = &self.0[(key.0 >> 64) as usize & (LOCKS - 1)];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let others = std::mem::take(&mut self.others);
        let mut lanes = self.lanes.of(self.key);
        let Some(waiting) = lanes.get_mut(&self.key) else { return };
        // Nobody asked for them yet: they wait on. If somebody did, whether they are charged is not known, and dropping
        // them says so.
        if !self.asking {
            others.into_iter().rev().for_each(|other| waiting.push_front(other));
        }
        waiting.retain(|waiter| !waiter.tell.is_closed());
        let Some(first) = waiting.pop_front() else {
            lanes.remove(&self.key);
            return;
        };
        // Those that ask for the same go along; the others keep their order.
        let same = |waiter: &Waiter| waiter.rule == first.rule && waiter.cost == first.cost;
        let (others, rest) = std::mem::take(waiting).into_iter().partition::<Vec<_>, _>(same);
        *waiting = rest.into();
        let lanes_too = Arc::clone(&self.lanes);
        drop(lanes);
        let turn = Turn { lanes: lanes_too, key: self.key, others, asking: false };
        // Should it have left just now, its turn is dropped, and passed on.
        let _left = first.tell.send(Told::Ask(turn));
    }
}

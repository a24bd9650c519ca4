//! What every store on a server has in common: it keeps a state with the rule that it was written under, decides by its own
//! clock, and swaps a state for another only if nobody came between.
//!
//! On the server only what must happen where the count is: fit and charge. A changed rule, a refund and a reset are worked out
//! here by the pure functions, and swapped in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use tollgate_core::{Charge, Fingerprint, Rule, Shape, Verdict, carry};

use crate::{Answer, Demand, Event, Intent, MAX_CHARGES, Store, Tally, Unanswered};

/// How often a changed rule is carried over while others write the same key.
const MAX_TRIES: usize = 8;

/// The same for a refund to a log, whose other charges others go on making: as often as there is time for.
const MAX_REFUND_TRIES: usize = 1_000;

/// Round trips in a row that were not answered in time, after which the connection is not trusted any more.
const MAX_LATE: u32 = 3;

/// A server: two verbs, each one round trip.
pub trait Server: Send + Sync {
    /// Decides and charges where the states are as expected; else only tells how they are.
    fn ask(&self, question: &Question<'_>) -> impl Future<Output = Result<Reply, String>> + Send;

    /// Forgets keys, and gives how many there were.
    fn forget(&self, keys: &[Fingerprint]) -> impl Future<Output = Result<u64, String>> + Send;

    /// Connects anew next time. Does not wait: what is being connected just now is new anyway.
    fn hang_up(&self);
}

/// One round trip's question.
#[derive(Debug)]
pub struct Question<'a> {
    /// The charges.
    pub charges: &'a [Charge<'a>],
    /// Up to how many times they are to be charged; 0 looks.
    pub times: u64,
    /// What is to be done.
    pub mode: Mode,
    /// The caller's time, for tests: else the server's counts.
    pub now: Option<u64>,
    /// For each charge, or for none: the state that must be there, and the one that takes its place first.
    pub swaps: ArrayVec<Swap, MAX_CHARGES>,
}

/// What a question is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To charge what fits. Swaps are written only with a charge: what is refused writes nothing.
    Take,
    /// To charge whatever it comes to.
    Owe,
    /// To give back what was charged at this time, if that is known. Not for logs.
    Back(Option<u64>),
    /// To write the swaps, and no more.
    Put,
}

/// A state for another.
#[derive(Clone, Debug)]
pub struct Swap {
    /// What must be there.
    pub found: Found,
    /// What takes its place, as numbers of the charge's rule.
    pub numbers: Vec<u64>,
}

/// A server's answer.
#[derive(Debug)]
pub struct Reply {
    /// Whether every state was as expected: under the charge's rule, or as the swap said. If not, nothing was done.
    pub done: bool,
    /// How many times the charges were made.
    pub admitted: u64,
    /// The time that it was done at.
    pub now: u64,
    /// The state of each key before it was charged (and after the swap).
    pub found: ArrayVec<Found, MAX_CHARGES>,
}

/// A state as a server keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The rule that it was written under, as text, when that is not the charge's; empty when it is, or nothing is there.
    pub rule: String,
    /// Its numbers: the words of a cell or counter, the times of a log. None when nothing is there.
    pub numbers: Vec<u64>,
}

impl Found {
    /// The state in words.
    fn words(&self, rule: &Rule) -> Option<Vec<u64>> {
        let mut words = vec![0; rule.words()];
        match (rule.shape(), self.numbers.len()) {
            (_, 0) => {}
            (Shape::Log, _) => rule.log_of(&self.numbers, words.as_mut_slice()),
            (_, length) if length == words.len() => words.copy_from_slice(&self.numbers),
            _ => return None,
        }
        Some(words)
    }

    /// The state in words of the charge's rule, carried over when it was written under another. One that cannot be read
    /// counts as used up, which is never too little.
    fn carried(&self, charge: &Charge<'_>, now: u64) -> Vec<u64> {
        let rule = charge.rule;
        if self.rule.is_empty()
            && let Some(words) = self.words(rule)
        {
            return words;
        }
        let mut words = vec![0; rule.words()];
        let old = self.rule.parse::<Rule>().ok().and_then(|old| Some((old, self.words(&old)?)));
        match old {
            Some((old, before)) => {
                carry(charge.key, &old, before.as_slice(), rule, words.as_mut_slice(), now);
            }
            None => Charge { cost: rule.capacity(), ..*charge }.apply(words.as_mut_slice(), now),
        }
        words
    }
}

/// The numbers of a state that is to be kept: none for one that is as new.
fn numbers(rule: &Rule, words: &[u64]) -> Vec<u64> {
    match rule.shape() {
        _ if words.first().is_none_or(|ends| *ends == 0) => Vec::new(),
        Shape::Log => rule.log_times(words).collect(),
        _ => words.to_vec(),
    }
}

/// A store on a server.
#[derive(Debug)]
pub struct Remote<V> {
    server: V,
    tally: Arc<Tally>,
    /// Whether the callers' time decides, for tests.
    virtual_time: bool,
    /// How long a round trip may take.
    within: Duration,
    late: AtomicU32,
}

impl<V: Server> Remote<V> {
    /// A store on this server, which is given so long for a round trip, with connecting and all that it waits for.
    pub const fn new(server: V, within: Duration, tally: Arc<Tally>) -> Self {
        Remote { server, tally, virtual_time: false, within, late: AtomicU32::new(0) }
    }

    /// Decides by the callers' time instead of the server's: for tests with virtual time.
    #[must_use]
    pub const fn by_callers_time(mut self) -> Self {
        self.virtual_time = true;
        self
    }

    async fn ask(&self, question: &Question<'_>) -> Result<Reply, Unanswered> {
        self.round_trip(self.server.ask(question)).await
    }

    /// Counts a round trip, and what becomes of it. After too many that were late the connection is made anew: it may lead
    /// nowhere. One whose caller leaves says nothing about the server.
    async fn round_trip<T>(&self, asked: impl Future<Output = Result<T, String>>) -> Result<T, Unanswered> {
        self.tally.add(Event::Asked, 1);
        let trouble = match tokio::time::timeout(self.within, asked).await {
            Ok(Ok(reply)) => {
                self.late.store(0, Ordering::Relaxed);
                return Ok(reply);
            }
            Ok(Err(trouble)) => trouble,
            Err(_) => {
                if self.late.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= MAX_LATE {
                    self.late.store(0, Ordering::Relaxed);
                    self.server.hang_up();
                }
                format!("no answer within {:?}", self.within)
            }
        };
        self.tally.add(Event::Failed, 1);
        self.tally.set_trouble(trouble);
        Err(Unanswered::Unavailable)
    }

    fn question<'q>(&self, charges: &'q [Charge<'q>], times: u64, mode: Mode, now: u64) -> Question<'q> {
        let now = self.virtual_time.then_some(now);
        Question { charges, times, mode, now, swaps: ArrayVec::new() }
    }

    /// Decides or owes. States under other rules are carried over first.
    async fn take(&self, demand: &Demand<'_>, times: u64, now: u64) -> Result<Answer, Unanswered> {
        let owe = demand.intent() == Intent::Owe;
        // What costs more than there can ever be is only looked at.
        let never = !owe && demand.charges().iter().any(Charge::is_never);
        let mode = if owe { Mode::Owe } else { Mode::Take };
        let mut question = self.question(demand.charges(), if never { 0 } else { times }, mode, now);
        for _ in 0..MAX_TRIES {
            let reply = self.ask(&question).await?;
            if reply.done {
                return read(demand, times, &reply).ok_or(Unanswered::Unavailable);
            }
            question.swaps = swaps(demand, &reply, Found::carried);
        }
        Err(Unanswered::Contended)
    }

    /// Gives back.
    async fn give_back(&self, demand: &Demand<'_>, charged: u64, now: u64) -> Result<Answer, Unanswered> {
        if demand.charges().iter().all(|charge| charge.rule.shape() != Shape::Log) {
            let mode = Mode::Back((charged != Charge::LATELY).then_some(charged));
            let reply = self.ask(&self.question(demand.charges(), 1, mode, now)).await?;
            if reply.done {
                return given_back(demand, &reply, |charge, words| charge.refund(words, charged, reply.now));
            }
        }
        self.swap_back(demand, charged, now).await
    }

    /// The same for logs, and for states under other rules: looks, works out what the state is then, and swaps it in.
    async fn swap_back(&self, demand: &Demand<'_>, charged: u64, now: u64) -> Result<Answer, Unanswered> {
        let mut question = self.question(demand.charges(), 0, Mode::Take, now);
        let mut reply = self.ask(&question).await?;
        question.mode = Mode::Put;
        for _ in 0..MAX_REFUND_TRIES {
            question.swaps = swaps(demand, &reply, |found, charge, now| {
                let mut words = found.carried(charge, now);
                charge.refund(words.as_mut_slice(), charged, now);
                words
            });
            reply = self.ask(&question).await?;
            if reply.done {
                return given_back(demand, &reply, |_, _| {});
            }
        }
        Err(Unanswered::Contended)
    }

    async fn forget(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let keys: ArrayVec<Fingerprint, MAX_CHARGES> =
            demand.charges().iter().map(|charge| charge.key).collect();
        let known = self.round_trip(self.server.forget(&keys)).await?;
        let mut answer = Answer::new(now, known);
        for charge in demand.charges() {
            let fresh = vec![0; charge.rule.words()];
            answer.push(charge.outcome(Verdict::Admit { wait: 0 }, fresh.as_slice(), now));
        }
        Ok(answer)
    }
}

/// How keys stand that something was given back to, after `then` what was found.
fn given_back(
    demand: &Demand<'_>,
    reply: &Reply,
    then: impl Fn(&Charge<'_>, &mut [u64]),
) -> Result<Answer, Unanswered> {
    let mut answer = Answer::new(reply.now, 1);
    for (charge, found) in demand.charges().iter().zip(&reply.found) {
        let mut words = found.words(charge.rule).ok_or(Unanswered::Unavailable)?;
        then(charge, words.as_mut_slice());
        answer.push(charge.outcome(Verdict::Admit { wait: 0 }, words.as_slice(), reply.now));
    }
    Ok(answer)
}

/// For every charge, what is to take the place of what was found.
fn swaps(
    demand: &Demand<'_>,
    reply: &Reply,
    becomes: impl Fn(&Found, &Charge<'_>, u64) -> Vec<u64>,
) -> ArrayVec<Swap, MAX_CHARGES> {
    let each = demand.charges().iter().zip(&reply.found);
    each.map(|(charge, found)| {
        let numbers = numbers(charge.rule, &becomes(found, charge, reply.now));
        Swap { found: found.clone(), numbers }
    })
    .collect()
}

/// What the reply means: each charge's outcome, from the state before it and what was admitted.
fn read(demand: &Demand<'_>, asked: u64, reply: &Reply) -> Option<Answer> {
    let mut answer = Answer::new(reply.now, reply.admitted);
    let mut all_admit = true;
    for (charge, found) in demand.charges().iter().zip(&reply.found) {
        let mut words = found.words(charge.rule)?;
        let words = words.as_mut_slice();
        let mut verdict = charge.judge(words, reply.now);
        all_admit &= verdict.is_admit();
        let all = Charge { cost: charge.cost.saturating_mul(reply.admitted), ..*charge };
        if demand.intent() == Intent::Owe {
            all.owe(words, reply.now);
            verdict = Verdict::Admit { wait: 0 };
        } else if reply.admitted > 0 {
            all.apply(words, reply.now);
            verdict = if reply.admitted < asked { charge.judge(words, reply.now) } else { verdict };
        }
        answer.push(charge.outcome(verdict, words, reply.now));
    }
    // Both decided by the same state and time; were they ever to differ, nobody is let through on it.
    let agree = demand.intent() == Intent::Owe || (reply.admitted > 0) == all_admit || asked == 0;
    (agree && answer.outcomes().len() == demand.charges().len()).then_some(answer)
}

impl<V: Server> Store for Remote<V> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if demand.charges().is_empty() {
            return Ok(Answer::new(now, demand.asked()));
        }
        match demand.intent() {
            Intent::Take { times } => self.take(demand, times, now).await,
            Intent::Owe => self.take(demand, 1, now).await,
            Intent::GiveBack { charged } => self.give_back(demand, charged, now).await,
            Intent::Forget => self.forget(demand, now).await,
        }
    }
}

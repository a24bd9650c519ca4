//! The wrappers around a store that instances share, over the store in this process and in virtual time.

mod bounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict};
use tollgate_store::around::{Breaker, Coalescing, Deadline, Refusals, Singly};
use tollgate_store::{Answer, Demand, Event, Intent, Memory, Store, Table, Tally, Unanswered, WhenFull};

const START: u64 = 1_800_057_600 * SECOND;

fn memory(rules: &[Rule]) -> Memory {
    Memory::new(rules.iter().map(|rule| Table::new(2_000, rule.words(), WhenFull::Share)))
}

fn wrapped(rules: &[Rule]) -> Refusals<Coalescing<Breaker<Memory>>> {
    let inner = Breaker::new(memory(rules), Arc::default());
    Refusals::new(Coalescing::new(inner, Arc::default()), Arc::default())
}

tollgate_harness::conformance!(refusals_and_coalescing, wrapped);

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn charge(rule: &Rule, key: u128, cost: u64) -> Charge<'_> {
    Charge { policy: 0, key: Fingerprint(key << 64 | key), rule, cost, spare: 0 }
}

/// A store that counts what it is asked, and answers only when it may, or fails.
struct Gate {
    inner: Memory,
    asked: AtomicU64,
    gate: Semaphore,
    broken: AtomicBool,
}

impl Gate {
    fn new(rule: &Rule, answers: usize) -> Arc<Self> {
        let (asked, broken) = (AtomicU64::new(0), AtomicBool::new(false));
        let gate = Semaphore::new(answers);
        Arc::new(Gate { inner: memory(&[*rule]), asked, gate, broken })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

struct Gated(Arc<Gate>);

impl Store for Gated {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.gate.acquire().await.expect("an open gate").forget();
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(Unanswered::Unavailable);
        }
        Ok(self.0.inner.decide(demand, now)?)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_thousand_checks_of_a_hot_key_are_two_commands_and_exactly_the_limit() {
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::LeakyMeter) {
        let rule = rule("50/1h", algorithm);
        let gate = Gate::new(&rule, 0);
        let tally = Arc::new(Tally::default());
        let store = Arc::new(Coalescing::new(Gated(Arc::clone(&gate)), Arc::clone(&tally)));
        runtime().block_on(async {
            let ask = || {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let answer = store.decide(&Demand::of(charge(&rule, 1, 1)), START).await.unwrap();
                    (answer.admitted, answer.outcomes()[0])
                })
            };
            let first = ask();
            while gate.asked() == 0 {
                tokio::task::yield_now().await;
            }
            let rest: Vec<_> = (1..1_000).map(|_| ask()).collect();
            tokio::time::sleep(Duration::from_millis(50)).await;
            gate.gate.add_permits(1_000);
            let mut all = vec![first.await.unwrap()];
            for one in rest {
                all.push(one.await.unwrap());
            }
            let admitted: u64 = all.iter().map(|(admitted, _)| admitted).sum();
            assert_eq!(admitted, 50, "{algorithm}");
            let mut left: Vec<u64> =
                all.iter().filter(|(a, _)| *a == 1).map(|(_, outcome)| outcome.remaining).collect();
            left.sort_unstable();
            assert_eq!(left, (0..50).collect::<Vec<_>>(), "each is told its own standing, {algorithm}");
            assert!(all.iter().filter(|(a, _)| *a == 0).all(|(_, o)| !o.verdict.is_admit()), "{algorithm}");
        });
        assert_eq!((gate.asked(), tally.count(Event::Together)), (2, 998), "{algorithm}");
    }
}

#[test]
fn callers_that_leave_hand_on_their_turn() {
    let rule = rule("5000/1h", Algorithm::Gcra);
    let gate = Gate::new(&rule, 0);
    let tally = Arc::new(Tally::default());
    let store = Arc::new(Coalescing::new(Gated(Arc::clone(&gate)), tally));
    let mut random = fastrand::Rng::with_seed(7);
    runtime().block_on(async {
        for round in 0..200 {
            let tasks: Vec<_> = (0..20)
                .map(|number| {
                    let store = Arc::clone(&store);
                    let cost = 1 + number % 2;
                    tokio::spawn(async move {
                        store.decide(&Demand::of(charge(&rule, 1, cost)), START).await.is_ok()
                    })
                })
                .collect();
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            for task in tasks.iter().filter(|_| random.bool()) {
                task.abort();
            }
            gate.gate.add_permits(100);
            for task in tasks {
                let ended = tokio::time::timeout(Duration::from_secs(20), task).await;
                assert!(ended.is_ok(), "round {round}: a check that nobody answers");
            }
        }
        // Nothing is left behind: the next check asks at once.
        assert!(store.decide(&Demand::of(charge(&rule, 1, 1)), START).await.is_ok());
    });
}

#[test]
fn a_storm_of_refused_checks_costs_the_store_one_command_until_their_time() {
    for algorithm in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
    {
        let rule = rule("10/1h", algorithm);
        let gate = Gate::new(&rule, usize::MAX >> 4);
        let store = Refusals::new(Gated(Arc::clone(&gate)), Arc::default());
        let ask =
            |cost, now| pollster::block_on(store.decide(&Demand::of(charge(&rule, 1, cost)), now)).unwrap();
        assert!(ask(10, START).is_admit());
        let first = ask(1, START + SECOND).outcomes()[0];
        let Verdict::Refuse { retry_after } = first.verdict else { panic!("{first:?}") };
        for step in 0..1_000_000 {
            let answer = ask(1, START + SECOND + step);
            assert!(!answer.is_admit());
            let told = Verdict::Refuse { retry_after: retry_after - step };
            assert_eq!(answer.outcomes()[0].verdict, told, "{algorithm}, {step}");
        }
        assert_eq!(gate.asked(), 2, "{algorithm}");
        assert!(ask(1, START + SECOND + retry_after).is_admit(), "admitted at its time, {algorithm}");
        // A reset by this instance is seen at once.
        assert!(!ask(10, START + SECOND + retry_after).is_admit());
        let forget = Demand::of(charge(&rule, 1, 0)).to(Intent::Forget);
        pollster::block_on(store.decide(&forget, START)).unwrap();
        assert!(ask(10, START + SECOND + retry_after).is_admit(), "{algorithm}");
    }
}

#[test]
fn a_known_refusal_answers_for_the_whole_demand() {
    let rule = rule("1/1h", Algorithm::Gcra);
    let gate = Gate::new(&rule, usize::MAX >> 4);
    let store = Refusals::new(Gated(Arc::clone(&gate)), Arc::default());
    let ask = |keys: &[u128]| {
        let mut demand = Demand::new();
        for key in keys {
            demand.push(charge(&rule, *key, 1)).unwrap();
        }
        pollster::block_on(store.decide(&demand, START)).unwrap()
    };
    assert!(ask(&[1, 2]).is_admit());
    assert!(!ask(&[1]).is_admit());
    let asked = gate.asked();
    let answer = ask(&[3, 1]);
    let verdicts: Vec<Verdict> = answer.outcomes().iter().map(|outcome| outcome.verdict).collect();
    assert_eq!(verdicts[0], Verdict::Unasked);
    assert!(matches!(verdicts[1], Verdict::Refuse { .. }));
    assert_eq!((answer.admitted, gate.asked()), (0, asked));
}

#[test]
fn a_store_that_fails_is_given_up_and_probed_by_one_check_at_a_time() {
    let rule = rule("1000000/1h", Algorithm::Gcra);
    let gate = Gate::new(&rule, usize::MAX >> 4);
    let tally = Arc::new(Tally::default());
    let store = Breaker::new(Gated(Arc::clone(&gate)), Arc::clone(&tally));
    let ask = |now| pollster::block_on(store.decide(&Demand::of(charge(&rule, 1, 1)), now));
    assert!(ask(START).is_ok());
    gate.broken.store(true, Ordering::Relaxed);
    let before = gate.asked();
    // A minute of outage at 1,000 checks a second.
    let failed = (0..60_000).filter(|ms| ask(START + ms * 1_000_000).is_err()).count();
    let probes = gate.asked() - before;
    assert_eq!(failed, 60_000);
    assert!((60..=135).contains(&probes), "{probes} commands in a minute");
    assert!(tally.is_open());
    gate.broken.store(false, Ordering::Relaxed);
    let back = (0..).find(|ms| ask(START + (60_000 + ms) * 1_000_000).is_ok()).unwrap();
    assert!(back <= 1_000, "found again after {back} ms");
    assert!(ask(START + 62 * SECOND).is_ok() && !tally.is_open());
}

#[test]
fn a_late_answer_opens_the_breaker_and_a_caller_that_leaves_does_not() {
    let rule = rule("1000/1h", Algorithm::Gcra);
    let gate = Gate::new(&rule, 0);
    let tally = Arc::new(Tally::default());
    let late = Deadline::new(Gated(Arc::clone(&gate)), Duration::from_millis(5), Arc::clone(&tally));
    let store = Breaker::new(late, Arc::clone(&tally));
    runtime().block_on(async {
        for n in 0..50 {
            let demand = Demand::of(charge(&rule, 1, 1));
            // It asks, and leaves before there is an answer.
            let mut asking = Box::pin(store.decide(&demand, START + n));
            let asked = std::future::poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
            assert!(asked.is_pending());
        }
        assert!(!tally.is_open());
        let asked = gate.asked();
        for n in 0..20 {
            let answer = store.decide(&Demand::of(charge(&rule, 1, 1)), START + n).await;
            assert_eq!(answer, Err(Unanswered::Unavailable));
        }
        assert_eq!(gate.asked(), asked + 5);
    });
    assert!(tally.is_open() && tally.take_trouble().unwrap().contains("5ms"));
}

/// A caller that leaves takes nobody with it: those that were sent along are answered.
#[test]
fn a_caller_that_leaves_costs_the_others_nothing() {
    let rule = rule("100/1h", Algorithm::Gcra);
    let gate = Gate::new(&rule, 0);
    let store = Arc::new(Coalescing::new(Gated(Arc::clone(&gate)), Arc::default()));
    runtime().block_on(async {
        let ask = || {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.decide(&Demand::of(charge(&rule, 1, 1)), START).await })
        };
        let first = ask();
        while gate.asked() == 0 {
            tokio::task::yield_now().await;
        }
        let mut rest: Vec<_> = (0..50).map(|_| ask()).collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        gate.gate.add_permits(1);
        first.await.unwrap().unwrap();
        while gate.asked() == 1 {
            tokio::task::yield_now().await;
        }
        // One of them asks for all now: it leaves, and so do others.
        let stay = rest.split_off(10);
        rest.iter().for_each(tokio::task::JoinHandle::abort);
        tokio::time::sleep(Duration::from_millis(20)).await;
        gate.gate.add_permits(10);
        for one in stay {
            assert!(one.await.unwrap().unwrap().is_admit());
        }
    });
}

#[test]
fn keys_that_are_asked_singly_are_given_back_when_a_later_one_refuses() {
    let rules = [rule("10/1h", Algorithm::Gcra), rule("3/1h", Algorithm::SlidingLog)];
    let store = Singly::new(memory(&rules));
    let both = |cost| {
        let mut demand = Demand::new();
        demand.push(Charge { policy: 0, ..charge(&rules[0], 1, cost) }).unwrap();
        demand.push(Charge { policy: 1, ..charge(&rules[1], 2, cost) }).unwrap();
        pollster::block_on(store.decide(&demand, START)).unwrap()
    };
    assert_eq!((0..20).filter(|_| both(1).is_admit()).count(), 3);
    let refused = both(1);
    assert_eq!(refused.outcomes()[0].remaining, 7, "given back: {refused:?}");
    assert!(matches!(refused.outcomes()[1].verdict, Verdict::Refuse { .. }));
}

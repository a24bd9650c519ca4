//! The wrappers around a store that instances share, over the store in this process and in virtual time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict};
use tollgate_harness::{Admissions, Faults, Faulty};
use tollgate_store::around::{Approximate, Breaker, Coalescing, Deadline, Leases, Refusals, Singly};
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
    Charge { policy: 0, key: Fingerprint(key << 64 | key), rule, cost }
}

/// A store that counts what it is asked, and answers only when it may, or fails.
struct Gate {
    inner: Memory,
    asked: AtomicU64,
    gate: Semaphore,
    broken: AtomicBool,
    came: Notify,
}

impl Gate {
    fn new(rule: &Rule, answers: usize) -> Arc<Self> {
        let (asked, broken) = (AtomicU64::new(0), AtomicBool::new(false));
        let gate = Semaphore::new(answers);
        Arc::new(Gate { inner: memory(&[*rule]), asked, gate, broken, came: Notify::new() })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

struct Gated(Arc<Gate>);

impl Store for Gated {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.came.notify_waiters();
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
            let left =
                tokio::time::timeout(Duration::from_micros(10), store.decide(&demand, START + n)).await;
            assert!(left.is_err());
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

/// Eight instances with leases on one key, on a store of their own time, with delays, pauses, and idle times before
/// bursts. Gives the breach, if any, and how many decisions and commands there were.
fn leased(seed: u64, naive: bool) -> (bool, u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let burst = random.u64(16..200);
    let rule = rule(&format!("{}/1s burst {burst}", random.u64(20..500)), Algorithm::Gcra);
    let gate = Gate::new(&rule, usize::MAX >> 4);
    let (clock, at) = (Arc::new(AtomicU64::new(START)), Arc::new(AtomicU64::new(START)));
    let instances: Vec<_> = (0..8)
        .map(|_| {
            let (gate, clock, at) = (Arc::clone(&gate), Arc::clone(&clock), Arc::clone(&at));
            let far = Far { gate, clock, at, random: fastrand::Rng::with_seed(seed).into() };
            let leases = Leases::new(far, 64, Arc::default());
            if naive { leases.naive() } else { leases }
        })
        .collect();
    let (mut admissions, mut decisions) = (Admissions::new(), 0);
    for _ in 0..4_000 {
        // One instance asks far more often than the others, which sit on their leases.
        let instance = if random.u8(0..10) < 7 { 0 } else { random.usize(0..8) };
        let demand = Demand::of(charge(&rule, 1, 1));
        decisions += 1;
        if random.u8(0..8) == 0 {
            // Another policy refused, some time after: what is given back must not loosen the bound.
            let back = Intent::GiveBack {
                charged: clock.load(Ordering::Relaxed).saturating_sub(random.u64(0..2_000_000)),
            };
            let demand = Demand::of(charge(&rule, 1, 1)).to(back);
            let told = instances[instance].decide(&demand, clock.load(Ordering::Relaxed));
            assert_eq!(pollster::block_on(told).unwrap().admitted, 0, "what was leased stays charged");
        }
        let (now, asked) = (clock.load(Ordering::Relaxed), gate.asked());
        if pollster::block_on(instances[instance].decide(&demand, now)).unwrap().is_admit() {
            // By the store's clock: what it admitted when it did, what was spent from a lease when it was.
            let bought = gate.asked() > asked;
            admissions.push(if bought { at.load(Ordering::Relaxed) } else { now }, 1);
        }
        let pause = match random.u16(0..1_000) {
            0..5 => random.u64(0..3 * SECOND),
            5..300 => random.u64(0..20_000_000),
            _ => random.u64(0..100_000),
        };
        clock.fetch_add(pause, Ordering::Relaxed);
    }
    (admissions.breach(&rule).is_some(), decisions, gate.asked())
}

/// A store to which a message takes time, and back.
struct Far {
    gate: Arc<Gate>,
    clock: Arc<AtomicU64>,
    /// When it last decided.
    at: Arc<AtomicU64>,
    random: Mutex<fastrand::Rng>,
}

impl Store for Far {
    async fn decide(&self, demand: &Demand<'_>, _now: u64) -> Result<Answer, Unanswered> {
        let (there, back) = {
            let mut random = self.random.lock().unwrap();
            (random.u64(0..3_000_000), random.u64(0..3_000_000))
        };
        let at = self.clock.fetch_add(there, Ordering::Relaxed) + there;
        self.at.store(at, Ordering::Relaxed);
        let answer = Gated(Arc::clone(&self.gate)).decide(demand, at).await;
        self.clock.fetch_add(back, Ordering::Relaxed);
        answer
    }
}

#[test]
fn leases_keep_the_bound_in_every_interval_and_without_the_lapse_they_would_not() {
    let seeds = 0..if std::env::var_os("TOLLGATE_QUICK").is_some() { 60 } else { 250 };
    let mut commands = (0, 0);
    for seed in seeds.clone() {
        let (breach, decisions, asked) = leased(seed, false);
        assert!(!breach, "seed {seed}");
        commands = (commands.0 + decisions, commands.1 + asked);
    }
    println!("{} decisions cost {} commands", commands.0, commands.1);
    let broken = seeds.filter(|seed| leased(*seed, true).0).count();
    assert!(broken > 5, "naive leases broke the bound in {broken} runs only");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "its background task keeps real time")]
fn approximate_counts_stay_within_their_overshoot() {
    const SYNC: Duration = Duration::from_millis(20);
    let rule = rule("200/1s burst 50", Algorithm::Gcra);
    let inner = Arc::new(Mutex::new(memory(&[rule])));
    struct One(Arc<Mutex<Memory>>);
    impl Store for One {
        async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
            Ok(self.0.lock().unwrap().decide(demand, now)?)
        }
    }
    let start = std::time::Instant::now();
    let clock = || START + u64::try_from(start.elapsed().as_nanos()).unwrap();
    let instances: Vec<_> =
        (0..4).map(|_| Approximate::new(One(Arc::clone(&inner)), SYNC, Arc::default())).collect();
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    let runtime = runtime();
    let mut total = 0;
    runtime.block_on(async {
        while start.elapsed() < Duration::from_millis(1_500) {
            for instance in &instances {
                let demand = Demand::of(charge(&rule, 1, 1));
                let admitted = instance.decide(&demand, clock()).await.unwrap().admitted;
                total += admitted;
                *seconds.entry(clock() / SECOND).or_default() += admitted;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    });
    let length = u64::try_from(start.elapsed().as_nanos()).unwrap();
    let overshoot = 4 * rule.bound().at(2 * u64::try_from(SYNC.as_nanos()).unwrap());
    let most = rule.bound().at(length) + overshoot;
    println!("{total} admitted, bound {}, with the overshoot {most}", rule.bound().at(length));
    assert!(total <= most, "{total} admitted of {most}, {seconds:?}");
    assert!(total >= rule.bound().at(length) * 9 / 10, "{total} admitted: too few");
}

/// Whatever is lost or late, no interval sees more than the bound, every check is answered, and nothing is asked twice.
#[test]
fn with_lost_and_late_messages_every_stack_keeps_the_bound() {
    let seeds = 0..if std::env::var_os("TOLLGATE_QUICK").is_some() { 4 } else { 20 };
    for (seed, faults) in seeds.flat_map(|seed| {
        let lost = |lost_questions, lost_answers| Faults { lost_questions, lost_answers, delays: 50 };
        [lost(30, 0), lost(0, 30), lost(15, 15)].map(move |faults| (seed, faults))
    }) {
        let rule = rule("100/1s burst 60", Algorithm::Gcra);
        let faulty = Arc::new(Faulty::new(memory(&[rule]), faults, seed));
        struct One<S>(Arc<S>);
        impl<S: Store> Store for One<S> {
            async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
                self.0.decide(demand, now).await
            }
        }
        let stacks: Vec<_> = (0..4)
            .map(|_| {
                let leases = Leases::new(One(Arc::clone(&faulty)), 32, Arc::default());
                Arc::new(Refusals::new(Coalescing::new(leases, Arc::default()), Arc::default()))
            })
            .collect();
        let (admissions, failed) = runtime().block_on(async {
            let (mut admissions, mut failed, mut random) =
                (Admissions::new(), 0_u64, fastrand::Rng::with_seed(seed));
            let mut now = START;
            for _ in 0..200 {
                // Many at once, of whom some leave.
                let tasks: Vec<_> = (0..random.usize(1..12))
                    .map(|_| {
                        let stack = Arc::clone(&stacks[random.usize(0..4)]);
                        tokio::spawn(async move { stack.decide(&Demand::of(charge(&rule, 1, 1)), now).await })
                    })
                    .collect();
                for task in tasks {
                    if random.u8(0..10) == 0 {
                        task.abort();
                    }
                    match tokio::time::timeout(Duration::from_secs(20), task).await.expect("an answer") {
                        Ok(Ok(answer)) if answer.is_admit() => admissions.push(now, 1),
                        Ok(Ok(_)) => {}
                        Ok(Err(_)) | Err(_) => failed += 1,
                    }
                }
                now += random.u64(0..40_000_000);
            }
            (admissions, failed)
        });
        assert_eq!(admissions.breach(&rule), None, "seed {seed}, {faults:?}");
        assert!(failed > 0 && admissions.total() > 60, "seed {seed}: {} admitted", admissions.total());
    }
}

//! What several instances admit between them, each behind wrappers of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate_core::{Algorithm, SECOND};
use tollgate_harness::{Admissions, Faults, Faulty};
use tollgate_store::around::{Approximate, Coalescing, Leases, Refusals};
use tollgate_store::{Answer, Demand, Intent, Memory, Store, Unanswered};

use crate::{Gate, Gated, START, charge, memory, rule, runtime};

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

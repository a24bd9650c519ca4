//! The conformance suite: what every store must keep, for every algorithm.
//!
//! Each law panics when it is broken, and says with which rule, seed and time.

mod edges;
mod spare;
mod threads;

use tollgate_core::{Algorithm, Charge, Rule, SECOND, Verdict};
use tollgate_store::{Intent, Store};

pub use edges::numbers_are_exact_at_the_edges;
pub use spare::spare_units_must_be_there_and_are_not_taken;
pub use threads::{crossing_demands_neither_deadlock_nor_exceed, many_threads_admit_exactly_the_limit};

use crate::scene::{START, rule, rules};
use crate::{Admissions, Model, Scene, VirtualClock, arrivals};

/// What a law asks for: a store for these rules.
pub trait Make<S>: Fn(&[Rule]) -> S {}
impl<S, F: Fn(&[Rule]) -> S> Make<S> for F {}

static QUICK: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// From now on laws are tried with few seeds.
pub fn be_quick() {
    QUICK.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// Seeds that a law is tried with: few when time is short.
fn seeds() -> std::ops::Range<u64> {
    let quick = QUICK.load(std::sync::atomic::Ordering::Relaxed);
    0..if quick || std::env::var_os("TOLLGATE_QUICK").is_some() { 3 } else { 12 }
}

macro_rules! table {
    ($($law:ident,)*) => {
        /// Every law, by its name.
        pub fn all<S: Store, M: Make<S>>() -> Vec<(&'static str, fn(&M))> {
            vec![$((stringify!($law), $law::<S> as fn(&M))),*]
        }
    };
}

crate::with_laws!(table!());

fn each_rule<S: Store>(make: &impl Make<S>, burst: u64, law: impl Fn(&Scene<S>)) {
    for rule in rules(burst) {
        law(&Scene::new(make, vec![rule]));
    }
}

/// From cold, exactly B units are admitted at once: one by one, and in costs of any size.
pub fn burst_is_exactly_b_from_cold<S: Store>(make: &impl Make<S>) {
    for burst in [1, 2, 3, 7, 100] {
        each_rule(make, burst, |scene| {
            let capacity = scene.rule().capacity();
            let admitted = (0..3 * burst).filter(|_| scene.admits(1, 1, START)).count() as u64;
            assert_eq!(admitted, capacity, "one by one, {:?}", scene.rule());
            let mut random = fastrand::Rng::with_seed(burst);
            let mut left = capacity;
            while left > 0 {
                let cost = random.u64(1..=capacity);
                assert_eq!(
                    scene.admits(2, cost, START),
                    cost <= left,
                    "{cost} of {left}, {:?}",
                    scene.rule()
                );
                left -= if cost <= left { cost } else { 0 };
            }
            assert!(!scene.admits(2, 1, START), "after all was spent, {:?}", scene.rule());
        });
    }
}

/// Whatever comes, no interval sees more than the bound.
pub fn the_bound_holds_in_every_interval<S: Store>(make: &impl Make<S>) {
    for (burst, seed) in [1, 5, 20].into_iter().flat_map(|burst| seeds().map(move |seed| (burst, seed))) {
        each_rule(make, burst, |scene| {
            let window = scene.rule().quota().window();
            let mut times = arrivals::poisson(seed, 25.0, START, 20 * SECOND);
            times.extend(arrivals::bursts(seed, 2 * burst, window, START, 60));
            for epsilon in [1, 1_000, window / 1_000, window / 3] {
                times.extend(arrivals::boundary(START + 7 * window, epsilon, 2 * burst));
            }
            times.sort_unstable();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut admissions = Admissions::new();
            for time in times {
                let cost = random.u64(1..=2).min(scene.rule().capacity());
                if scene.admits(1, cost, time) {
                    admissions.push(time, cost);
                }
            }
            assert_eq!(admissions.breach(scene.rule()), None, "seed {seed}, {:?}", scene.rule());
            assert!(admissions.total() > burst, "something is admitted, {:?}", scene.rule());
        });
    }
}

/// Refused requests leave the key where it was: a client that keeps trying gets in as soon as one that waits.
pub fn a_refusal_charges_nothing<S: Store>(make: &impl Make<S>) {
    each_rule(make, 5, |scene| {
        let capacity = scene.rule().capacity();
        for key in [1, 2] {
            assert!(scene.admits(key, capacity, START));
        }
        for step in 1..400 {
            let now = START + step * SECOND / 200;
            let before = scene.charge(1, 0, now);
            if !scene.admits(1, capacity, now) {
                let after = scene.charge(1, 0, now);
                assert_eq!((before.remaining, before.cell), (after.remaining, after.cell));
                assert_eq!(after.remaining, scene.remaining(2, now), "{:?}", scene.rule());
            } else {
                assert!(scene.admits(2, capacity, now), "{:?}", scene.rule());
            }
        }
    });
}

/// A key that was refused until x is refused until x, and admitted at x.
pub fn a_refusal_keeps_its_promise<S: Store>(make: &impl Make<S>) {
    for seed in seeds() {
        each_rule(make, 6, |scene| {
            let capacity = scene.rule().capacity();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut now = START + random.u64(0..SECOND);
            let mut refused = 0;
            for _ in 0..200 {
                let cost = random.u64(1..=capacity);
                if let Verdict::Refuse { retry_after } = scene.charge(1, cost, now).verdict {
                    refused += 1;
                    assert!(retry_after <= scene.rule().memory(), "longer than the key remembers");
                    for early in [1, retry_after / 2, retry_after] {
                        let at = now + retry_after - early;
                        assert!(
                            !scene.admits(1, cost, at),
                            "early by {early}, seed {seed}, {:?}",
                            scene.rule()
                        );
                    }
                    now += retry_after;
                    assert!(scene.admits(1, cost, now), "at its time, seed {seed}, {:?}", scene.rule());
                }
                now += random.u64(0..SECOND / 5);
            }
            assert!(refused > 20, "{refused} refusals, {:?}", scene.rule());
        });
    }
}

/// A key that was spent at t is spent at every time before t, and the clock's return to t gives nothing either.
pub fn a_clock_that_steps_back_mints_nothing<S: Store>(make: &impl Make<S>) {
    each_rule(make, 10, |scene| {
        let window = scene.rule().quota().window();
        for (key, into) in [0, 1, window / 3, window - 1].into_iter().enumerate() {
            let now = START + 5 * window + into;
            assert!(scene.admits(key as u64, scene.rule().capacity(), now));
            for back in [1, SECOND / 1_000, window / 2, window, 2 * SECOND, 3 * window] {
                assert!(!scene.admits(key as u64, 1, now - back), "{back} ns back, {:?}", scene.rule());
                assert!(!scene.admits(key as u64, 1, now), "and again now, {:?}", scene.rule());
            }
        }
    });
    // Back and back again at random: by the true time, the bound holds.
    for seed in seeds() {
        each_rule(make, 5, |scene| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut admissions = Admissions::new();
            let mut clock = VirtualClock::new(START);
            for _ in 0..600 {
                clock.advance(random.u64(0..SECOND / 10));
                if random.u8(0..20) == 0 {
                    clock.step_back(random.u64(0..2 * SECOND));
                }
                if scene.admits(1, 1, clock.now()) {
                    admissions.push(clock.truth(), 1);
                }
            }
            assert_eq!(admissions.breach(scene.rule()), None, "seed {seed}, {:?}", scene.rule());
        });
    }
}

/// A clock that runs slow only refuses more; one that runs 1 % fast admits, over a long time, at most 1 % more.
pub fn a_drifting_clock_mints_its_drift_and_no_more<S: Store>(make: &impl Make<S>) {
    const LENGTH: u64 = 60 * SECOND;
    for drift in [-10_000, 10_000_i64] {
        each_rule(make, 5, |scene| {
            let mut clock = VirtualClock::new(START).drifting(drift);
            let mut admissions = Admissions::new();
            while clock.truth() < START + LENGTH {
                if scene.admits(1, 1, clock.now()) {
                    admissions.push(clock.truth(), 1);
                }
                clock.advance(SECOND / 50);
            }
            let shown = clock.now() - START;
            assert!(admissions.total() <= scene.rule().bound().at(shown), "{drift} ppm, {:?}", scene.rule());
            if drift < 0 {
                assert_eq!(admissions.breach(scene.rule()), None, "{drift} ppm, {:?}", scene.rule());
            }
        });
    }
}

/// A key whose state was spent, and whose slot others took, decides as if it had been kept.
pub fn forgetting_spent_state_changes_nothing<S: Store>(make: &impl Make<S>) {
    each_rule(make, 4, |scene| {
        let mut model = Model::new(*scene.rule());
        let mut random = fastrand::Rng::with_seed(4);
        let mut now = START;
        for round in 0..40 {
            for _ in 0..6 {
                let cost = random.u64(1..=2).min(scene.rule().capacity());
                assert_eq!(scene.admits(1, cost, now), model.decide(now, cost), "{:?}", scene.rule());
                now += random.u64(0..SECOND / 8);
            }
            now += scene.rule().memory() + SECOND;
            for other in 0..200 {
                scene.admits(1_000 + 200 * round + other, 1, now);
            }
            now += scene.rule().memory() + 1;
        }
    });
}

/// When one policy of a demand refuses, none is charged, and each that was looked at says what it would have done.
pub fn a_demand_is_all_or_none<S: Store>(make: &impl Make<S>) {
    for first in rules(6) {
        let small = rule(Algorithm::Gcra, 2).expect("a rule");
        let scene = Scene::new(make, vec![first, small, first]);
        let demand = [(0, 1, 1), (1, 1, 1), (2, 1, 0)];
        let room = first.capacity().min(2);
        for _ in 0..room {
            assert!(scene.decide(&demand, START).is_admit(), "{first:?}");
        }
        let before = scene.remaining(1, START);
        assert_eq!(before, first.capacity() - room);
        for _ in 0..5 {
            let answer = scene.decide(&demand, START);
            assert!(!answer.is_admit());
            for (outcome, admits) in answer.outcomes().iter().zip([before > 0, room < 2, true]) {
                // A store that knows of one refusal need not look at the others.
                let unasked = outcome.verdict == Verdict::Unasked;
                assert!(unasked || outcome.verdict.is_admit() == admits, "{answer:?}, {first:?}");
            }
        }
        assert_eq!(scene.remaining(1, START), before, "a refused demand charged {first:?}");
    }
}

/// Cost 0 is admitted whatever the standing, tells it, and changes nothing.
pub fn cost_zero_only_looks<S: Store>(make: &impl Make<S>) {
    each_rule(make, 3, |scene| {
        let capacity = scene.rule().capacity();
        let new = scene.charge(1, 0, START);
        assert_eq!((new.remaining, new.reset_after, new.cell), (capacity, 0, 0), "{:?}", scene.rule());
        for spent in 0..=capacity {
            for _ in 0..10 {
                let look = scene.charge(1, 0, START);
                assert!(look.verdict.is_admit());
                assert_eq!((look.limit, look.remaining), (capacity, capacity - spent), "{:?}", scene.rule());
            }
            assert_eq!(scene.admits(1, 1, START), spent < capacity);
        }
    });
}

/// More than can ever be there is refused for good, with no time to retry, and takes nothing.
pub fn a_cost_above_the_capacity_is_never<S: Store>(make: &impl Make<S>) {
    each_rule(make, 3, |scene| {
        let capacity = scene.rule().capacity();
        for cost in [capacity + 1, 10 * capacity, u64::MAX / 2, u64::MAX] {
            assert_eq!(scene.charge(1, cost, START).verdict, Verdict::Never, "{cost}, {:?}", scene.rule());
        }
        assert_eq!(scene.remaining(1, START), capacity);
        assert!(scene.admits(1, capacity, START));
        assert_eq!(scene.charge(1, capacity + 1, START).verdict, Verdict::Never);
    });
}

/// Verdict, remaining and wait are those of the brute force, over random times and costs.
pub fn it_agrees_with_the_model_on_random_sequences<S: Store>(make: &impl Make<S>) {
    for (burst, seed) in [1, 2, 9].into_iter().flat_map(|burst| seeds().map(move |seed| (burst, seed))) {
        each_rule(make, burst, |scene| {
            let mut model = Model::new(*scene.rule());
            let mut random = fastrand::Rng::with_seed(seed);
            let mut now = START + random.u64(0..SECOND);
            for step in 0..300 {
                let cost = random.u64(0..=burst + 1);
                let outcome = scene.charge(1, cost, now);
                let admit = model.decide(now, cost);
                let place = format!("step {step}, seed {seed}, cost {cost}, {:?}", scene.rule());
                assert_eq!(outcome.verdict.is_admit(), admit, "{place}");
                assert_eq!(outcome.remaining, model.remaining(now), "{place}");
                if let (Verdict::Admit { wait }, true) = (outcome.verdict, cost > 0) {
                    assert_eq!(wait, model.wait(now), "{place}");
                }
                now += match random.u8(0..6) {
                    0 => 0,
                    1 => scene.rule().quota().window() - now % scene.rule().quota().window(),
                    2 => random.u64(0..2 * SECOND),
                    _ => random.u64(0..SECOND / 5),
                };
            }
        });
    }
}

/// A demand asked for n times at once is admitted as often as n that come one after the other.
pub fn up_to_n_is_n_times_one<S: Store>(make: &impl Make<S>) {
    for cost in [1, 2, 3] {
        each_rule(make, 10, |scene| {
            if cost > scene.rule().capacity() {
                return;
            }
            let mut now = START;
            for asked in [100, 1, 2, 100, 3, 7] {
                let at_once = scene.decide_times(&[(0, 1, cost)], asked, now);
                let singly: Vec<_> = (0..asked).map(|_| scene.charge(2, cost, now)).collect();
                let admitted = singly.iter().filter(|outcome| outcome.verdict.is_admit()).count() as u64;
                assert_eq!(at_once.admitted, admitted, "{asked} x {cost}, {:?}", scene.rule());
                for (nth, alone) in (1..).zip(singly) {
                    let charge = scene.as_charge((0, 1, cost));
                    let told = charge.nth(&at_once.outcomes()[0], at_once.admitted, nth, now);
                    assert_eq!(told, alone, "{nth} of {asked} x {cost}, {:?}", scene.rule());
                }
                assert_eq!(scene.remaining(1, now), scene.remaining(2, now), "{:?}", scene.rule());
                now += 3 * SECOND / 10;
            }
        });
    }
}

/// Taken, owed, given back and forgotten at random, a key stands where the pure functions say.
pub fn every_intent_does_what_the_core_does<S: Store>(make: &impl Make<S>) {
    for seed in seeds() {
        each_rule(make, 8, |scene| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut words = vec![0; scene.rule().words()];
            let words = words.as_mut_slice();
            let (mut now, mut charged) = (START, Vec::new());
            for step in 0..120 {
                let cost = random.u64(1..=3).min(scene.rule().capacity());
                let charge = scene.as_charge((0, 1, cost));
                let intent = match random.u8(0..10) {
                    0 => Intent::Owe,
                    1 => Intent::Forget,
                    2..5 if !charged.is_empty() => {
                        let known = charged[random.usize(0..charged.len())];
                        let at = if random.u8(0..4) == 0 { Charge::LATELY } else { known };
                        Intent::GiveBack { charged: at }
                    }
                    _ => Intent::Take { times: 1 },
                };
                match intent {
                    Intent::Owe => charge.owe(words, now),
                    Intent::Forget => words.fill(0),
                    Intent::GiveBack { charged } => charge.refund(words, charged, now),
                    Intent::Take { .. } => {
                        if charge.decide(words, now).verdict.is_admit() {
                            charged.push(now);
                        }
                    }
                }
                scene.ask(&[(0, 1, cost)], intent, now);
                let look = Charge { cost: 0, ..charge };
                let stands = look.outcome(Verdict::Admit { wait: 0 }, &*words, now);
                let (told, place) = (scene.charge(1, 0, now), format!("{intent:?} at {step}, seed {seed}"));
                assert_eq!(
                    (told.remaining, told.reset_after),
                    (stands.remaining, stands.reset_after),
                    "{place}, {:?}",
                    scene.rule()
                );
                now += random.u64(0..SECOND / 5);
            }
        });
    }
}

/// One key's spending, or the same subject's under another policy, is nobody else's.
pub fn keys_and_policies_do_not_share_a_count<S: Store>(make: &impl Make<S>) {
    for rule in rules(4) {
        let scene = Scene::new(make, vec![rule, rule]);
        for key in 0..50 {
            assert_eq!(scene.remaining(key, START), rule.capacity());
            assert!(scene.admits(key, rule.capacity(), START));
            let other = scene.decide(&[(1, key, 0)], START).outcomes()[0];
            assert_eq!(other.remaining, rule.capacity(), "{rule:?}");
        }
    }
}

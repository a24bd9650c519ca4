//! A law that cannot fail proves nothing: each store here is wrong in one way, and its law says so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Charge, Outcome, Quota, Rule, SECOND, Verdict};
use tollgate_harness::laws;
use tollgate_store::{Answer, Demand, Intent, Memory, Store, Table, Unanswered, WhenFull};

type Wrong = fn(&Faulty, &Demand<'_>, u64) -> Answer;

/// A good store behind a fault.
struct Faulty {
    inner: Memory,
    wrong: Wrong,
    seen: AtomicU64,
    counts: Mutex<std::collections::HashMap<u128, u64>>,
}

impl Store for Faulty {
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + Send {
        std::future::ready(Ok((self.wrong)(self, demand, now)))
    }
}

fn make(wrong: Wrong) -> impl Fn(&[Rule]) -> Faulty {
    move |rules| Faulty {
        inner: Memory::new(rules.iter().map(|rule| Table::new(2_000, rule.words(), WhenFull::Share))),
        wrong,
        seen: AtomicU64::new(0),
        counts: Mutex::default(),
    }
}

macro_rules! caught {
    ($test:ident, $law:ident, $wrong:expr) => {
        #[test]
        fn $test() {
            let law = || laws::$law(&make($wrong));
            assert!(catch_unwind(AssertUnwindSafe(law)).is_err(), "the law did not notice");
        }
    };
}

caught!(one_too_many_is_caught, burst_is_exactly_b_from_cold, |store, demand, now| {
    let answer = store.inner.decide(demand, now).unwrap();
    let first = !answer.is_admit() && store.seen.fetch_add(1, Ordering::Relaxed) == 0;
    if first { admit(demand, now) } else { answer }
});

caught!(a_refusal_that_charges_is_caught, a_refusal_charges_nothing, |store, demand, now| {
    let answer = store.inner.decide(demand, now).unwrap();
    if !answer.is_admit() {
        store.inner.decide(&with_cost(demand, 1), now).unwrap();
    }
    answer
});

caught!(a_promise_that_is_early_is_caught, a_refusal_keeps_its_promise, |store, demand, now| {
    let answer = store.inner.decide(demand, now).unwrap();
    let mut early = Answer::new(now, answer.admitted);
    for outcome in answer.outcomes() {
        let verdict = match outcome.verdict {
            Verdict::Refuse { retry_after } => {
                Verdict::Refuse { retry_after: retry_after - retry_after / 1_000 }
            }
            other => other,
        };
        early.push(Outcome { verdict, ..*outcome });
    }
    early
});

caught!(a_step_back_that_mints_is_caught, a_clock_that_steps_back_mints_nothing, |store, demand, now| {
    let latest = store.seen.fetch_max(now, Ordering::Relaxed);
    if now < latest {
        store.inner.decide(&demand.clone().to(Intent::Forget), now).unwrap();
    }
    store.inner.decide(demand, now).unwrap()
});

caught!(charging_in_turn_is_caught, a_demand_is_all_or_none, |store, demand, now| {
    let mut all = Answer::new(now, 1);
    for charge in demand.charges() {
        let outcome = store.inner.check(charge, now).unwrap();
        all.admitted = all.admitted.min(u64::from(outcome.verdict.is_admit()));
        all.push(outcome);
    }
    all
});

caught!(a_look_that_writes_is_caught, cost_zero_only_looks, |store, demand, now| {
    store.inner.decide(&with_cost(demand, 1), now).unwrap()
});

caught!(clamping_a_large_cost_is_caught, a_cost_above_the_capacity_is_never, |store, demand, now| {
    let mut clamped = Demand::new();
    for charge in demand.charges() {
        clamped.push(Charge { cost: charge.cost.min(charge.rule.capacity()), ..*charge }).unwrap();
    }
    store.inner.decide(&clamped, now).unwrap()
});

caught!(one_count_for_all_keys_is_caught, keys_and_policies_do_not_share_a_count, |store, demand, now| {
    let mut one = Demand::new();
    for charge in demand.charges() {
        one.push(Charge { key: tollgate_core::Fingerprint(1), ..*charge }).unwrap();
    }
    store.inner.decide(&one, now).unwrap()
});

caught!(a_rough_division_is_caught, up_to_n_is_n_times_one, |store, demand, now| {
    let asked = demand.asked();
    let answer = store.inner.decide(demand, now).unwrap();
    let mut rough = Answer::new(now, if asked > 1 { asked } else { answer.admitted });
    answer.outcomes().iter().for_each(|outcome| rough.push(*outcome));
    rough
});

caught!(a_refund_of_too_much_is_caught, every_intent_does_what_the_core_does, |store, demand, now| {
    let twice = matches!(demand.intent(), Intent::GiveBack { .. });
    let answer = store.inner.decide(demand, now).unwrap();
    if twice { store.inner.decide(demand, now).unwrap() } else { answer }
});

caught!(a_lost_update_is_caught, many_threads_admit_exactly_the_limit, |store, demand, now| {
    // The essay's race: read, let others in, compare, write.
    let charge = demand.charges()[0];
    let read = *store.counts.lock().unwrap().entry(charge.key.0).or_default();
    std::thread::yield_now();
    if read + charge.cost > charge.rule.capacity() {
        let mut refused = Answer::new(now, 0);
        refused.push(charge.outcome(Verdict::Refuse { retry_after: 1 }, &[0_u64; 1], now));
        return refused;
    }
    store.counts.lock().unwrap().insert(charge.key.0, read + charge.cost);
    admit(demand, now)
});

caught!(
    a_slower_rate_is_caught_by_the_model,
    it_agrees_with_the_model_on_random_sequences,
    |store, demand, now| { store.inner.decide(demand, now - now % (SECOND / 100)).unwrap() }
);

caught!(a_double_rate_is_caught, the_bound_holds_in_every_interval, |store, demand, now| {
    store.inner.decide(demand, now + now - 1_800_057_600 * SECOND).unwrap()
});

caught!(
    a_clock_that_is_believed_twice_is_caught,
    a_drifting_clock_mints_its_drift_and_no_more,
    |store, demand, now| { store.inner.decide(demand, now + now - 1_800_057_600 * SECOND).unwrap() }
);

caught!(a_kept_key_that_costs_is_caught, forgetting_spent_state_changes_nothing, |store, demand, now| {
    let stale = now.saturating_sub(2 * SECOND);
    store
        .inner
        .decide(demand, if store.seen.fetch_add(1, Ordering::Relaxed) > 50 { stale } else { now })
        .unwrap()
});

fn admit(demand: &Demand<'_>, now: u64) -> Answer {
    let mut answer = Answer::new(now, demand.asked());
    for charge in demand.charges() {
        answer.push(charge.outcome(Verdict::Admit { wait: 0 }, &[0_u64; 1], now));
    }
    answer
}

fn with_cost<'a>(demand: &Demand<'a>, cost: u64) -> Demand<'a> {
    let mut other = Demand::new();
    for charge in demand.charges() {
        other.push(Charge { cost, ..*charge }).unwrap();
    }
    other
}

/// The issue with window edges, reproduced: 200 of 200 in a blink under a fixed window, never above the bound else.
#[test]
fn the_boundary_pattern_doubles_a_fixed_window_and_nothing_else() {
    use tollgate_core::Algorithm;
    let edge = 1_800_057_660 * SECOND;
    for epsilon in [1, 1_000, 1_000_000, 200_000_000, SECOND, 10 * SECOND] {
        for (algorithm, most) in [
            (Algorithm::FixedWindow, 200),
            (Algorithm::SlidingLog, 100),
            (Algorithm::Gcra, 100 + 2 * epsilon * 100 / (60 * SECOND)),
            (Algorithm::SlidingCounter, 100 + 100 * 2 * epsilon / (60 * SECOND)),
        ] {
            let rule = Rule::new("100/1m".parse::<Quota>().unwrap(), algorithm).unwrap();
            let mut words = vec![0; rule.words()];
            let charge = Charge { policy: 0, key: Default::default(), rule: &rule, cost: 1, spare: 0 };
            let times = tollgate_harness::arrivals::boundary(edge, epsilon, 100);
            let admits = |time: &u64| charge.decide(words.as_mut_slice(), *time).verdict.is_admit();
            let admitted = times.iter().copied().filter(admits).count() as u64;
            if algorithm == Algorithm::FixedWindow {
                assert_eq!(admitted, most);
            } else {
                assert!(admitted <= most && admitted >= 100, "{algorithm}, {epsilon}: {admitted}");
            }
        }
    }
}

/// The essay's hour: Poisson at 3/s against 100/60 s with a burst of 5.
#[test]
fn an_hour_of_poisson_stays_within_every_bound() {
    let rule =
        Rule::new("100/60s burst 5".parse::<Quota>().unwrap(), tollgate_core::Algorithm::Gcra).unwrap();
    for seed in 0..20 {
        let times = tollgate_harness::arrivals::poisson(seed, 3.0, 1_800_057_600 * SECOND, 3_600 * SECOND);
        let charge = Charge { policy: 0, key: Default::default(), rule: &rule, cost: 1, spare: 0 };
        let mut cell = [0];
        let mut admissions = tollgate_harness::Admissions::new();
        for time in &times {
            if charge.decide(&mut cell, *time).verdict.is_admit() {
                admissions.push(*time, 1);
            }
        }
        let busiest = admissions.busiest(10 * SECOND);
        println!(
            "seed {seed}: {} of {} admitted, {busiest} in the busiest ten seconds",
            admissions.total(),
            times.len()
        );
        assert!((10_400..11_200).contains(&times.len()), "{} offered", times.len());
        assert!((5_800..=6_005).contains(&admissions.total()), "{} admitted", admissions.total());
        assert!(admissions.busiest(10 * SECOND) <= 21, "{} in ten seconds", admissions.busiest(10 * SECOND));
        assert_eq!(admissions.breach(&rule), None, "seed {seed}");
    }
}

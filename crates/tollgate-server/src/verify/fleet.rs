//! Laws across instances, by the store's own clock and in real time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::around::Leases;
use tollgate::{Algorithm, Charge, Clock, Demand, Fingerprint, Quota, Rule, Shared, Store, Tally};
use tollgate_harness::Admissions;

type Law = fn(&[Shared]) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>>;

/// Each panics when it is broken, and else says what was tried.
pub(super) const LAWS: [(&str, Law); 3] = [
    ("instances_that_ask_for_twice_the_limit_at_once_get_the_limit", |instances| Box::pin(twice(instances))),
    ("no_interval_by_the_store's_clock_sees_more_than_the_bound", |instances| Box::pin(bound(instances))),
    ("leases_of_instances_stay_within_the_bound", |instances| Box::pin(leases(instances))),
];

#[allow(clippy::expect_used, reason = "a law that cannot be tried is broken, and says why")]
fn rule(quota: &str, algorithm: Algorithm) -> Rule {
    Rule::new(quota.parse::<Quota>().expect("a quota"), algorithm).expect("a rule")
}

/// Asks for one unit, and gives whether it was admitted and when by the store's clock.
#[allow(clippy::expect_used, reason = "a law that cannot be tried is broken, and says why")]
async fn ask(store: &impl Store, rule: &Rule, key: Fingerprint, now: u64) -> (bool, u64) {
    let answer = store.decide(&Demand::of(Charge { policy: 0, key, rule, cost: 1, spare: 0 }), now).await;
    let answer = answer.expect("the store answers");
    (answer.is_admit(), answer.now)
}

async fn twice(instances: &[Shared]) -> String {
    const LIMIT: usize = 50;
    let mut asked = 0;
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::LeakyMeter) {
        let (rule, key) = (rule("50/1d", algorithm), Fingerprint(fastrand::u128(..)));
        let mut tasks = JoinSet::new();
        for number in 0..2 * LIMIT {
            let Some(instance) = instances.get(number % instances.len()).cloned() else { continue };
            tasks.spawn(async move { ask(&instance, &rule, key, 0).await.0 });
            asked += 1;
        }
        let admitted = tasks.join_all().await.into_iter().filter(|admit| *admit).count();
        assert_eq!(admitted, LIMIT, "{algorithm}");
    }
    format!("{asked} checks by {} instances", instances.len())
}

async fn bound(instances: &[Shared]) -> String {
    let (mut asked, mut total) = (0, 0);
    for algorithm in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
    {
        let (rule, key) = (rule("40/400ms", algorithm), Fingerprint(fastrand::u128(..)));
        let mut tasks = JoinSet::new();
        for instance in instances {
            let instance = instance.clone();
            tasks.spawn(async move {
                let clock = Clock::system();
                let (start, mut seen) = (clock.now(), Vec::new());
                while clock.now().saturating_sub(start) < 1_500_000_000 {
                    seen.push(ask(&instance, &rule, key, clock.now()).await);
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
                }
                seen
            });
        }
        let mut admissions = Admissions::new();
        for (admit, time) in tasks.join_all().await.into_iter().flatten() {
            asked += 1;
            if admit {
                admissions.push(time, 1);
            }
        }
        total += admissions.total();
        assert_eq!(admissions.breach(&rule), None, "{algorithm}");
        assert!(admissions.total() >= 120, "{algorithm} admitted {} only", admissions.total());
    }
    format!("{asked} checks by {} instances, {total} admitted", instances.len())
}

async fn leases(instances: &[Shared]) -> String {
    let (rule, key) = (rule("400/1s burst 160", Algorithm::Gcra), Fingerprint(fastrand::u128(..)));
    let mut tasks = JoinSet::new();
    let clock = Clock::system();
    for (number, instance) in instances.iter().cloned().enumerate() {
        let clock = clock.clone();
        tasks.spawn(async move {
            let leases = Leases::new(instance, 50, Arc::new(Tally::default()));
            let (mut seen, mut decisions) = (Vec::new(), 0_u64);
            for round in 0..4 {
                for _ in 0..if number == 0 { 30 } else { 150 } {
                    let (admit, at) = ask(&leases, &rule, key, clock.now()).await;
                    decisions += 1;
                    // Of what is spent from a lease the answer's time is reckoned from the pack, and a little ahead.
                    if admit {
                        seen.push(at);
                    }
                }
                // The first sits on its lease while the bucket fills again.
                let rest = if number == 0 { 350 } else { 500 + round };
                tokio::time::sleep(Duration::from_millis(rest)).await;
            }
            (seen, decisions)
        });
    }
    let (mut admissions, mut decisions) = (Admissions::new(), 0);
    for (seen, own) in tasks.join_all().await {
        decisions += own;
        seen.into_iter().for_each(|at| admissions.push(at, 1));
    }
    assert_eq!(admissions.breach(&rule), None);
    format!("{decisions} checks by {} instances, {} admitted", instances.len(), admissions.total())
}

//! What is admitted across instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Around, Check, Event, Limiter};

use crate::rig::{POSTGRES, REDIS, RUNTIME, alone, check, count, instance, patient};

const ALGORITHMS: [&str; 4] = ["gcra", "fixed-window", "sliding-counter", "sliding-log"];

fn policy(algorithm: &str, placement: &str) -> String {
    format!(
        "[[policy]]\nname = \"p\"\nquota = \"48/1d\"\nalgorithm = \"{algorithm}\"\nplacement = \"{placement}\"\nshards = 8\n"
    )
    .replace(if placement == "sharded" { "\0" } else { "shards = 8\n" }, "")
}

/// Eight instances, each asked for a quarter of the limit at once, so twice the limit in all.
async fn twice_the_limit(policies: &str, url: &str, prefix: &str) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let limiter = Arc::new(instance(policies, url, prefix, &patient()));
        for _ in 0..12 {
            let (limiter, admitted) = (Arc::clone(&limiter), Arc::clone(&admitted));
            tasks.push(tokio::spawn(async move {
                let ruling = check(&limiter, "p", "alice").await;
                assert!(ruling.fallback.is_none());
                admitted.fetch_add(u64::from(ruling.is_admit()), Ordering::Relaxed);
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    admitted.load(Ordering::Relaxed)
}

#[test]
fn eight_instances_admit_exactly_the_limit_on_redis_and_postgres_in_every_shape() {
    let _alone = alone();
    RUNTIME.block_on(async {
        for url in [&REDIS.url, &POSTGRES.url] {
            for algorithm in ALGORITHMS {
                let prefix = format!("e_{}:", algorithm.replace('-', "_"));
                assert_eq!(
                    twice_the_limit(&policy(algorithm, "strict"), url, &prefix).await,
                    48,
                    "{url} {algorithm}"
                );
            }
            assert_eq!(
                twice_the_limit(&policy("gcra", "layered"), url, "e_layered:").await,
                48,
                "{url} layered"
            );
            let sharded = twice_the_limit(&policy("gcra", "sharded"), url, "e_sharded:").await;
            assert!((24..=48).contains(&sharded), "{url}: {sharded} over eight shards");
            let leased = twice_the_limit(&policy("gcra", "leased"), url, "e_leased:").await;
            assert!((40..=48).contains(&leased), "{url}: {leased} leased");
        }
    });
}

#[test]
fn a_storm_of_a_million_refused_checks_costs_the_store_a_handful_of_commands() {
    let _alone = alone();
    RUNTIME.block_on(async {
        let limiter = instance(
            "[[policy]]\nname = \"p\"\nquota = \"5/1d\"\nplacement = \"strict\"\n",
            &REDIS.url,
            "storm:",
            &patient(),
        );
        for _ in 0..5 {
            assert!(check(&limiter, "p", "alice").await.is_admit());
        }
        let before = count(&limiter, Event::Asked);
        let mut refused = 0;
        for _ in 0..1_000_000 {
            refused += u64::from(!check(&limiter, "p", "alice").await.is_admit());
        }
        let asked = count(&limiter, Event::Asked) - before;
        println!("1,000,000 refused checks: {asked} commands");
        assert_eq!(refused, 1_000_000);
        assert!(asked <= 3, "{asked} commands");
    });
}

/// A thousand callers of one key without pause: one command a round trip, whatever is asked, and never more than the bound.
#[test]
fn a_hot_key_costs_one_command_a_round_trip_and_stays_exact() {
    let _alone = alone();
    let seconds = if std::env::var_os("TOLLGATE_QUICK").is_some() { 2 } else { 10 };
    let policies = "[[policy]]\nname = \"p\"\nquota = \"20000/1s burst 1000\"\nplacement = \"strict\"\n";
    RUNTIME.block_on(async {
        // Refusals are not remembered here, so that every check would be a command.
        let around = Around { order: vec!["deadline", "coalescing"], ..patient() };
        let limiter = Arc::new(instance(policies, &REDIS.url, "hot:", &around));
        let (admitted, checks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let start = Instant::now();
        let callers: Vec<_> = (0..1_000)
            .map(|_| {
                let (limiter, admitted, checks) =
                    (Arc::clone(&limiter), Arc::clone(&admitted), Arc::clone(&checks));
                tokio::spawn(async move {
                    while start.elapsed() < Duration::from_secs(seconds) {
                        let ruling = check(&limiter, "p", "hot").await;
                        admitted.fetch_add(u64::from(ruling.is_admit()), Ordering::Relaxed);
                        checks.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let elapsed = start.elapsed();
        let (asked, checks) = (count(&limiter, Event::Asked), checks.load(Ordering::Relaxed));
        let admitted = admitted.load(Ordering::Relaxed);
        let bound = 1_000 + 20_000 * u64::try_from(elapsed.as_millis()).unwrap() / 1_000 + 1;
        println!("{checks} checks in {elapsed:?}: {asked} commands, {admitted} admitted of at most {bound}");
        assert!(admitted <= bound);
        assert!(asked * 20 < checks, "{asked} commands for {checks} checks");
        assert_eq!(count(&limiter, Event::Together) + asked, checks);
    });
}

#[test]
fn policies_in_process_and_in_the_store_are_all_or_none() {
    let _alone = alone();
    let policies = r#"
        [[policy]]
        name = "here"
        subject = "const:all"
        quota = "100/1d"
        placement = "local"
        [[policy]]
        name = "there"
        quota = "3/1d"
        placement = "strict"
        [[policy]]
        name = "leased"
        quota = "1000/1d"
        placement = "leased"
        [[policy]]
        name = "about"
        quota = "1000/1d"
        placement = "approximate"
    "#;
    RUNTIME.block_on(async {
        let limiter = instance(policies, &REDIS.url, "mixed:", &patient());
        let all = |cost| {
            ["here", "there", "leased", "about"].map(|policy| Check {
                policy,
                subject: "alice",
                cost: Some(cost),
            })
        };
        let mut admitted = 0;
        for _ in 0..20 {
            admitted += u64::from(limiter.decide_checks(&all(1)).await.is_admit());
        }
        assert_eq!(admitted, 3);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let looks = limiter.decide_checks(&all(0)).await;
        let left: Vec<(String, u64)> =
            looks.parts().map(|(policy, part)| (policy.name.clone(), part.outcome.remaining)).collect();
        let left_of = |name: &str| left.iter().find(|(policy, _)| policy == name).unwrap().1;
        assert_eq!((left_of("here"), left_of("there"), left_of("about")), (97, 0, 997), "{left:?}");
        // What a lease holds back is charged, and what was given back is not.
        assert!((980..=997).contains(&left_of("leased")), "{left:?}");
    });
}

#[test]
fn approximate_counts_stay_below_the_overshoot_that_explain_prints() {
    let _alone = alone();
    let policies = "[[policy]]\nname = \"p\"\nquota = \"500/1s burst 100\"\nplacement = \"approximate\"\n";
    RUNTIME.block_on(async {
        let around = Around {
            sync: Duration::from_millis(50),
            deadline: Duration::from_millis(500),
            ..Around::default()
        };
        let limiters: Vec<Arc<Limiter>> =
            (0..4).map(|_| Arc::new(instance(policies, &REDIS.url, "about:", &around))).collect();
        let start = Instant::now();
        let tasks: Vec<_> = limiters
            .iter()
            .map(|limiter| {
                let limiter = Arc::clone(limiter);
                tokio::spawn(async move {
                    let (mut admitted, mut checks) = (0_u64, 0_u64);
                    while start.elapsed() < Duration::from_secs(3) {
                        admitted += u64::from(check(&limiter, "p", "hot").await.is_admit());
                        checks += 1;
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    (admitted, checks)
                })
            })
            .collect();
        let (mut admitted, mut checks) = (0, 0);
        for task in tasks {
            let (own, all) = task.await.unwrap();
            (admitted, checks) = (admitted + own, checks + all);
        }
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap();
        let bound = limiters[0].policies().iter().next().unwrap().policy.rule.bound();
        let overshoot = 4 * bound.at(nanos(2 * around.sync + around.deadline));
        let strict = bound.at(nanos(start.elapsed()));
        println!(
            "{admitted} admitted: bound {strict}, overshoot {} of at most {overshoot}",
            admitted.saturating_sub(strict)
        );
        assert!(admitted <= strict + overshoot);
        let asked: u64 = limiters.iter().map(|limiter| count(limiter, Event::Asked)).sum();
        assert!(asked * 8 < checks, "{asked} commands for {checks} checks");
    });
}

#[test]
fn a_reset_and_a_changed_quota_reach_the_shared_count() {
    let _alone = alone();
    let policies =
        |quota: &str| format!("[[policy]]\nname = \"p\"\nquota = \"{quota}\"\nplacement = \"strict\"\n");
    RUNTIME.block_on(async {
        for url in [&REDIS.url, &POSTGRES.url] {
            let one = instance(&policies("5/1d"), url, "changed:", &patient());
            let other = instance(&policies("5/1d"), url, "changed:", &patient());
            for _ in 0..5 {
                assert!(check(&one, "p", "alice").await.is_admit());
            }
            assert!(!check(&other, "p", "alice").await.is_admit());
            let raised = tollgate::PolicySet::from_toml(&policies("8/1d")).unwrap();
            other.reload(raised);
            let mut more = 0;
            for _ in 0..10 {
                more += u64::from(check(&other, "p", "alice").await.is_admit());
            }
            assert_eq!(more, 3, "usage is kept, the new limit applies at once");
            assert_eq!(other.reset("p", "alice").await, Ok(Some(true)));
            assert!(check(&other, "p", "alice").await.is_admit());
            assert_eq!(other.reset("p", "nobody").await, Ok(Some(false)));
        }
    });
}

#[test]
fn a_flood_ends_in_the_first_layer() {
    let _alone = alone();
    RUNTIME.block_on(async {
        // Refusals are not remembered here, so that only the first layer stands before the store.
        let around = Around { order: vec!["deadline"], ..patient() };
        let limiter = instance(&policy("gcra", "layered"), &REDIS.url, "flood:", &around);
        let mut admitted = 0;
        for _ in 0..1_000 {
            let ruling = check(&limiter, "p", "alice").await;
            admitted += u64::from(ruling.is_admit());
            assert!(ruling.parts().all(|(_, part)| part.outcome.limit == 48));
        }
        assert_eq!(admitted, 48);
        let asked = count(&limiter, Event::Asked);
        assert!(asked <= 2 * 48 + 1, "{asked} commands for 1,000 checks");
    });
}

//! The shared store keeps every law on a real PostgreSQL.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_core::{Algorithm, Charge, Fingerprint, Outcome, Quota, Rule};
use tollgate_harness::{Blocking, PostgresServer};
use tollgate_store::postgres::{Options, Postgres};
use tollgate_store::{Demand, Remote, Store, Tally, Unanswered};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static SERVER: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

fn options(schema: &str) -> Options {
    let deadline = Duration::from_secs(10);
    Options { schema: schema.to_owned(), connections: 2, deadline, ..Options::default() }
}

/// A store in a schema of its own, with the callers' time.
fn on_postgres(_rules: &[Rule]) -> Blocking<Remote<Postgres>> {
    // A round trip takes longest here, so each law has fewer seeds; `tollgate verify` tries them all.
    tollgate_harness::laws::be_quick();
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let logged = NUMBER.load(Ordering::Relaxed).is_multiple_of(2);
    let schema = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let server = Postgres::new(&SERVER.url, Options { logged, ..options(&schema) }).unwrap();
    Blocking::new(
        Remote::new(server, Duration::from_secs(10), Arc::default()).by_callers_time(),
        RUNTIME.handle(),
    )
}

tollgate_harness::conformance!(postgres, on_postgres);

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn ask(store: &impl Store, rule: &Rule, key: u128, cost: u64, now: u64) -> Result<Outcome, Unanswered> {
    let demand = Demand::of(Charge { policy: 0, key: Fingerprint(key), rule, cost, spare: 0 });
    RUNTIME.block_on(store.decide(&demand, now)).map(|answer| answer.outcomes()[0])
}

#[test]
fn numbers_are_exact_at_the_edges() {
    let quotas = [
        ("7/60s burst 1000000", Algorithm::Gcra),
        ("1/366d burst 30", Algorithm::Gcra),
        ("1000000000/1s", Algorithm::TokenBucket),
        ("988200000000000/366d", Algorithm::FixedWindow),
        ("7/1ms", Algorithm::FixedWindow),
        ("100000000000000/366d", Algorithm::SlidingCounter),
        ("13/7001us", Algorithm::SlidingCounter),
        ("11/366d", Algorithm::SlidingLog),
    ];
    tollgate_harness::laws::numbers_are_exact_at_the_edges(&on_postgres, &quotas);
}

#[test]
fn eight_instances_that_ask_for_twice_the_limit_at_once_get_the_limit() {
    for algorithm in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
    {
        let rule = rule("50/1d", algorithm);
        let admitted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let server = Postgres::new(&SERVER.url, options("fleet")).unwrap();
                    let store = Remote::new(server, Duration::from_secs(10), Arc::new(Tally::default()));
                    for _ in 0..13 {
                        let admit =
                            ask(&store, &rule, 70 + algorithm as u128, 1, 0).unwrap().verdict.is_admit();
                        admitted.fetch_add(u64::from(admit), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 50, "{algorithm}");
    }
}

#[test]
fn passed_rows_are_taken_away_and_live_ones_stay() {
    let server = Postgres::new(&SERVER.url, Options { clock_slack: Duration::ZERO, ..options("reaped") });
    let store = Remote::new(server.unwrap(), Duration::from_secs(10), Arc::new(Tally::default()));
    let (short, long) = (rule("1000/1s burst 1", Algorithm::Gcra), rule("5/1d", Algorithm::SlidingLog));
    for key in 0..500 {
        ask(&store, &short, key, 1, 0).unwrap();
    }
    ask(&store, &long, 1_000, 1, 0).unwrap();
    let count = || SERVER.query("SELECT count(*) FROM reaped.counts");
    for _ in 0..400 {
        if count() == "1" {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(count(), "1");
    assert_eq!(ask(&store, &long, 1_000, 0, 0).unwrap().remaining, 4);
}

#[test]
fn another_salt_is_told_and_a_url_without_sense_is_refused() {
    let with = |salt| {
        let tally = Arc::new(Tally::default());
        let server = Postgres::new(&SERVER.url, Options { salt: Some(salt), ..options("salted") }).unwrap();
        (Remote::new(server, Duration::from_secs(10), Arc::clone(&tally)), tally)
    };
    let rule = rule("5/1m", Algorithm::Gcra);
    assert!(ask(&with(1).0, &rule, 1, 1, 0).is_ok());
    assert!(ask(&with(1).0, &rule, 1, 1, 0).is_ok());
    let (other, tally) = with(2);
    assert_eq!(ask(&other, &rule, 1, 1, 0), Err(Unanswered::Unavailable));
    assert!(tally.take_trouble().unwrap().contains("another salt"));
    assert!(Postgres::new("postgres://", Options::default()).is_err());
    assert!(
        Postgres::new("postgres://h/db", Options { schema: "a; drop".to_owned(), ..Options::default() })
            .is_err()
    );
}

//! The shared store keeps every law on a real Redis, and on a real Valkey where there is one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict};
use tollgate_harness::{Blocking, RedisServer};
use tollgate_store::around::Deadline;
use tollgate_store::redis::{Address, Options, Redis, fits};
use tollgate_store::{Demand, Remote, Store, Tally, Unanswered};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// One server for all laws of a program; its process ends with the tests.
static REDIS: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start("redis-server"));
static VALKEY: LazyLock<Option<RedisServer>> = LazyLock::new(|| {
    let path = std::env::var_os("TOLLGATE_VALKEY").map(PathBuf::from)?;
    Some(RedisServer::start(path.to_str()?))
});

/// Whose time decides.
#[derive(Clone, Copy)]
enum Time {
    Server,
    Caller,
}

fn prefixed(url: &str, prefix: &str, time: Time) -> Remote<Redis> {
    let options =
        Options { prefix: prefix.to_owned(), deadline: Duration::from_secs(10), ..Options::default() };
    let store = Remote::new(
        Redis::new(Address::parse(url).unwrap(), options),
        Duration::from_secs(10),
        Arc::default(),
    );
    if let Time::Caller = time { store.by_callers_time() } else { store }
}

fn store(server: &RedisServer, time: Time) -> Remote<Redis> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    prefixed(&server.url, &format!("test{}:", NUMBER.fetch_add(1, Ordering::Relaxed)), time)
}

fn on_redis(_rules: &[Rule]) -> Blocking<Remote<Redis>> {
    Blocking::new(store(&REDIS, Time::Caller), RUNTIME.handle())
}

fn on_valkey(_rules: &[Rule]) -> Blocking<Remote<Redis>> {
    Blocking::new(store(VALKEY.as_ref().unwrap_or(&REDIS), Time::Caller), RUNTIME.handle())
}

tollgate_harness::conformance!(redis, on_redis);
tollgate_harness::conformance!(valkey, on_valkey);

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn ask(
    store: &impl Store,
    rule: &Rule,
    key: u128,
    cost: u64,
    now: u64,
) -> Result<tollgate_core::Outcome, Unanswered> {
    let mut demand = Demand::new();
    demand.push(Charge { policy: 0, key: Fingerprint(key), rule, cost, spare: 0 }).unwrap();
    RUNTIME.block_on(store.decide(&demand, now)).map(|answer| answer.outcomes()[0])
}

#[test]
fn numbers_are_exact_at_the_edges() {
    let quotas = [
        ("7/60s burst 1000000", Algorithm::Gcra),
        ("1/366d burst 30", Algorithm::Gcra),
        ("1000000000/1s", Algorithm::TokenBucket),
        ("3/1ms burst 7", Algorithm::Gcra),
        ("988200000000000/366d", Algorithm::FixedWindow),
        ("12345/366d", Algorithm::FixedWindow),
        ("7/1ms", Algorithm::FixedWindow),
        ("100000000/366d", Algorithm::SlidingCounter),
        ("13/7001us", Algorithm::SlidingCounter),
        ("11/366d", Algorithm::SlidingLog),
    ];
    for (text, algorithm) in quotas {
        assert_eq!(fits(&rule(text, algorithm)), Ok(()), "{text}");
    }
    tollgate_harness::laws::numbers_are_exact_at_the_edges(&on_redis, &quotas);
}

#[test]
fn a_flushed_script_is_not_seen_and_keys_expire_at_their_own_time() {
    let server = RedisServer::start("redis-server");
    let store = store(&server, Time::Server);
    for (key, algorithm) in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
            .iter()
            .enumerate()
    {
        let rule = rule("10/1d", *algorithm);
        assert!(ask(&store, &rule, key as u128, 4, 0).unwrap().verdict.is_admit());
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        let outcome = ask(&store, &rule, key as u128, 7, 0).unwrap();
        assert!(
            matches!(outcome.verdict, Verdict::Refuse { retry_after } if retry_after <= rule.memory()),
            "{outcome:?}"
        );
        assert_eq!(outcome.remaining, 6, "{algorithm}");
    }
    let keys = server.command(&["KEYS", "*"]);
    assert_eq!(keys.lines().count(), 4, "{keys}");
    for key in keys.lines() {
        let left: u64 = server.command(&["PTTL", key]).parse().unwrap();
        assert!((9_000..=2 * 86_400_000 + 10_000).contains(&left), "{key} lives for {left} ms");
    }
}

#[test]
fn eight_instances_that_ask_for_twice_the_limit_at_once_get_the_limit() {
    let prefix = "fleet:";
    for algorithm in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
    {
        let rule = rule("50/1d", algorithm);
        let admitted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let store = prefixed(&REDIS.url, prefix, Time::Server);
                    let key = 70 + algorithm as u128;
                    for _ in 0..100 {
                        let admit = ask(&store, &rule, key, 1, 0).unwrap().verdict.is_admit();
                        admitted.fetch_add(u64::from(admit), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 50, "{algorithm}");
    }
}

#[test]
fn a_server_that_is_away_is_said_so_within_the_deadline_and_found_again() {
    let rule = rule("10/1m", Algorithm::Gcra);
    let within = |url, deadline| {
        Deadline::new(prefixed(url, "x:", Time::Server), deadline, Arc::new(Tally::default()))
    };
    let nobody = within("redis://127.0.0.1:1", Duration::from_millis(50));
    assert_eq!(ask(&nobody, &rule, 1, 1, 0), Err(Unanswered::Unavailable));
    let server = RedisServer::start("redis-server");
    let store = within(&server.url, Duration::from_secs(1));
    assert!(ask(&store, &rule, 1, 1, 0).is_ok());
    server.signal("-STOP");
    assert_eq!(ask(&store, &rule, 1, 1, 0), Err(Unanswered::Unavailable));
    server.signal("-CONT");
    let mut tries = 0;
    while ask(&store, &rule, 1, 0, 0).is_err() {
        tries += 1;
        assert!(tries < 20, "not found again");
    }
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let again = (0..3).filter(|_| ask(&store, &rule, 2, 1, 0).is_ok()).count();
    assert!(again >= 2, "a cut connection costs one answer at most");
}

#[test]
fn a_changed_rule_applies_at_once_and_keeps_what_was_used_also_when_instances_differ_for_a_while() {
    let now = 1_800_057_600 * SECOND;
    let store = store(&REDIS, Time::Caller);
    let rules = [
        rule("5/1h", Algorithm::Gcra),
        rule("10/1h", Algorithm::Gcra),
        rule("8/1h", Algorithm::SlidingLog),
        rule("7/1h", Algorithm::SlidingCounter),
        rule("9/1h", Algorithm::FixedWindow),
        rule("12/1h", Algorithm::SlidingLog),
    ];
    for (number, (old, new)) in
        rules.iter().flat_map(|old| rules.iter().map(move |new| (old, new))).enumerate()
    {
        let key = 1_000 + number as u128;
        let used = number as u64 % 6;
        assert!((0..used).all(|_| ask(&store, old, key, 1, now).unwrap().verdict.is_admit()), "{old}");
        assert_eq!(ask(&store, new, key, 0, now).unwrap().remaining, new.capacity() - used, "{old} to {new}");
        assert!(ask(&store, new, key, 1, now).unwrap().verdict.is_admit());
        let back = ask(&store, old, key, 0, now).unwrap();
        assert_eq!(back.remaining, old.capacity().saturating_sub(used + 1), "{old} to {new} and back");
        let left = (0..20).filter(|_| ask(&store, new, key, 1, now).unwrap().verdict.is_admit()).count();
        // On the way back what was more than the old rule knows is forgotten; never less than it was.
        assert!(left as u64 <= new.capacity() - used.min(new.capacity()), "{old} to {new}: {left}");
    }
}

#[test]
fn a_key_that_lost_its_expiry_gets_it_back_and_one_of_another_kind_is_an_error() {
    let server = RedisServer::start("redis-server");
    let store = prefixed(&server.url, "x:", Time::Server);
    for (key, algorithm) in [Algorithm::Gcra, Algorithm::SlidingLog].into_iter().enumerate() {
        let rule = rule("10/1m", algorithm);
        assert!(ask(&store, &rule, key as u128, 1, 0).unwrap().verdict.is_admit());
        let name = server.command(&["KEYS", &format!("*{key:032x}*")]);
        assert_eq!(server.command(&["PERSIST", &name]), "1");
        assert!(ask(&store, &rule, key as u128, 1, 0).unwrap().verdict.is_admit());
        assert!(server.command(&["PTTL", &name]).parse::<i64>().unwrap() > 0);
    }
    let rule = rule("10/1m", Algorithm::Gcra);
    server.command(&["SADD", &format!("x:{{{:032x}}}", 7), "foreign"]);
    assert_eq!(ask(&store, &rule, 7, 1, 0), Err(Unanswered::Unavailable));
}

/// The count under quotas that whoever asks has stated is one time: stating another in between gains nothing.
#[test]
fn quotas_that_are_stated_in_turn_for_one_key_gain_nothing() {
    let server = RedisServer::start("redis-server");
    let store = store(&server, Time::Caller);
    let stated = |text: &str| rule(text, Algorithm::Gcra).stated();
    let (wide, narrow) = (stated("1000/1h burst 1000"), stated("1000/1h burst 1"));
    let now = 1_800_057_600 * SECOND;
    assert!(ask(&store, &wide, 1, 1_000, now).unwrap().verdict.is_admit());
    for turn in 1..20 {
        let now = now + turn * SECOND / 100;
        assert!(!ask(&store, &narrow, 1, 1, now).unwrap().verdict.is_admit(), "{turn}");
        assert!(!ask(&store, &wide, 1, 900, now).unwrap().verdict.is_admit(), "{turn}");
    }
    assert!(ask(&store, &wide, 1, 900, now + 3_300 * SECOND).unwrap().verdict.is_admit());
}

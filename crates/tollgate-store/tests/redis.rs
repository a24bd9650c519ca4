//! The shared store keeps every law on a real Redis, and on a real Valkey where there is one.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict};
use tollgate_store::redis::{Redis, Time, fits};
use tollgate_store::{Answer, Demand, Store, Unanswered};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A server on a free port. It ends with the tests: a shell between holds a pipe to them, and ends it when that closes.
struct Server {
    lifeline: Child,
    url: String,
    port: u16,
}

impl Server {
    fn start(program: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let number = port.to_string();
        let mut command = Command::new("sh");
        command.args(["-c", "\"$0\" \"$@\" >/dev/null 2>&1 & read -r _; kill -CONT $!; kill $!", program]);
        command.args([
            "--port",
            &number,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            "/tmp",
        ]);
        let lifeline =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { lifeline, url: format!("redis://127.0.0.1:{port}"), port };
        let mut tries = 0;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            tries += 1;
            assert!(tries < 2_000, "{program} does not start; ./test.sh installs it");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn signal(&self, name: &str, pid: &str) {
        assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
    }

    fn pid(&self) -> String {
        let told = self.command(&["INFO", "server"]);
        let line = told.lines().find_map(|line| line.strip_prefix("process_id:"));
        line.expect("a server tells its process").trim().to_owned()
    }

    fn command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.lifeline.stdin.take());
        let _reaped = self.lifeline.wait();
    }
}

/// One server for all laws of a program; its process ends with the tests.
static REDIS: LazyLock<Server> = LazyLock::new(|| Server::start("redis-server"));
static VALKEY: LazyLock<Option<Server>> = LazyLock::new(|| {
    let path = std::env::var_os("TOLLGATE_VALKEY").map(PathBuf::from)?;
    Some(Server::start(path.to_str()?))
});

/// The store, awaited in place: laws run on threads of their own.
struct Blocking(Redis);

impl Store for Blocking {
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + Send {
        std::future::ready(RUNTIME.block_on(self.0.decide(demand, now)))
    }
}

fn store(server: &Server, time: Time) -> Redis {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("test{}:", NUMBER.fetch_add(1, Ordering::Relaxed));
    Redis::new(&server.url, &prefix, Duration::from_secs(10), time).unwrap()
}

fn on_redis(_rules: &[Rule]) -> Blocking {
    Blocking(store(&REDIS, Time::Caller))
}

fn on_valkey(_rules: &[Rule]) -> Blocking {
    Blocking(store(VALKEY.as_ref().unwrap_or(&REDIS), Time::Caller))
}

tollgate_harness::conformance!(redis, on_redis);
tollgate_harness::conformance!(valkey, on_valkey);

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn ask(
    store: &Redis,
    rule: &Rule,
    key: u128,
    cost: u64,
    now: u64,
) -> Result<tollgate_core::Outcome, Unanswered> {
    let mut demand = Demand::new();
    demand.push(Charge { policy: 0, key: Fingerprint(key), rule, cost }).unwrap();
    RUNTIME.block_on(store.decide(&demand, now)).map(|answer| answer.outcomes()[0])
}

#[test]
fn numbers_are_exact_at_the_edges() {
    let now = 1_800_057_600_123_456_789;
    for (text, algorithm) in [
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
    ] {
        let rule = rule(text, algorithm);
        assert_eq!(fits(&rule), Ok(()), "{text}");
        let (store, mut words) = (store(&REDIS, Time::Caller), vec![0; rule.words()]);
        let mut random = fastrand::Rng::with_seed(3);
        let mut at = now;
        for step in 0..200 {
            let capacity = rule.capacity();
            let cost = match random.u8(0..4) {
                0 => 1,
                1 => capacity.min(1_000).min(if algorithm == Algorithm::SlidingLog { 3 } else { u64::MAX }),
                2 if algorithm != Algorithm::SlidingLog => random.u64(1..=capacity),
                _ => random.u64(1..=capacity.min(5)),
            };
            let here =
                Charge { policy: 0, key: Fingerprint(1), rule: &rule, cost }.decide(words.as_mut_slice(), at);
            assert_eq!(
                ask(&store, &rule, 1, cost, at),
                Ok(here),
                "{text} {algorithm}, step {step}, cost {cost}"
            );
            at += match random.u8(0..3) {
                0 => random.u64(0..3),
                1 => random.u64(0..rule.memory().min(400 * 86_400 * SECOND)),
                _ => random.u64(0..rule.quota().interval() * 3),
            };
        }
    }
}

#[test]
fn a_flushed_script_is_not_seen_and_keys_expire_at_their_own_time() {
    let server = Server::start("redis-server");
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
                    let store =
                        Redis::new(&REDIS.url, prefix, Duration::from_secs(10), Time::Server).unwrap();
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
    let nobody = Redis::new("redis://127.0.0.1:1", "x:", Duration::from_millis(50), Time::Server).unwrap();
    assert_eq!(ask(&nobody, &rule, 1, 1, 0), Err(Unanswered::Unavailable));
    let server = Server::start("redis-server");
    let store = Redis::new(&server.url, "x:", Duration::from_secs(1), Time::Server).unwrap();
    assert!(ask(&store, &rule, 1, 1, 0).is_ok());
    let pid = server.pid();
    server.signal("-STOP", &pid);
    assert_eq!(ask(&store, &rule, 1, 1, 0), Err(Unanswered::Unavailable));
    server.signal("-CONT", &pid);
    let mut tries = 0;
    while ask(&store, &rule, 1, 0, 0).is_err() {
        tries += 1;
        assert!(tries < 20, "not found again");
    }
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let again = (0..3).filter(|_| ask(&store, &rule, 2, 1, 0).is_ok()).count();
    assert!(again >= 2, "a cut connection costs one answer at most");
}

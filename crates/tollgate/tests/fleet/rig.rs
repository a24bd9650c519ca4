//! Limiters over real servers, as a server would build them.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::redis::{Address, Options, Redis};
use tollgate::{
    Around, Check, Clock, Event, Limiter, PolicySet, Remote, Ruling, Salt, Stacks, Tally, postgres,
};
use tollgate_harness::{PostgresServer, RedisServer};

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
pub(crate) static REDIS: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start("redis-server"));
pub(crate) static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(PostgresServer::start);

/// Tests that measure time have the machine to themselves.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One salt for all, as instances have.
pub(crate) fn salt() -> Salt {
    Salt::from_text("a salt for a fleet of tests").unwrap()
}

/// Stacks around the store of a URL; the prefix keeps tests apart.
pub(crate) fn stacks(url: &str, prefix: &str, around: &Around) -> Stacks {
    let tally = Arc::new(Tally::default());
    let (salt, deadline) = (Some(salt().check()), around.deadline);
    if url.starts_with("postgres") {
        let schema = prefix.trim_end_matches(':').to_owned();
        let options = postgres::Options { schema, salt, deadline, ..postgres::Options::default() };
        let server = postgres::Postgres::new(url, options).unwrap();
        return Stacks::around(Remote::new(server, around.round_trip(), Arc::clone(&tally)), tally, around);
    }
    let address = Address::parse(url).unwrap();
    let around = Around { singly: address.is_cluster(), ..around.clone() };
    let options = Options { prefix: prefix.to_owned(), salt, deadline, ..Options::default() };
    Stacks::around(
        Remote::new(Redis::new(address, options), around.round_trip(), Arc::clone(&tally)),
        tally,
        &around,
    )
}

/// One instance of these policies.
pub(crate) fn instance(policies: &str, url: &str, prefix: &str, around: &Around) -> Limiter {
    let mut set = PolicySet::from_toml(policies).unwrap();
    set.instances = 4;
    Limiter::new(set, salt(), Clock::system()).store(stacks(url, prefix, around))
}

/// Wrappers with time to spare, for tests of what is counted.
pub(crate) fn patient() -> Around {
    Around { deadline: Duration::from_secs(20), ..Around::default() }
}

pub(crate) async fn check(limiter: &Limiter, policy: &str, subject: &str) -> Ruling {
    limiter.decide_checks(&[Check { policy, subject, cost: Some(1) }]).await
}

pub(crate) fn count(limiter: &Limiter, event: Event) -> u64 {
    limiter.stacks().unwrap().strict.tally().count(event)
}

/// How long until something is so.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

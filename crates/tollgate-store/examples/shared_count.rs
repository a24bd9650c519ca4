//! What a shared count costs beside a raw client of the same crate that sends the same script pipelined: distinct keys, the same
//! server, the same run, alternating. Prints decisions a second and this process's processor time a decision.
//!
//! `cargo run --release -p tollgate-store --features redis --example shared_count [redis://HOST:PORT]`
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement reads the clock and prints"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::redis::{AsyncConnectionConfig, Client, Script, Value};
use tollgate_core::{Charge, Fingerprint, Rule};
use tollgate_harness::RedisServer;
use tollgate_store::around::{Wrapper, stack};
use tollgate_store::redis::{Address, Options, Redis};
use tollgate_store::{Demand, Remote, Shared, Store, Tally};

const CALLERS: u64 = 64;
const EACH: Duration = Duration::from_millis(1_500);
const ROUNDS: usize = 5;

/// User and system time of this process so far.
fn processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 =
        fields[11].parse::<u64>().expect("user time") + fields[12].parse::<u64>().expect("system time");
    Duration::from_millis(ticks * 10)
}

/// Decisions a second, and microseconds of processor time a decision.
async fn measure<F: Future<Output = ()> + Send>(
    one: impl Fn(u64) -> F + Send + Sync + 'static,
) -> (f64, f64) {
    let (one, next) = (Arc::new(one), Arc::new(AtomicU64::new(fastrand::u64(..1 << 60))));
    let (start, before, first) = (Instant::now(), processor(), next.load(Ordering::Relaxed));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (one, next) = (Arc::clone(&one), Arc::clone(&next));
            tokio::spawn(async move {
                while start.elapsed() < EACH {
                    one(next.fetch_add(1, Ordering::Relaxed)).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller");
    }
    let (elapsed, used) = (start.elapsed(), processor().saturating_sub(before));
    let decisions = (next.load(Ordering::Relaxed) - first) as f64;
    (decisions / elapsed.as_secs_f64(), used.as_secs_f64() * 1e6 / decisions)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() {
    let own = std::env::args().nth(1).is_none().then(|| RedisServer::start("redis-server"));
    let url = std::env::args().nth(1).or_else(|| own.as_ref().map(|own| own.url.clone())).expect("a URL");
    let rule: &'static Rule = Box::leak(Box::new(Rule::gcra("100/1m".parse().expect("a quota"))));
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(url.as_str()).expect("a URL");
    let raw = client.get_multiplexed_async_connection_with_config(&config).await.expect("a server");
    let script = Arc::new(Script::new(include_str!("../src/redis.lua")));
    script.prepare_invoke().load_async(&mut raw.clone()).await.expect("a script");

    let tally = Arc::new(Tally::default());
    let remote = Remote::new(
        Redis::new(Address::parse(&url).expect("a URL"), Options::default()),
        Duration::from_millis(450),
        Arc::clone(&tally),
    );
    let bare = Shared::new(remote, tally);
    let whole = stack(
        bare.clone(),
        &[
            Wrapper::Refusals,
            Wrapper::Deadline(Duration::from_millis(500)),
            Wrapper::Coalescing,
            Wrapper::Breaker,
        ],
        None,
    );

    let key = |n: u64| Fingerprint(u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
    let (mut raws, mut bares, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (raw, script) = (raw.clone(), Arc::clone(&script));
        raws.push(
            measure(move |n| {
                let (mut raw, script) = (raw.clone(), Arc::clone(&script));
                async move {
                    let mut command = ::redis::cmd("EVALSHA");
                    command.arg(script.get_hash()).arg(1).arg(format!("raw:{{{}}}", key(n)));
                    command.arg(&["1", "", "", "", "10000", "gcra 100/1m burst 100", "cell"]);
                    command.arg(&["0", "600000000", "60", "0", "0", "0", "0", "0", "100", "1"]);
                    command.query_async::<Value>(&mut raw).await.expect("an answer");
                }
            })
            .await,
        );
        for (store, figures) in [(&bare, &mut bares), (&whole, &mut wholes)] {
            let store = store.clone();
            figures.push(
                measure(move |n| {
                    let store = store.clone();
                    async move {
                        let charge = Charge { policy: 0, key: key(n), rule, cost: 1, spare: 0 };
                        store.decide(&Demand::of(charge), n).await.expect("an answer");
                    }
                })
                .await,
            );
        }
    }
    let of = |figures: &[(f64, f64)]| {
        (median(figures.iter().map(|f| f.0).collect()), median(figures.iter().map(|f| f.1).collect()))
    };
    let raw = of(&raws);
    println!("{CALLERS} callers, distinct keys, medians of {ROUNDS} rounds");
    for (name, (rate, cost)) in
        [("raw client", raw), ("store", of(&bares)), ("store and wrappers", of(&wholes))]
    {
        println!(
            "{name:<20} {rate:>9.0} decisions/s ({:.2} of raw) {cost:>6.2} us of processor time each ({:.2} of raw)",
            rate / raw.0,
            cost / raw.1
        );
    }
}

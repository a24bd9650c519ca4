//! What a group of commits is worth: decisions a second with one SQLite transaction for each, and with the durable store and
//! 1,000 callers who each wait for their commit. Both in one run, on one disk:
//!
//! ```sh
//! cargo run --release -p tollgate-store --features sqlite --example group_commit
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::{Charge, Fingerprint, Quota, Rule, SECOND};
use tollgate_store::durable::{Durability, Durable, Opened};
use tollgate_store::{Demand, Memory, Store, Table, WhenFull};

const LENGTH: Duration = Duration::from_secs(3);
const NOW: u64 = 1_800_057_600 * SECOND;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let path = Path::new(&folder).join(format!("group-commit-{}.db", std::process::id()));
    let single = one_transaction_each(&path)?;
    remove(&path);
    let grouped = durable(&path)?;
    remove(&path);
    println!("one transaction a decision  {single:>9.0} decisions/s");
    println!("durable, group commit       {grouped:>9.0} decisions/s, {:.0} x", grouped / single);
    Ok(())
}

/// What most do: read, decide and write in a transaction of its own, on disk when it returns.
fn one_transaction_each(path: &Path) -> rusqlite::Result<f64> {
    let connection = rusqlite::Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE cells (key INTEGER PRIMARY KEY, cell INTEGER);",
    )?;
    let (start, mut decisions) = (Instant::now(), 0_i64);
    while start.elapsed() < LENGTH {
        let update = "INSERT INTO cells VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET cell = cell + 1";
        connection.prepare_cached(update)?.execute([decisions % 10_000])?;
        decisions += 1;
    }
    Ok(decisions as f64 / start.elapsed().as_secs_f64())
}

fn durable(path: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let rule = Rule::gcra("1000000000/1s".parse::<Quota>()?);
    let memory = Memory::new([Table::new(100_000, rule.words(), WhenFull::Share)]);
    let store = Opened::open(path, 1)?.store(memory, &[Some("p")], Durability::Commit);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let callers = (0..1_000_u64).map(|caller| call(&store, &rule, caller, &done, &stop));
        let stopping = async {
            while start.elapsed() < LENGTH {
                tokio::task::yield_now().await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        futures_util::future::join(futures_util::future::join_all(callers), stopping).await;
    });
    Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

async fn call(store: &Durable, rule: &Rule, caller: u64, done: &AtomicU64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(caller);
    while !stop.load(Ordering::Relaxed) {
        let mut demand = Demand::new();
        let key = Fingerprint(fastrand::Rng::with_seed(random.u64(0..10_000)).u128(..));
        let pushed = demand.push(Charge { policy: 0, key, rule, cost: 1, spare: 0 });
        if pushed.is_ok() && store.decide(&demand, NOW).await.is_ok_and(|answer| answer.is_admit()) {
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn remove(path: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let _gone = std::fs::remove_file(format!("{}{ending}", path.display()));
    }
}

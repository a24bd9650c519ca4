//! The durable store keeps every law, and what it answered outlives it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND};
use tollgate_store::durable::{Durability, Durable, Opened};
use tollgate_store::{Demand, Intent, Memory, Store, Table, WhenFull};

const START: u64 = 1_800_057_600 * SECOND;

/// A file of this test's own, in memory where that is possible: laws ask a million times.
fn file() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("tollgate-durable-{}-{number}.db", std::process::id()))
}

/// A store whose file goes with it.
struct Passing(Durable, PathBuf);

impl Store for Passing {
    fn decide(
        &self,
        demand: &Demand<'_>,
        now: u64,
    ) -> impl Future<Output = Result<tollgate_store::Answer, tollgate_store::Unanswered>> + Send {
        self.0.decide(demand, now)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        remove(&self.1);
    }
}

fn remove(path: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let _gone = std::fs::remove_file(format!("{}{ending}", path.display()));
    }
}

fn memory(rules: &[Rule]) -> Memory {
    Memory::new(rules.iter().map(|rule| Table::new(10_000, rule.words(), WhenFull::Share)))
}

fn make(rules: &[Rule]) -> Passing {
    let path = file();
    let opened = Opened::open(&path, 7).unwrap();
    let names: Vec<String> = (0..rules.len()).map(|n| format!("p{n}")).collect();
    let names: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
    Passing(opened.store(memory(rules), &names, Durability::Commit), path)
}

tollgate_harness::conformance!(durable, make);

fn spread(key: u128) -> Fingerprint {
    Fingerprint(fastrand::Rng::with_seed(u64::try_from(key).unwrap()).u128(..))
}

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn ask(store: &Durable, rule: &Rule, key: u128, cost: u64, now: u64) -> tollgate_core::Outcome {
    let mut demand = Demand::new();
    demand.push(Charge { policy: 0, key: spread(key), rule, cost, spare: 0 }).unwrap();
    pollster::block_on(store.decide(&demand, now)).unwrap().outcomes()[0]
}

#[test]
fn what_was_answered_is_there_after_a_restart_for_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let text = if algorithm == Algorithm::LeakyQueue { "10/1h queue 5" } else { "10/1h" };
        let rule = rule(text, algorithm);
        let path = file();
        let store = Opened::open(&path, 7).unwrap().store(memory(&[rule]), &[Some("p")], Durability::Commit);
        let mut random = fastrand::Rng::with_seed(5);
        let mut before = Vec::new();
        for key in 1..100 {
            ask(&store, &rule, key, random.u64(0..=rule.capacity()), START + u64::try_from(key).unwrap());
        }
        for key in 1..100 {
            before.push(ask(&store, &rule, key, 0, START + SECOND));
        }
        drop(store);
        let opened = Opened::open(&path, 7).unwrap();
        assert_eq!(opened.mark, START + 99);
        let memory = memory(&[rule]);
        for kept in &opened.kept {
            assert_eq!((kept.policy.as_str(), kept.rule), ("p", rule));
            memory
                .table(0)
                .unwrap()
                .restore(kept.key, (&kept.rule, &rule), &kept.words, START + SECOND)
                .unwrap();
        }
        let store = opened.store(memory, &[Some("p")], Durability::Commit);
        let after: Vec<_> = (1..100).map(|key| ask(&store, &rule, key, 0, START + SECOND)).collect();
        let told = |outcomes: &[tollgate_core::Outcome]| {
            outcomes.iter().map(|outcome| (outcome.remaining, outcome.reset_after)).collect::<Vec<_>>()
        };
        assert_eq!(told(&after), told(&before), "{algorithm}");
        drop(store);
        remove(&path);
    }
}

#[test]
fn forgotten_keys_and_unnamed_policies_leave_nothing_in_the_file() {
    let (rule, path) = (rule("2/1s", Algorithm::Gcra), file());
    let store =
        Opened::open(&path, 7).unwrap().store(memory(&[rule, rule]), &[Some("p"), None], Durability::Commit);
    for key in 1..400 {
        ask(&store, &rule, key, 2, START);
    }
    let mut unnamed = Demand::new();
    unnamed.push(Charge { policy: 1, key: spread(2_000), rule: &rule, cost: 1, spare: 0 }).unwrap();
    assert!(pollster::block_on(store.decide(&unnamed, START)).unwrap().is_admit());
    let later = START + 10 * SECOND;
    ask(&store, &rule, 1_000, 1, later);
    ask(&store, &rule, 1_001, 1, later);
    let charge = Charge { policy: 0, key: spread(1_001), rule: &rule, cost: 1, spare: 0 };
    let forgotten = pollster::block_on(store.decide(&Demand::of(charge).to(Intent::Forget), later));
    assert_eq!(forgotten.unwrap().admitted, 1);
    drop(store);
    let kept = Opened::open(&path, 7).unwrap().kept;
    let has = |key| kept.iter().any(|kept| kept.key == spread(key));
    assert!(has(1_000) && !has(1_001) && !has(2_000), "{kept:?}");
    remove(&path);
}

/// A flood of keys that nobody returns to: what has passed goes away, in the file and in memory.
#[test]
fn a_file_stays_in_proportion_to_what_is_live_in_it() {
    let (rule, path) = (rule("2/1s", Algorithm::Gcra), file());
    let store = Opened::open(&path, 7).unwrap().store(memory(&[rule]), &[Some("p")], Durability::Commit);
    let long = self::rule("5/1d", Algorithm::Gcra);
    ask(&store, &long, 1 << 40, 5, START);
    let keys = if std::env::var_os("TOLLGATE_QUICK").is_some() { 12_000 } else { 30_000 };
    for n in 0..keys {
        ask(&store, &rule, n, 1, START + u64::try_from(n).unwrap() * 1_000_000);
    }
    drop(store);
    let kept = Opened::open(&path, 7).unwrap().kept;
    // 500 are live at any time.
    assert!(kept.len() < 8_000, "{} kept", kept.len());
    let old = kept.iter().find(|kept| kept.key == spread(1 << 40)).expect("a key that is live is kept");
    assert_eq!(old.words, [START + 86_400 * SECOND]);
    remove(&path);
}

#[test]
fn a_file_that_is_not_usable_says_why() {
    let path = file();
    let open = |salt| Opened::open(&path, salt).map(|_| ()).map_err(|error| error.to_string());
    let first = Opened::open(&path, 7).unwrap();
    assert!(open(7).unwrap_err().contains("another process counts in this file"));
    drop(first);
    assert!(open(8).unwrap_err().contains("another salt"));
    assert_eq!(open(7), Ok(()));
    std::fs::write(&path, b"this is no database, and long enough to be looked at as one".repeat(100))
        .unwrap();
    assert!(open(7).unwrap_err().contains("not a SQLite file"));
    remove(&path);
    std::fs::create_dir(&path).unwrap();
    assert!(open(7).unwrap_err().contains("unable to open"));
    std::fs::remove_dir(&path).unwrap();
}

/// A commit that fails admits nothing, and once it can be written again everything that was charged is.
#[test]
fn a_file_that_cannot_be_written_refuses_and_recovers_by_itself() {
    let (rule, path) = (rule("10/1h", Algorithm::Gcra), file());
    let store = Opened::open(&path, 7).unwrap().store(memory(&[rule]), &[Some("p")], Durability::Commit);
    ask(&store, &rule, 1, 1, START);
    // SQLite stops at a number of pages as it would at the end of a disk.
    store.limit_pages(1);
    let mut demand = Demand::new();
    demand.push(Charge { policy: 0, key: spread(2), rule: &rule, cost: 1, spare: 0 }).unwrap();
    let mut failures = 0;
    for key in 10..3_000_u128 {
        let mut demand = Demand::new();
        demand.push(Charge { policy: 0, key: spread(key), rule: &rule, cost: 3, spare: 0 }).unwrap();
        failures += usize::from(pollster::block_on(store.decide(&demand, START)).is_err());
    }
    assert!(failures > 100, "{failures} failures on a full disk");
    store.limit_pages(u32::MAX >> 1);
    assert!(pollster::block_on(store.decide(&demand, START)).is_ok(), "it recovers");
    drop(store);
    let kept = Opened::open(&path, 7).unwrap().kept;
    assert_eq!(kept.len(), 2 + 2_990, "nothing that was charged is missing");
    remove(&path);
}

//! Leases in eight processes over a real store: a million decisions, pauses, bursts after idle, and one instance that sits on its
//! lease. Without the rule that units lapse, the same run breaks the bound.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tollgate::around::{Leases, Refusals};
use tollgate::redis::{Address, Options, Redis};
use tollgate::{Demand, Event, Quota, Remote, Rule, SECOND, Store, Tally};
use tollgate_core::{Charge, Fingerprint};
use tollgate_harness::Admissions;

use crate::rig::{REDIS, RUNTIME, alone};

const WORKERS: u64 = 8;

fn rule() -> Rule {
    Rule::gcra("400/1s burst 160".parse::<Quota>().unwrap())
}

/// Microseconds since 1970, as the server's clock has them.
fn wall() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap() * 1_000
}

/// Time to the next turn of this phase of the second.
fn next(phase: u64) -> Duration {
    let into = wall() % SECOND;
    Duration::from_nanos((phase + SECOND - into) % SECOND)
}

/// What one process does: run by the test below, in a process of its own.
#[test]
#[ignore = "one of the processes of the test below"]
fn worker() {
    let setting = |name: &str| std::env::var(format!("LEASES_{name}")).unwrap();
    let (number, seconds): (u64, u64) =
        (setting("WORKER").parse().unwrap(), setting("SECONDS").parse().unwrap());
    let tally = Arc::new(Tally::default());
    let options = Options { prefix: setting("PREFIX"), ..Options::default() };
    let redis = Redis::new(Address::parse(&setting("URL")).unwrap(), options);
    let leases =
        Leases::new(Remote::new(redis, Duration::from_secs(2), Arc::clone(&tally)), 100, Arc::clone(&tally));
    let leases = if setting("NAIVE") == "1" { leases.naive() } else { leases };
    let store = Refusals::new(leases, Arc::clone(&tally));
    let rule = rule();
    let start = Instant::now();
    let clock = || 1 + u64::try_from(start.elapsed().as_nanos()).unwrap();
    let (mut admitted, mut decisions) = (String::new(), 0_u64);
    let mut decide = async || {
        let demand =
            Demand::of(Charge { policy: 0, key: Fingerprint(1 << 64 | 1), rule: &rule, cost: 1, spare: 0 });
        let (leased, at) = (tally.count(Event::Leased), wall());
        let answer = store.decide(&demand, clock()).await.unwrap();
        decisions += 1;
        if answer.is_admit() {
            // What the store admitted counts when it did; what was spent from a lease when it was.
            let spent = tally.count(Event::Leased) > leased;
            writeln!(admitted, "{}", if spent { at } else { answer.now }).unwrap();
        }
    };
    RUNTIME.block_on(async {
        while start.elapsed() < Duration::from_secs(seconds) {
            if number == WORKERS - 1 {
                // This one buys a pack while all others rest, sits on it, and spends it when they return.
                tokio::time::sleep(next(SECOND * 3 / 4)).await;
                for _ in 0..40 {
                    decide().await;
                }
                tokio::time::sleep(next(0)).await;
                for _ in 0..120 {
                    decide().await;
                }
            } else {
                // A burst after a rest, when the bucket is full again.
                tokio::time::sleep(next(0)).await;
                while wall() % SECOND < SECOND * 2 / 5 {
                    decide().await;
                }
            }
        }
    });
    std::fs::write(setting("OUT"), format!("{} {decisions}\n{admitted}", tally.count(Event::Asked))).unwrap();
}

/// Runs the processes. Gives what was admitted, and the commands and decisions.
fn run(naive: bool, seconds: u64) -> (Admissions, u64, u64) {
    let folder = std::env::temp_dir().join(format!("tollgate-leases-{}-{naive}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "leases::worker", "--ignored", "--nocapture"])
                .env("LEASES_WORKER", number.to_string())
                .env("LEASES_SECONDS", seconds.to_string())
                .env("LEASES_PREFIX", format!("leases{naive}:"))
                .env("LEASES_URL", &REDIS.url)
                .env("LEASES_NAIVE", if naive { "1" } else { "0" })
                .env("LEASES_OUT", folder.join(number.to_string()))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    assert!(workers.iter_mut().all(|worker| worker.wait().unwrap().success()));
    let (mut admissions, mut asked, mut decided) = (Admissions::new(), 0, 0);
    for number in 0..WORKERS {
        let text = std::fs::read_to_string(folder.join(number.to_string())).unwrap();
        let mut lines = text.lines();
        let head: Vec<u64> = lines.next().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        (asked, decided) = (asked + head[0], decided + head[1]);
        lines.for_each(|line| admissions.push(line.parse().unwrap(), 1));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    (admissions, asked, decided)
}

#[test]
fn eight_processes_keep_the_bound_over_a_million_decisions_and_naive_leases_do_not() {
    let _alone = alone();
    let quick = std::env::var_os("TOLLGATE_QUICK").is_some();
    let seconds = if quick { 3 } else { 12 };
    let (admissions, asked, decided) = run(false, seconds);
    println!("{decided} decisions, {} admitted, {asked} commands", admissions.total());
    assert_eq!(admissions.breach(&rule()), None);
    assert!(quick || decided >= 1_000_000, "{decided} decisions");
    let (naive, ..) = run(true, seconds);
    let breach = naive.breach(&rule());
    println!("without the lapse: {breach:?}");
    assert!(quick || breach.is_some(), "a naive lease was expected to break the bound");
}

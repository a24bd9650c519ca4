//! Reservations, bans and responses where the count is on a server or in a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Asked, Check, Durability, Limiter, PolicySet, Reason, Reserved, Settled, Store};

use crate::rig::{POSTGRES, REDIS, RUNTIME, alone, check, instance, patient, salt};

const LIMIT: u64 = 1_000_000;

fn policies(placement: &str) -> String {
    format!(
        "[[policy]]\nname = \"tokens\"\nquota = \"{LIMIT}/30d\"\nalgorithm = \"fixed-window\"\nplacement = \"{placement}\"\n\
         reserve = {{ within = \"1h\", debt = 20 }}\n"
    )
}

/// What is left, by any instance.
async fn left<S: Store>(limiter: &Limiter<S>) -> u64 {
    let look = Check { policy: "tokens", subject: "alice", cost: Some(0) };
    limiter.decide_checks(&[look]).await.parts().next().unwrap().1.outcome.remaining
}

async fn reserve<S: Store>(limiter: &Limiter<S>, units: u64, id: &str) -> tollgate::Reservation {
    let reserved = Reserved { policy: "tokens", subject: "alice", units, id: id.as_bytes() };
    let ruling = limiter.decide_all(&[Asked::Reserve(reserved)]).await;
    ruling.reservation.unwrap_or_else(|| panic!("{:?}", ruling.reason))
}

/// Sixty-four callers reserve and settle, and die at any moment of it. What is charged at the end is what was settled, and what
/// was reserved and was not.
async fn sums_up<S: Store + 'static>(limiters: Vec<Arc<Limiter<S>>>, place: &str) {
    let (settled, lapsed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut callers = Vec::new();
    for (caller, index) in (0..64_u64).zip(0_usize..) {
        let mine = Arc::clone(&limiters[index % limiters.len()]);
        let other = Arc::clone(&limiters[(index + 1) % limiters.len()]);
        let (settled, lapsed, place) = (Arc::clone(&settled), Arc::clone(&lapsed), place.to_owned());
        callers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(caller);
            for n in 0..6 {
                let (units, used) = (random.u64(1..100), random.u64(0..130));
                let id = format!("{caller}-{n}");
                if random.bool() {
                    // It dies while it reserves; whether that was heard nobody knows.
                    let dying = Duration::from_micros(random.u64(0..3_000));
                    let _died = tokio::time::timeout(dying, reserve(&mine, units, &id)).await;
                }
                let made = reserve(&mine, units, &id).await;
                assert_eq!(
                    made.token,
                    reserve(&other, units, &id).await.token,
                    "{place}: any instance knows it"
                );
                if random.u8(0..4) == 0 {
                    lapsed.fetch_add(units, Ordering::Relaxed);
                    continue;
                }
                // Two settle it at once, on two instances, and a third later.
                let settle = |limiter: &Arc<Limiter<S>>| {
                    let (limiter, token) = (Arc::clone(limiter), made.token.clone());
                    tokio::spawn(async move { limiter.settle(&token, used).await })
                };
                let (one, two) = (settle(&mine), settle(&other));
                if random.bool() {
                    // Whoever waits for it may die; the settlement goes on.
                    tokio::task::yield_now().await;
                }
                let both = [one.await.unwrap(), two.await.unwrap()];
                let first = both.iter().filter(|settled| matches!(settled, Settled::Now { .. })).count();
                assert_eq!(first, 1, "{place}: {both:?}");
                settled.fetch_add(used.min(units + 20), Ordering::Relaxed);
                assert_eq!(mine.settle(&made.token, 0).await, Settled::Before, "{place}");
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let charged = LIMIT - left(&limiters[0]).await;
    assert_eq!(charged, settled.load(Ordering::Relaxed) + lapsed.load(Ordering::Relaxed), "{place}");
}

#[test]
fn reservations_sum_up_on_every_store_whoever_dies() {
    let _alone = alone();
    RUNTIME.block_on(async {
        let valkey =
            std::env::var("TOLLGATE_VALKEY").ok().map(|path| tollgate_harness::RedisServer::start(&path));
        let mut stores = vec![(&REDIS.url, "redis"), (&POSTGRES.url, "postgres")];
        stores.extend(valkey.iter().map(|server| (&server.url, "valkey")));
        for (url, name) in stores {
            let limiters =
                (0..2).map(|_| Arc::new(instance(&policies("strict"), url, "reserve:", &patient())));
            sums_up(limiters.collect(), name).await;
        }
        let path = std::env::temp_dir().join(format!("tollgate-reserve-{}.sqlite", std::process::id()));
        let open = |path: &PathBuf| {
            let mut set = PolicySet::from_toml(&policies("local")).unwrap();
            set.policies[0].placement = tollgate::Placement::Durable;
            Limiter::open(set, salt(), path, Durability::Commit).unwrap().0
        };
        let limiter = Arc::new(open(&path));
        sums_up(vec![Arc::clone(&limiter)], "sqlite").await;
        // What is open stays open when the process ends, and what was settled settled.
        let before = left(&limiter).await;
        let (open_one, settled_one) =
            (reserve(&limiter, 50, "open").await, reserve(&limiter, 50, "settled").await);
        assert!(matches!(limiter.settle(&settled_one.token, 10).await, Settled::Now { given_back: 40, .. }));
        drop(limiter);
        let limiter = open(&path);
        assert_eq!(left(&limiter).await, before - 60);
        assert_eq!(limiter.settle(&settled_one.token, 0).await, Settled::Before);
        assert!(matches!(limiter.settle(&open_one.token, 10).await, Settled::Now { given_back: 40, .. }));
        assert_eq!(left(&limiter).await, before - 20);
        drop(limiter);
        for end in ["", "-wal", "-shm"] {
            let _gone = std::fs::remove_file(format!("{}{end}", path.display()));
        }
    });
}

#[test]
fn a_ban_by_one_instance_holds_on_all() {
    let _alone = alone();
    let text = "[[policy]]\nname = \"login\"\nquota = \"2/1h\"\nplacement = \"strict\"\n\
                ban = { after = 3, within = \"1h\", for = \"1h\" }\n";
    RUNTIME.block_on(async {
        for url in [&REDIS.url, &POSTGRES.url] {
            let (one, two) =
                (instance(text, url, "ban:", &patient()), instance(text, url, "ban:", &patient()));
            let mut reasons = Vec::new();
            for _ in 0..6 {
                reasons.push(check(&one, "login", "mallory").await.reason);
            }
            use Reason::{Admitted, Banned, Throttled};
            assert_eq!(reasons, [Admitted, Admitted, Throttled, Throttled, Banned, Banned], "{url}");
            let there = check(&two, "login", "mallory").await;
            assert_eq!(there.reason, Banned, "{url}");
            assert!(there.retry_after().unwrap() > 3_590 * tollgate::SECOND, "{url}");
            assert!(check(&two, "login", "alice").await.is_admit(), "{url}");
            assert_eq!(two.unban("login", "mallory").await, Ok(Some(true)), "{url}");
            assert_eq!(
                check(&two, "login", "mallory").await.reason,
                Throttled,
                "{url}: only the ban is lifted"
            );
        }
    });
}

#[test]
fn an_origin_that_holds_a_credential_is_obeyed_by_all_instances_and_for_nobody_else() {
    let _alone = alone();
    let text = "[[policy]]\nname = \"api\"\nquota = \"1000/1s\"\nplacement = \"strict\"\nobey = \"1h\"\n";
    RUNTIME.block_on(async {
        let (one, two) = (
            instance(text, &REDIS.url, "obey:", &patient()),
            instance(text, &REDIS.url, "obey:", &patient()),
        );
        let told = check(&one, "api", "credential").await;
        assert!(one.obey(&told, 60 * tollgate::SECOND).await);
        for limiter in [&one, &two] {
            assert_eq!(check(limiter, "api", "credential").await.reason, Reason::Held);
            assert!(check(limiter, "api", "another").await.is_admit());
        }
    });
}

/// A refusal that is remembered here is forgotten in a moment where somebody else may take it back.
#[test]
fn what_another_instance_gives_back_or_lifts_is_known_here_in_a_moment() {
    let _alone = alone();
    let text = "[[policy]]\nname = \"p\"\nquota = \"2/1h\"\nplacement = \"strict\"\nban = { after = 1, within = \"1h\", for = \"1h\" }\n\
                [[policy]]\nname = \"tokens\"\nquota = \"10/1h\"\nplacement = \"strict\"\nreserve = { within = \"1h\" }\n";
    RUNTIME.block_on(async {
        let (one, two) = (
            instance(text, &REDIS.url, "moment:", &patient()),
            instance(text, &REDIS.url, "moment:", &patient()),
        );
        for _ in 0..2 {
            check(&one, "p", "a").await;
        }
        assert_eq!(check(&one, "p", "a").await.reason, Reason::Banned);
        let before = crate::rig::count(&one, tollgate::Event::Asked);
        for _ in 0..100 {
            assert_eq!(check(&one, "p", "a").await.reason, Reason::Banned);
        }
        assert!(crate::rig::count(&one, tollgate::Event::Asked) < before + 20, "a storm is still remembered");
        assert_eq!(two.unban("p", "a").await, Ok(Some(true)));
        let look = [Check { policy: "p", subject: "a", cost: Some(0) }];
        let lifted = async || one.decide_checks(&look).await.is_admit();
        assert!(crate::rig::until("the ban's end", lifted).await < Duration::from_secs(5));

        let made = reserve(&one, 10, "call").await;
        assert_eq!(check(&two, "tokens", "alice").await.reason, Reason::Throttled);
        assert!(
            reserve(&two, 10, "call").await.repeated,
            "what is known to refuse does not hide what is reserved"
        );
        assert!(matches!(one.settle(&made.token, 0).await, Settled::Now { given_back: 10, .. }));
        let freed = async || check(&two, "tokens", "alice").await.is_admit();
        assert!(crate::rig::until("what was given back", freed).await < Duration::from_secs(5));
    });
}

#[test]
fn a_banned_subject_is_told_so_whatever_refuses_first() {
    let _alone = alone();
    RUNTIME.block_on(async {
        for placement in ["layered", "leased", "approximate"] {
            let text = format!(
                "[[policy]]\nname = \"p\"\nquota = \"2/1h\"\nplacement = \"{placement}\"\nban = {{ after = 3, within = \"1h\", for = \"1h\" }}\n"
            );
            let limiter = instance(&text, &REDIS.url, &format!("first_{placement}:"), &patient());
            let mut began = 0;
            let mut last = Reason::Admitted;
            for _ in 0..40 {
                let ruling = check(&limiter, "p", "m").await;
                began += u32::from(ruling.ban_began);
                last = ruling.reason;
            }
            assert_eq!((began, last), (1, Reason::Banned), "{placement}");
        }
    });
}

/// One in ten asks the store; the others cost it nothing, also when it refuses.
#[test]
fn a_sample_of_a_shared_count_asks_the_store_for_one_in_so_many() {
    let _alone = alone();
    let text = "[[policy]]\nname = \"p\"\nquota = \"1000/1d\"\nplacement = \"strict\"\nsample = \"1/10\"\n";
    RUNTIME.block_on(async {
        let limiter = instance(text, &REDIS.url, "sample:", &patient());
        let mut admitted = 0;
        for _ in 0..5_000 {
            admitted += u64::from(check(&limiter, "p", "a").await.is_admit());
        }
        assert!((600..1_600).contains(&admitted), "{admitted} of about 1,000");
        let asked = crate::rig::count(&limiter, tollgate::Event::Asked);
        assert!(asked < 200, "{asked} round trips");
        assert!(!check(&limiter, "p", "a").await.is_admit(), "refused whether it is drawn or not");
    });
}

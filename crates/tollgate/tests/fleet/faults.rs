//! The store fails in every way that there is a server for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::{Around, Direction, Event, Limiter, Reason};
use tollgate_harness::servers::free_port;
use tollgate_harness::{PostgresServer, RedisServer};

use crate::rig::{RUNTIME, alone, check, count, instance, until};

const POLICIES: &str = r#"
    [[policy]]
    name = "login"
    quota = "1000000/1h"
    placement = "strict"
    class = "credential"
    [[policy]]
    name = "read"
    quota = "1000000/1h"
    placement = "strict"
    class = "read"
    [[policy]]
    name = "share"
    quota = "400/1h"
    placement = "strict"
    on_unavailable = "local"
"#;

const DEADLINE: Duration = Duration::from_millis(50);

fn around() -> Around {
    Around { deadline: DEADLINE, ..Around::default() }
}

/// Whether each policy answers by its direction now.
async fn by_direction(limiter: &Limiter, subject: &str) -> bool {
    let (login, read, share) = (
        check(limiter, "login", subject).await,
        check(limiter, "read", subject).await,
        check(limiter, "share", subject).await,
    );
    if login.fallback.is_none() || read.fallback.is_none() || share.fallback.is_none() {
        return false;
    }
    assert_eq!((login.reason, login.fallback), (Reason::Unavailable, Some(Direction::Refuse)));
    assert_eq!((read.reason, read.fallback), (Reason::Admitted, Some(Direction::Admit)));
    assert_eq!((share.reason, share.fallback), (Reason::Admitted, Some(Direction::Local)));
    true
}

async fn is_strict(limiter: &Limiter, subject: &str) -> bool {
    check(limiter, "login", subject).await.fallback.is_none()
}

/// How long it takes until the limiter is strict again.
async fn back(limiter: &Limiter, what: &str) -> Duration {
    let took = until(what, async || is_strict(limiter, "back").await).await;
    println!("{what}: strict again after {took:?}");
    took
}

#[test]
fn a_stopped_store_is_answered_for_within_the_deadline_and_found_again_without_a_herd() {
    let _alone = alone();
    let server = RedisServer::start("redis-server");
    RUNTIME.block_on(async {
        let limiter = Arc::new(instance(POLICIES, &server.url, "stop:", &around()));
        until("the store", async || is_strict(&limiter, "a").await).await;
        let connections = server.info("total_connections_received");
        let asked = count(&limiter, Event::Asked);
        server.signal("-STOP");
        // 3 s at about 2,000 checks a second, over many keys and a hot one.
        let start = Instant::now();
        let mut waiting = Vec::new();
        while start.elapsed() < Duration::from_secs(3) {
            for n in 0..10 {
                let limiter = Arc::clone(&limiter);
                let subject = if n < 3 { "hot".to_owned() } else { format!("{}", fastrand::u64(..)) };
                waiting.push(tokio::spawn(async move {
                    let begun = Instant::now();
                    let ruling = check(&limiter, "login", &subject).await;
                    (begun.elapsed(), ruling.reason)
                }));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut times = Vec::new();
        for one in waiting {
            let (time, reason) = one.await.unwrap();
            assert_eq!(reason, Reason::Unavailable);
            times.push(time);
        }
        times.sort_unstable();
        let (p99, worst) = (times[times.len() * 99 / 100], times[times.len() - 1]);
        let during = count(&limiter, Event::Asked) - asked;
        println!("{} checks while stopped: p99 {p99:?}, worst {worst:?}, {during} commands", times.len());
        assert!(p99 <= DEADLINE + Duration::from_millis(10), "p99 {p99:?}");
        assert!(during < 250, "{during} commands while it was stopped");
        server.signal("-CONT");
        let took = back(&limiter, "stopped").await;
        assert!(took <= Duration::from_secs(2), "{took:?}");
        let more = server.info("total_connections_received") - connections;
        // The commands of this test itself are connections too.
        assert!(more <= 12, "{more} connections");
    });
}

#[test]
fn a_store_that_is_down_at_the_start_or_dies_is_found_when_it_comes() {
    let _alone = alone();
    let mut server = RedisServer::start("redis-server");
    server.kill();
    RUNTIME.block_on(async {
        let limiter = instance(POLICIES, &server.url, "down:", &around());
        until("its direction", async || by_direction(&limiter, "a").await).await;
        server.restart();
        assert!(back(&limiter, "down at the start").await <= Duration::from_secs(2));
        server.kill();
        until("its direction", async || by_direction(&limiter, "a").await).await;
        server.restart();
        assert!(back(&limiter, "killed").await <= Duration::from_secs(2));
    });
}

#[test]
fn a_share_of_the_quota_stands_in_and_the_bound_is_two_bursts() {
    let _alone = alone();
    let mut server = RedisServer::start("redis-server");
    RUNTIME.block_on(async {
        let limiters: Vec<_> = (0..4).map(|_| instance(POLICIES, &server.url, "share:", &around())).collect();
        let mut admitted = 0;
        for _ in 0..450 {
            admitted += u64::from(check(&limiters[0], "share", "alice").await.is_admit());
        }
        assert_eq!(admitted, 400);
        server.kill();
        for limiter in &limiters {
            let mut here = 0;
            for _ in 0..150 {
                // Refused before by the store, and remembered: so another subject.
                here += u64::from(check(limiter, "share", "bob").await.is_admit());
            }
            assert_eq!(here, 100, "a quarter of the quota for each of four instances");
        }
        assert!(!check(&limiters[0], "share", "alice").await.is_admit(), "what was refused is remembered");
    });
}

/// The server refuses in its own words; each time by direction, and strict again by itself when the cause is gone.
#[test]
fn every_refusal_of_the_server_is_answered_by_direction_and_recovered_from() {
    let _alone = alone();
    let server = RedisServer::start("redis-server");
    let elder = RedisServer::start("redis-server");
    let command = |words: &[&str]| drop(server.command(words));
    type Step<'a> = &'a dyn Fn();
    let port = elder.port.to_string();
    let fill = || {
        command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        command(&["CONFIG", "SET", "maxmemory", "1"]);
    };
    let cases: [(&str, &[&str], Step<'_>, Step<'_>); 3] = [
        ("OOM", &["OOM"], &fill, &|| command(&["CONFIG", "SET", "maxmemory", "0"])),
        ("READONLY", &["READONLY", "ReadOnly"], &|| command(&["REPLICAOF", "127.0.0.1", &port]), &|| {
            command(&["REPLICAOF", "NO", "ONE"]);
        }),
        (
            "NOAUTH",
            &["NOAUTH", "uthenticat"],
            &|| {
                command(&["CONFIG", "SET", "requirepass", "secret"]);
                command(&["-a", "secret", "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            },
            &|| command(&["-a", "secret", "CONFIG", "SET", "requirepass", ""]),
        ),
    ];
    RUNTIME.block_on(async {
        for (name, words, break_it, mend_it) in cases {
            let limiter = instance(POLICIES, &server.url, "words:", &around());
            until(name, async || is_strict(&limiter, "a").await).await;
            break_it();
            until(name, async || by_direction(&limiter, "a").await).await;
            told(&limiter, words).await;
            mend_it();
            assert!(back(&limiter, name).await <= Duration::from_secs(3), "{name}");
        }
    });
}

/// The server's own words are there to be logged.
async fn told(limiter: &Limiter, words: &[&str]) {
    let mut last = String::new();
    for _ in 0..2_000 {
        let _asked = check(limiter, "login", "told").await;
        if let Some(trouble) = limiter.stacks().unwrap().strict.tally().take_trouble() {
            last = trouble;
        }
        if words.iter().any(|words| last.contains(words)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{words:?} are not in `{last}`");
}

#[test]
fn a_flushed_script_is_not_seen() {
    let _alone = alone();
    let server = RedisServer::start("redis-server");
    RUNTIME.block_on(async {
        let limiter = instance(POLICIES, &server.url, "flush:", &around());
        until("the store", async || is_strict(&limiter, "a").await).await;
        for n in 0..200 {
            server.command(&["SCRIPT", "FLUSH"]);
            assert!(is_strict(&limiter, &format!("{n}")).await);
        }
    });
}

#[test]
fn a_server_that_takes_no_more_clients_is_answered_for_until_there_is_a_place() {
    let _alone = alone();
    let server = RedisServer::start("redis-server");
    server.command(&["CONFIG", "SET", "maxclients", "1"]);
    RUNTIME.block_on(async {
        let taken = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        until("its one place to be taken", async || server.command(&["PING"]) != "PONG").await;
        let limiter = instance(POLICIES, &server.url, "full:", &around());
        until("its direction", async || by_direction(&limiter, "a").await).await;
        // The server says why, or its refusal to talk is all there is.
        told(&limiter, &["max number of clients", "reset", "broken", "closed", "terminated"]).await;
        drop(taken);
        assert!(back(&limiter, "no place").await <= Duration::from_secs(2));
    });
}

#[test]
fn a_server_that_is_loading_is_answered_for_until_it_has() {
    let _alone = alone();
    let server = RedisServer::with("redis-server", &["--enable-debug-command", "yes"]);
    server.command(&["DEBUG", "POPULATE", "30000"]);
    server.command(&["CONFIG", "SET", "key-load-delay", "100"]);
    server.command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    RUNTIME.block_on(async {
        let limiter = instance(POLICIES, &server.url, "loading:", &around());
        until("the store", async || is_strict(&limiter, "a").await).await;
        let port = server.port.to_string();
        let mut loading =
            std::process::Command::new("redis-cli").args(["-p", &port, "DEBUG", "RELOAD"]).spawn().unwrap();
        until("its direction", async || by_direction(&limiter, "a").await).await;
        assert!(loading.wait().unwrap().success());
        assert!(back(&limiter, "loading").await <= Duration::from_secs(2));
    });
}

#[test]
fn a_wrong_password_and_another_salt_are_told_and_never_shown() {
    let _alone = alone();
    let server = RedisServer::with("redis-server", &["--requirepass", "right-password"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    RUNTIME.block_on(async {
        let limiter = instance(POLICIES, &url("wrong-password"), "pass:", &around());
        until("its direction", async || by_direction(&limiter, "a").await).await;
        let mut trouble = None;
        until("the server's words", async || {
            let _asked = check(&limiter, "login", "a").await;
            trouble = limiter.stacks().unwrap().strict.tally().take_trouble().or(trouble.take());
            trouble.as_ref().is_some_and(|text| text.contains("WRONGPASS") || text.contains("uthenticat"))
        })
        .await;
        assert!(!trouble.unwrap().contains("wrong-password"));
        let limiter = instance(POLICIES, &url("right-password"), "pass:", &around());
        until("the store", async || is_strict(&limiter, "a").await).await;
        let stacks = crate::rig::stacks(&url("right-password"), "pass:", &around());
        drop(stacks);
        // Another salt, the same prefix.
        let other = tollgate::Limiter::new(
            tollgate::PolicySet::from_toml(POLICIES).unwrap(),
            tollgate::Salt::from_text("quite another salt than that").unwrap(),
            tollgate::Clock::system(),
        );
        let tally = Arc::new(tollgate::Tally::default());
        let options = tollgate::redis::Options {
            prefix: "pass:".to_owned(),
            salt: Some(1),
            ..tollgate::redis::Options::default()
        };
        let address = tollgate::redis::Address::parse(&url("right-password")).unwrap();
        let remote = tollgate::Remote::new(
            tollgate::redis::Redis::new(address, options),
            Duration::from_secs(2),
            Arc::clone(&tally),
        );
        let other = other.store(tollgate::Stacks::around(remote, Arc::clone(&tally), &around()));
        assert!(!is_strict(&other, "a").await);
        assert!(tally.take_trouble().unwrap().contains("another salt"));
    });
}

/// A network that swallows everything: connections that were there lead nowhere, new ones are not made.
#[test]
fn a_partition_is_answered_for_and_healed_within_two_seconds() {
    let _alone = alone();
    // A relay stands for the network: it can stop carrying without closing anything.
    let server = RedisServer::start("redis-server");
    let port = free_port();
    let cut = Arc::new(std::sync::atomic::AtomicBool::new(false));
    RUNTIME.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let (to, swallowed) = (server.port, Arc::clone(&cut));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let cut = Arc::clone(&swallowed);
                tokio::spawn(async move {
                    let far = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    carry(near, far, cut).await;
                });
            }
        });
        let limiter = instance(POLICIES, &format!("redis://127.0.0.1:{port}"), "cut:", &around());
        until("the store", async || is_strict(&limiter, "a").await).await;
        cut.store(true, std::sync::atomic::Ordering::Relaxed);
        until("its direction", async || by_direction(&limiter, "a").await).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(by_direction(&limiter, "a").await);
        cut.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(back(&limiter, "partition").await <= Duration::from_secs(2));
    });
}

/// Carries bytes both ways; what comes while the network is cut is lost, and so is its connection, without a word.
async fn carry(
    near: tokio::net::TcpStream,
    far: tokio::net::TcpStream,
    cut: Arc<std::sync::atomic::AtomicBool>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let also = Arc::clone(&cut);
    let lost = |cut: &std::sync::atomic::AtomicBool| cut.load(std::sync::atomic::Ordering::Relaxed);
    let there = async {
        let mut bytes = vec![0; 4_096];
        let mut dead = false;
        while let Ok(n @ 1..) = near_read.read(&mut bytes).await {
            dead |= lost(&cut);
            if !dead && far_write.write_all(&bytes[..n]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut bytes = vec![0; 4_096];
        while let Ok(n @ 1..) = far_read.read(&mut bytes).await {
            if !lost(&also) && near_write.write_all(&bytes[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(there, back);
}

#[test]
fn a_postgres_that_restarts_stops_or_is_locked_is_answered_for_and_found_again() {
    let _alone = alone();
    let mut server = PostgresServer::start();
    RUNTIME.block_on(async {
        let around = Around { deadline: Duration::from_millis(100), ..Around::default() };
        let limiter = instance(POLICIES, &server.url, "faults:", &around);
        until("the schema", async || is_strict(&limiter, "a").await).await;
        server.stop();
        until("its direction", async || by_direction(&limiter, "a").await).await;
        server.restart();
        assert!(back(&limiter, "restarted").await <= Duration::from_secs(2));
        server.signal("-STOP");
        until("its direction", async || by_direction(&limiter, "a").await).await;
        server.signal("-CONT");
        assert!(back(&limiter, "stopped").await <= Duration::from_secs(2));
        let port = server.port.to_string();
        let lock = std::process::Command::new("psql")
            .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-qX", "-c"])
            .arg("BEGIN; LOCK TABLE faults.counts IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(1); COMMIT")
            .stdout(std::process::Stdio::null())
            .spawn();
        until("its direction", async || by_direction(&limiter, "a").await).await;
        assert!(lock.unwrap().wait().unwrap().success());
        assert!(back(&limiter, "locked").await <= Duration::from_secs(2));
        // What was counted before it was restarted is still counted: 400 and no more.
        let mut admitted = 0;
        for _ in 0..500 {
            admitted += u64::from(check(&limiter, "share", "once").await.is_admit());
        }
        assert_eq!(admitted, 400);
    });
}

/// A charge counts when a replica has it: while none has, the policies' directions answer, and the connection stays.
#[test]
fn a_charge_that_no_replica_has_is_not_admitted() {
    let _alone = alone();
    let master = RedisServer::start("redis-server");
    let port = master.port.to_string();
    let mut replica = RedisServer::with("redis-server", &["--replicaof", "127.0.0.1", &port]);
    RUNTIME.block_on(async {
        until("the replica", async || master.info("connected_slaves") == 1).await;
        let tally = Arc::new(tollgate::Tally::default());
        let options = tollgate::redis::Options {
            prefix: "replicas:".to_owned(),
            wait_replicas: 1,
            deadline: Duration::from_millis(200),
            ..tollgate::redis::Options::default()
        };
        let address = tollgate::redis::Address::parse(&master.url).unwrap();
        let redis = tollgate::redis::Redis::new(address, options);
        let around = Around { deadline: Duration::from_millis(200), ..Around::default() };
        let remote = tollgate::Remote::new(redis, around.round_trip(), Arc::clone(&tally));
        let policies = tollgate::PolicySet::from_toml(POLICIES).unwrap();
        let limiter = Limiter::new(policies, crate::rig::salt(), tollgate::Clock::system());
        let limiter = limiter.store(tollgate::Stacks::around(remote, tally, &around));
        until("strict", async || is_strict(&limiter, "a").await).await;
        // A flushed script is loaded again, and waited for, in one go.
        master.command(&["SCRIPT", "FLUSH"]);
        assert!(is_strict(&limiter, "b").await);
        let connections = master.info("total_connections_received");
        replica.kill();
        until("its direction", async || by_direction(&limiter, "a").await).await;
        told(&limiter, &["0 of 1 replicas have it"]).await;
        let more = master.info("total_connections_received") - connections;
        assert!(more <= 3, "{more} connections: only those of this test's own commands");
        replica.restart();
        assert!(back(&limiter, "no replica").await <= Duration::from_secs(10));
    });
}

#[test]
fn reading_policies_admit_up_to_their_cap_while_the_store_is_out() {
    let _alone = alone();
    let mut server = RedisServer::start("redis-server");
    server.kill();
    RUNTIME.block_on(async {
        let around = Around { read_cap: "7/1h".parse().unwrap(), ..around() };
        let limiter = instance(POLICIES, &server.url, "cap:", &around);
        for _ in 0..20 {
            // What is refused anyway takes nothing of it.
            assert_eq!(check(&limiter, "login", "a").await.reason, Reason::Unavailable);
        }
        let mut admitted = 0;
        for n in 0..20 {
            let ruling = check(&limiter, "read", &format!("{n}")).await;
            assert_eq!(ruling.fallback, Some(Direction::Admit));
            admitted += usize::from(ruling.is_admit());
        }
        assert_eq!(admitted, 7);
    });
}

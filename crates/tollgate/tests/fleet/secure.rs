//! Over TLS, as a user who may do just what is needed, and in either version of the protocol.

use std::sync::Arc;
use std::time::Duration;

use tollgate::redis::{Address, Options, Redis};
use tollgate::{Around, Clock, Limiter, PolicySet, Remote, Stacks, Tally, postgres};
use tollgate_harness::servers::free_port;
use tollgate_harness::{PostgresServer, RedisServer};

use crate::rig::{RUNTIME, alone, check, salt, until};

const POLICIES: &str = r#"
    [[policy]]
    name = "p"
    quota = "5/1d"
    placement = "strict"
    [[policy]]
    name = "log"
    quota = "5/1d"
    algorithm = "sliding-log"
    placement = "strict"
"#;

/// What the documentation says that a user needs.
const RIGHTS: &str = "+evalsha +eval +time +get +set +del +lrange +lpush +rpush +ltrim +pexpire +hello +ping";

fn limiter(stacks: Stacks) -> Limiter {
    Limiter::new(PolicySet::from_toml(POLICIES).unwrap(), salt(), Clock::system()).store(stacks)
}

fn on_redis(url: &str, authority: Option<&str>) -> Limiter {
    let tally = Arc::new(Tally::default());
    let address = Address::parse(url).unwrap();
    let address = match authority {
        Some(pem) => address.with_authority(pem.as_bytes().to_vec()),
        None => address,
    };
    let options = Options { salt: Some(salt().check()), ..Options::default() };
    let remote = Remote::new(Redis::new(address, options), Duration::from_secs(2), Arc::clone(&tally));
    let around = Around { deadline: Duration::from_secs(2), ..Around::default() };
    limiter(Stacks::around(remote, tally, &around))
}

async fn counts(limiter: &Limiter, subject: &str) -> bool {
    let mut admitted = (0, 0);
    for _ in 0..8 {
        let (cell, log) = (check(limiter, "p", subject).await, check(limiter, "log", subject).await);
        if cell.fallback.is_some() || log.fallback.is_some() {
            return false;
        }
        admitted = (admitted.0 + u64::from(cell.is_admit()), admitted.1 + u64::from(log.is_admit()));
    }
    assert_eq!(admitted, (5, 5));
    assert_eq!(limiter.reset("p", subject).await, Ok(Some(true)));
    true
}

fn trouble(limiter: &Limiter) -> String {
    limiter.stacks().unwrap().strict.tally().take_trouble().unwrap_or_default()
}

#[test]
fn redis_over_tls_as_a_user_with_few_rights_in_both_protocols() {
    let _alone = alone();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = certified.cert.pem();
    let folder = std::env::temp_dir().join(format!("tollgate-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let (chain, key) = (file("chain.pem", &pem), file("key.pem", &certified.signing_key.serialize_pem()));
    let port = free_port().to_string();
    let server = RedisServer::with(
        "redis-server",
        &["--tls-port", &port, "--tls-cert-file", &chain, "--tls-key-file", &key, "--tls-auth-clients", "no"],
    );
    let mut user = vec!["ACL", "SETUSER", "counter", "on", ">word", "~tollgate:*"];
    user.extend(RIGHTS.split(' '));
    assert_eq!(server.command(&user), "OK");
    RUNTIME.block_on(async {
        let plain = format!("redis://counter:word@127.0.0.1:{}", server.port);
        for (n, url) in [
            plain.clone(),
            format!("{plain}?protocol=resp3"),
            format!("rediss://counter:word@localhost:{port}"),
            format!("rediss://counter:word@localhost:{port}/?protocol=resp3"),
        ]
        .iter()
        .enumerate()
        {
            let limiter = on_redis(url, url.starts_with("rediss").then_some(pem.as_str()));
            assert!(counts(&limiter, &format!("s{n}")).await, "{url}: {}", trouble(&limiter));
        }
        let unverified = on_redis(&format!("rediss://counter:word@localhost:{port}"), None);
        assert!(!counts(&unverified, "a").await);
        assert!(trouble(&unverified).contains("ertificate"), "{}", trouble(&unverified));
        let stranger = on_redis(&plain.replace("counter", "stranger"), None);
        assert!(!counts(&stranger, "a").await);
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn postgres_over_tls_by_a_user_that_may_only_use_what_is_there() {
    let _alone = alone();
    let server = PostgresServer::start();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    server.certify(&certified.cert.pem(), &certified.signing_key.serialize_pem());
    let on_postgres = |user: &str, authority: Option<&str>| {
        let tally = Arc::new(Tally::default());
        let url = format!("postgres://{user}@localhost:{}/postgres?sslmode=require", server.port);
        let options = postgres::Options {
            authority: authority.map(|pem| pem.as_bytes().to_vec()),
            deadline: Duration::from_secs(2),
            ..postgres::Options::default()
        };
        let remote = Remote::new(
            postgres::Postgres::new(&url, options).unwrap(),
            Duration::from_secs(2),
            Arc::clone(&tally),
        );
        let around = Around { deadline: Duration::from_secs(2), ..Around::default() };
        limiter(Stacks::around(remote, tally, &around))
    };
    let pem = certified.cert.pem();
    RUNTIME.block_on(async {
        let owner = on_postgres("postgres", Some(&pem));
        until("TLS", async || counts(&owner, "a").await).await;
        assert_eq!(server.query("SELECT count(*) > 0 FROM pg_stat_ssl WHERE ssl"), "t");
        server.query(
            "CREATE USER counter; GRANT USAGE ON SCHEMA tollgate TO counter; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tollgate TO counter",
        );
        let counter = on_postgres("counter", Some(&pem));
        assert!(counts(&counter, "b").await, "{}", trouble(&counter));
        let unverified = on_postgres("postgres", None);
        assert!(!counts(&unverified, "a").await);
        assert!(!trouble(&unverified).is_empty());
    });
}

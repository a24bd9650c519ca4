//! Several servers over one store, and the commands around it.

use serde_json::Value;
use tollgate_harness::{PostgresServer, RedisServer};

use crate::rig::{Answer, Folder, Server, get, post, tollgate, wait_for};

const SALT: &str = "a salt that all instances share";

const POLICIES: &str = r#"
[[policy]]
name = "login"
subject = "const:all"
quota = "10/1d"
class = "credential"

[[policy]]
name = "read"
subject = "const:all"
quota = "1000/1d"
class = "read"
"#;

fn with_salt(folder: &Folder, url: &str, salt: &str) -> Server {
    let file =
        folder.write("fleet.toml", &format!("[store]\nurl = \"{url}\"\ndeadline = \"200ms\"\n{POLICIES}"));
    let ports = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    Server::run(tollgate().arg("serve").args(ports).arg("--config").arg(file).env("TOLLGATE_SALT", salt))
}

fn check(server: &Server, policy: &str) -> Answer {
    post(&server.api, "/v1/check", &format!(r#"{{"policy": "{policy}", "subject": "alice"}}"#))
}

fn is_strict(server: &Server) -> bool {
    check(server, "read").json()["fallback"] == false
}

#[test]
fn servers_over_one_store_admit_its_limit_between_them() {
    let (redis, postgres) = (RedisServer::start("redis-server"), PostgresServer::start());
    for url in [&redis.url, &postgres.url] {
        let folder = Folder::new();
        let servers: Vec<Server> = (0..3).map(|_| with_salt(&folder, url, SALT)).collect();
        wait_for("the store", || servers.iter().all(is_strict));
        let statuses: Vec<u16> = (0..30).map(|n| check(&servers[n % 3], "login").status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{url}");
        assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 20, "{url}");
        assert!(servers[0].metric("tollgate_store_events_total{event=\"asked\"}") > 0.0);
        assert!(servers[0].metric("tollgate_store_events_total{event=\"remembered\"}") > 0.0);
        let reset = post(&servers[1].admin, "/v1/reset", r#"{"policy": "login", "subject": "alice"}"#);
        assert_eq!(reset.json()["was_known"], true);
        assert_eq!(check(&servers[1], "login").status, 200, "its own memory of the refusal is cleared");
    }
}

#[test]
fn a_store_that_is_down_is_answered_for_by_class_counted_logged_and_found() {
    let mut redis = RedisServer::start("redis-server");
    redis.kill();
    let folder = Folder::new();
    let server = with_salt(&folder, &redis.url, SALT);
    let login = check(&server, "login");
    assert_eq!((login.status, login.json()["fallback"].as_bool()), (503, Some(true)));
    assert!(login.header("retry-after").parse::<u64>().unwrap() >= 1);
    let read = check(&server, "read");
    assert_eq!((read.status, read.json()["fallback"].as_bool()), (200, Some(true)));
    for _ in 0..10 {
        check(&server, "login");
    }
    assert!(server.metric("tollgate_fallback_total{direction=\"refuse\",policy=\"login\"}") >= 11.0);
    assert!(server.metric("tollgate_fallback_total{direction=\"admit\",policy=\"read\"}") >= 1.0);
    wait_for("the alarm", || server.metric("tollgate_store_open") > 0.0);
    assert_eq!(get(&server.admin, "/readyz", &[]).json()["store"], "unavailable");
    wait_for("the log", || server.errors.lock().unwrap().contains("the shared store is out of reach"));
    assert!(server.errors.lock().unwrap().contains("refused"), "in the store's own words");
    let line = server.decisions().into_iter().find(|line| line["fallback"] == true).unwrap();
    assert!(line["store_us"].as_f64().unwrap() > 0.0, "{line}");
    let warmed = post(&server.admin, "/v1/warm", r#"[{"policy": "login", "subjects": ["a", "b"]}]"#);
    assert_eq!((warmed.status, warmed.json()["warm"].as_u64()), (200, Some(0)), "no error: {}", warmed.body);
    redis.restart();
    wait_for("the store", || is_strict(&server));
    wait_for("the log", || server.errors.lock().unwrap().contains("the shared store is back"));
    let warmed = post(&server.admin, "/v1/warm", r#"[{"policy": "login", "subjects": ["a", "b"]}]"#).json();
    assert_eq!((warmed["warm"].as_u64(), warmed["failed"].as_u64()), (Some(4), Some(0)), "{warmed}");
}

#[test]
fn instances_with_different_salts_are_told_so() {
    let redis = RedisServer::start("redis-server");
    let folder = Folder::new();
    let first = with_salt(&folder, &redis.url, SALT);
    wait_for("the store", || is_strict(&first));
    let second = with_salt(&folder, &redis.url, "quite another salt than that");
    for _ in 0..8 {
        assert_eq!(check(&second, "login").status, 503);
    }
    wait_for("the log", || second.errors.lock().unwrap().contains("another salt"));
    let output = tollgate().args(["serve", "--store", &redis.url]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("TOLLGATE_SALT"));
}

#[test]
fn a_password_is_nowhere_to_be_seen() {
    let redis = RedisServer::with("redis-server", &["--requirepass", "secretword"]);
    let folder = Folder::new();
    let url = redis.url.replace("redis://", "redis://:secretword@");
    let server = with_salt(&folder, &url, SALT);
    wait_for("the store", || is_strict(&server));
    let wrong = with_salt(&folder, &url.replace("secretword", "secretwordtoo"), SALT);
    check(&wrong, "login");
    wait_for("the log", || wrong.errors.lock().unwrap().contains("the shared store"));
    for server in [&server, &wrong] {
        let all = format!("{}{}", server.errors.lock().unwrap(), server.out.lock().unwrap());
        assert!(!all.contains("secretword"), "{all}");
    }
    let file = folder.0.join("fleet.toml");
    let explained = tollgate().arg("explain").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("> redis://127.0.0.1") && !text.contains("secretword"), "{text}");
}

#[test]
fn verify_tries_every_law_on_a_store_of_ones_own_and_cleans_up() {
    let (redis, postgres) = (RedisServer::start("redis-server"), PostgresServer::start());
    let some_laws = |store: &str, laws: &[&str]| {
        let mut command = tollgate();
        command.args(["verify", "--quick", "--store", store]);
        for law in laws {
            command.args(["--law", law]);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let verify = |store: &str| some_laws(store, &[]);
    // Where a round trip takes longest, those laws that each store has a part of its own in; the store's tests try all of them.
    let stores: [(&str, &[&str]); 3] = [
        (&redis.url, &[]),
        ("memory:", &[]),
        (&postgres.url, &["all or none", "threads", "spare", "instances"]),
    ];
    std::thread::scope(|scope| {
        for (url, laws) in stores {
            scope.spawn(move || {
                let (code, text) = some_laws(url, laws);
                assert_eq!(code, Some(0), "{text}");
                let kept = text.contains("laws kept") && text.contains("cleaned up");
                assert!(kept && !text.contains("BROKEN"), "{text}");
            });
        }
    });
    assert_eq!(redis.command(&["DBSIZE"]), "0");
    assert_eq!(postgres.query("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'tollgate%'"), "0");
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let (code, text) = verify(&redis.url);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("BROKEN") && text.contains("the store said: ") && text.contains("OOM"), "{text}");
    assert_eq!(verify("redis://127.0.0.1:1").0, Some(2));
    assert_eq!(verify("carrier-pigeon:").0, Some(1));
    assert_eq!(some_laws("memory:", &["no such law"]).0, Some(1));
}

#[test]
fn explain_says_the_bound_across_instances_the_stack_and_the_cost_of_every_placement() {
    let folder = Folder::new();
    let each = ["strict", "leased", "sharded", "approximate", "layered", "divided", "local"];
    let policies: String = each
        .iter()
        .map(|placement| {
            format!("[[policy]]\nname = \"{placement}\"\nquota = \"100/1m\"\nplacement = \"{placement}\"\n")
        })
        .collect();
    let text =
        format!("[store]\nurl = \"redis+cluster://127.0.0.1:1,127.0.0.1:2\"\ninstances = 5\n{policies}");
    let file = folder.write("all.toml", &text);
    let output = tollgate().arg("explain").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for says in [
        "one key at a time > refusals > deadline 50ms > coalescing > breaker > redis+cluster://127.0.0.1:1,127.0.0.1:2",
        "leases of up to 100 > breaker",
        "synced every 100ms",
        "beyond it at most 500 units once: what 5 instances",
        "8 shares",
        "each of which admits 1/5 of it",
        "N instances admit up to N times this",
        "may step back by 10s",
        "charged in turn, and a later refusal gives the earlier ones back",
    ] {
        assert!(text.contains(says), "{says} is missing in\n{text}");
    }
    let request = tollgate().arg("explain").arg(&file).arg("/").output().unwrap();
    assert!(String::from_utf8_lossy(&request.stdout).contains("from cold: admitted"));
    let wrong = folder.write(
        "wrong.toml",
        "[store]\nurl = \"redis://127.0.0.1\"\ninstances = 9\nwrappers = [\"refusals\", \"cache\"]\n[[policy]]\nname = \"a\"\nquota = \"5/1m\"\nplacement = \"divided\"\n\
         [[policy]]\nname = \"b\"\nquota = \"5/1m\"\nplacement = \"leased\"\nalgorithm = \"sliding-log\"\n[[policy]]\nname = \"c\"\nquota = \"5/1m\"\nshards = 4\n",
    );
    let output = tollgate().arg("check").arg(&wrong).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for says in [
        "no wrapper; expected",
        "less than one unit for each of 9 instances",
        "needs algorithm gcra",
        "has shards",
    ] {
        assert!(text.contains(says), "{says} is missing in\n{text}");
    }
}

/// The same value in every line: a decision's fields do not depend on where it was counted.
#[test]
fn decision_lines_of_a_shared_count_are_as_others() {
    let redis = RedisServer::start("redis-server");
    let folder = Folder::new();
    let server = with_salt(&folder, &redis.url, SALT);
    wait_for("the store", || is_strict(&server));
    check(&server, "login");
    wait_for("a line", || server.decisions().iter().any(|line| line["policy"] == "login"));
    let line: Value = server.decisions().into_iter().find(|line| line["policy"] == "login").unwrap();
    for field in ["time", "key", "cost", "limit", "remaining", "cell", "store_us", "fallback", "generation"] {
        assert!(!line[field].is_null(), "{field} is missing in {line}");
    }
}

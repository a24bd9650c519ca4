//! The admin listener.

use crate::rig::{Folder, Server, get, post, send, tollgate, wait_for};

#[test]
fn health_metrics_and_policies_are_there() {
    let server = Server::start(&["--limit", "5/1m burst 3"]);
    assert_eq!(get(&server.admin, "/healthz", &[]).status, 200);
    assert_eq!(get(&server.admin, "/readyz", &[]).json()["status"], "ready");
    let policies = get(&server.admin, "/v1/policies", &[]).json();
    assert_eq!(policies["policies"][0]["quota"], "5/1m burst 3");
    assert!(policies["policies"][0]["bound"].as_str().unwrap().contains("at most 3 + 5 x t/1m"));
    get(&server.api, "/v1/check?policy=default&subject=a", &[]);
    let metrics = get(&server.admin, "/metrics", &[]).body;
    for name in [
        "tollgate_decisions_total{decision=\"admit\",policy=\"default\"} 1",
        "tollgate_store_seconds_count 1",
        "tollgate_table_events_total{event=\"evicted\"} 0",
        "tollgate_config_generation 1",
        "tollgate_config_reload_failures_total 0",
        "# TYPE tollgate_upstream_seconds histogram",
        "tollgate_responses_total{door=\"check\",status=\"200\"} 1",
    ] {
        assert!(metrics.contains(name), "{name} is missing in {metrics}");
    }
}

#[test]
fn a_subject_is_looked_at_and_reset_and_the_reset_is_audited() {
    let server = Server::start(&["--limit", "2/1h"]);
    let check = || get(&server.api, "/v1/check?policy=default&subject=a%20b", &[]).status;
    assert_eq!([check(), check(), check()], [200, 200, 429]);
    let standing = get(&server.admin, "/v1/standing?policy=default&subject=a+b", &[]).json();
    assert_eq!(standing["policies"][0]["remaining"], 0);
    let key = standing["key"].as_str().unwrap().to_owned();
    let reset = post(&server.admin, "/v1/reset", r#"{"policy": "default", "subject": "a b"}"#).json();
    assert_eq!((&reset["was_known"], &reset["key"]), (&true.into(), &key.clone().into()));
    assert_eq!(check(), 200);
    wait_for("the audit line", || server.errors.lock().unwrap().contains("audit=\"reset\""));
    assert!(server.errors.lock().unwrap().contains(&key));
    assert_eq!(get(&server.admin, "/v1/standing?policy=none&subject=a", &[]).status, 404);
    assert_eq!(get(&server.admin, "/v1/standing?policy=default", &[]).status, 400);
    assert_eq!(post(&server.admin, "/v1/reset", r#"{"policy": "none", "subject": "a"}"#).status, 404);
    assert_eq!(post(&server.admin, "/v1/reset", "{").status, 400);
    // One byte too many: all is sent before the answer can come.
    let most = tollgate_server::admin::MAX_ADMIN_BYTES;
    let sent = post(&server.admin, "/v1/reset", &"x".repeat(most + 1));
    assert_eq!(sent.status, 413);
    let form = send(
        "POST",
        &server.admin,
        "/v1/reset",
        &[("content-type", "text/plain")],
        r#"{"policy":"default","subject":"a"}"#,
    );
    assert_eq!(form.status, 415, "what another site's form could send changes nothing");
    assert_eq!(get(&server.admin, "/v1/reset", &[]).status, 404);
    let led_here = [("content-type", "application/json"), ("host", "evil.example")];
    let reset = send("POST", &server.admin, "/v1/reset", &led_here, r#"{"policy":"default","subject":"a"}"#);
    assert_eq!(reset.status, 401, "a name that was made to lead here is not this machine's");
}

#[test]
fn a_token_is_asked_for_where_there_is_one_and_needed_beyond_loopback() {
    let server = Server::run(
        tollgate()
            .args(["serve", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("TOLLGATE_ADMIN_TOKEN", "open sesame"),
    );
    assert_eq!(get(&server.admin, "/v1/policies", &[]).status, 401);
    assert_eq!(get(&server.admin, "/v1/policies", &[("authorization", "Bearer open sesamf")]).status, 401);
    assert_eq!(get(&server.admin, "/v1/policies", &[("authorization", "Bearer open sesame")]).status, 200);
    assert_eq!(get(&server.admin, "/healthz", &[]).status, 200, "probes need none");
    assert_eq!(get(&server.admin, "/v1/policies", &[("authorization", "bearer open sesame")]).status, 200);
    assert_eq!(send("HEAD", &server.admin, "/healthz", &[], "").status, 200);
    for token in [None, Some(""), Some("short")] {
        let mut command = tollgate();
        command.args(["serve", "--admin", "0.0.0.0:0"]);
        if let Some(token) = token {
            command.env("TOLLGATE_ADMIN_TOKEN", token);
        }
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{token:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("TOLLGATE_ADMIN_TOKEN"));
    }
}

#[test]
fn the_salt_of_a_file_is_made_once_and_names_the_same_keys_after_a_restart() {
    let folder = Folder::new();
    let text = "[keys]\nsalt_file = \"salt\"\n[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n";
    let file = folder.write("p.toml", text);
    let key = || {
        let server = Server::with_file(&file, "");
        let standing = get(&server.admin, "/v1/standing?policy=p&subject=alice", &[]).json();
        standing["key"].as_str().unwrap().to_owned()
    };
    // Four at once: all start, and agree.
    let keys: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(key)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|other| *other == keys[0]), "{keys:?}");
    assert_eq!(keys[0], key());
    let salt = std::fs::read_to_string(folder.0.join("salt")).unwrap();
    let server = Server::with_file(&file, "");
    assert!(!server.errors.lock().unwrap().contains(&salt), "the salt is never shown");
}

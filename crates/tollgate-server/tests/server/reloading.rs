//! Policies change while the server runs: whole or not at all, and nobody's usage is lost.

use crate::rig::{Folder, Server, get, wait_for};

fn policy(quota: &str, algorithm: &str) -> String {
    format!("[[policy]]\nname = \"p\"\nquota = \"{quota}\"\nalgorithm = \"{algorithm}\"\n")
}

fn check(server: &Server, query: &str) -> (u16, u64) {
    let answer = get(&server.api, &format!("/v1/check?policy=p&{query}"), &[]);
    (answer.status, answer.json()["policies"][0]["remaining"].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn a_raised_limit_applies_at_once_and_keeps_what_was_used() {
    let folder = Folder::new();
    let file = folder.write("p.toml", &policy("5/1h", "gcra"));
    let server = Server::with_file(&file, "");
    assert_eq!(check(&server, "subject=a&cost=5"), (200, 0));
    assert_eq!(check(&server, "subject=a").0, 429);
    for (generation, quota, algorithm, left) in [
        (2.0, "9/1h", "gcra", 4),
        (3.0, "9/1h", "sliding-log", 4),
        (4.0, "7/1m", "fixed-window", 2),
        (5.0, "2/1m", "gcra", 0),
    ] {
        folder.write("p.toml", &policy(quota, algorithm));
        server.signal("-HUP");
        wait_for("the reload", || server.metric("tollgate_config_generation") >= generation);
        assert_eq!(check(&server, "subject=a&cost=0").1, left, "5 used of {quota} by {algorithm}");
    }
}

#[test]
fn a_changed_file_is_noticed_and_a_wrong_one_leaves_the_last_good_in_force() {
    let folder = Folder::new();
    let file = folder.write("p.toml", &policy("5/1h", "gcra"));
    let server = Server::with_file(&file, "");
    check(&server, "subject=a&cost=2");
    folder.write("p.toml", "[[policy]]\nname = \"p\"\nqouta = \"9/1h\"\n");
    wait_for("the failure", || server.metric("tollgate_config_reload_failures_total") >= 1.0);
    assert!(
        server
            .errors
            .lock()
            .unwrap()
            .contains("p.toml:3:1: policy[0].qouta: unknown key; did you mean `quota`?")
    );
    assert_eq!(check(&server, "subject=a&cost=0"), (200, 3));
    assert!(server.metric("tollgate_config_generation") < 2.0);
    folder.write("p.toml", &policy("10/1h", "gcra"));
    wait_for("the reload", || server.metric("tollgate_config_generation") >= 2.0);
    assert_eq!(check(&server, "subject=a&cost=0"), (200, 8));
    std::fs::remove_file(&file).unwrap();
    server.signal("-HUP");
    wait_for("the failure", || server.metric("tollgate_config_reload_failures_total") >= 2.0);
    assert_eq!(check(&server, "subject=a&cost=0"), (200, 8));
}

#[test]
fn a_server_without_a_file_has_nothing_to_reload_and_lives() {
    let server = Server::start(&[]);
    server.signal("-HUP");
    wait_for("the word", || server.errors.lock().unwrap().contains("nothing to reload"));
    assert_eq!(get(&server.admin, "/healthz", &[]).status, 200);
}

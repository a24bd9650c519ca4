//! Counts that outlive the process: killed in the middle of a burst, it has counted whatever it had answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::rig::{Folder, Server, get, post, tollgate, try_get, wait_for};

const POLICY: &str =
    "[store]\nurl = \"sqlite:counts.db\"\n[[policy]]\nname = \"p\"\nquota = \"100000/300d\"\n";

fn remaining(server: &Server, subject: &str) -> u64 {
    let answer = get(&server.api, &format!("/v1/check?policy=p&subject={subject}&cost=0"), &[]);
    answer.json()["policies"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn a_hundred_kills_in_mid_burst_lose_no_admitted_request() {
    let folder = Folder::new();
    let file = folder.write("p.toml", POLICY);
    let admitted = AtomicU64::new(0);
    let kills = if std::env::var_os("TOLLGATE_QUICK").is_some() { 10 } else { 100 };
    for kill in 0..kills {
        let mut server = Server::with_file(&file, "");
        let left = remaining(&server, "x");
        let counted = 100_000 - left;
        let answered = admitted.load(Ordering::Relaxed);
        assert!(counted >= answered, "kill {kill}: {answered} were admitted, {counted} are counted");
        // What was charged but not answered is at most what was under way: four threads at each kill.
        assert!(counted <= answered + 4 * (kill + 1), "kill {kill}: {counted} counted, {answered} answered");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(200) = try_get(&server.api, "/v1/check?policy=p&subject=x") {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            thread::sleep(Duration::from_millis(5 + kill % 7 * 5));
            server.signal("-KILL");
        });
        server.ended();
    }
    assert!(admitted.into_inner() > kills, "something was admitted between the kills");
}

#[test]
fn usage_outlives_a_restart_under_the_rules_of_the_day() {
    let folder = Folder::new();
    let write = |quota: &str, algorithm: &str| {
        let text = format!(
            "[store]\nurl = \"sqlite:counts.db\"\n[[policy]]\nname = \"p\"\nquota = \"{quota}\"\nalgorithm = \"{algorithm}\"\n\
             [[policy]]\nname = \"passing\"\nquota = \"5/1d\"\nplacement = \"local\"\n"
        );
        folder.write("p.toml", &text)
    };
    let run = |quota: &str, algorithm: &str, visit: &dyn Fn(&Server)| {
        let mut server = Server::with_file(&write(quota, algorithm), "");
        visit(&server);
        server.signal("-TERM");
        assert!(server.ended());
    };
    run("10/1d", "gcra", &|server| {
        assert_eq!(get(&server.api, "/v1/check?policy=p&subject=a&cost=4", &[]).status, 200);
        assert_eq!(get(&server.api, "/v1/check?policy=p&subject=b&cost=4", &[]).status, 200);
        assert_eq!(get(&server.api, "/v1/check?policy=passing&subject=a&cost=4", &[]).status, 200);
        assert_eq!(post(&server.admin, "/v1/reset", r#"{"policy": "p", "subject": "b"}"#).status, 200);
    });
    for (quota, algorithm, left) in
        [("10/1d", "gcra", 6), ("20/1d", "sliding-log", 16), ("3/1h", "fixed-window", 0)]
    {
        run(quota, algorithm, &|server| {
            assert_eq!(remaining(server, "a"), left, "{quota} {algorithm}");
            let passing = get(&server.api, "/v1/check?policy=passing&subject=a&cost=0", &[]).json();
            assert_eq!(passing["policies"][0]["remaining"], 5, "a local count begins anew");
        });
    }
    run("10/1d", "gcra", &|server| assert_eq!(remaining(server, "b"), 10, "a reset outlives a restart too"));
    // A reload under a store with a file keeps both.
    run("10/1d", "gcra", &|server| {
        assert_eq!(get(&server.api, "/v1/check?policy=p&subject=c&cost=7", &[]).status, 200);
        write("20/1d", "gcra");
        server.signal("-HUP");
        wait_for("the reload", || server.metric("tollgate_config_generation") >= 2.0);
        assert_eq!(
            get(&server.api, "/v1/check?policy=p&subject=c&cost=1", &[]).json()["policies"][0]["remaining"],
            12
        );
    });
    run("20/1d", "gcra", &|server| assert_eq!(remaining(server, "c"), 12));
}

#[test]
fn a_file_in_use_or_of_another_salt_is_a_clear_error() {
    let folder = Folder::new();
    let file = folder.write("p.toml", POLICY);
    let server = Server::with_file(&file, "");
    let second = tollgate()
        .args(["serve", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another process counts in this file"));
    drop(server);
    let salted = tollgate()
        .args(["serve", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", file.to_str().unwrap()])
        .env("TOLLGATE_SALT", "another salt than before")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&salted.stderr).contains("written under another salt"));
    let (db, text) =
        (folder.0.join("x.db"), "[[policy]]\nname = \"p\"\nquota = \"1/1m\"\nplacement = \"durable\"\n");
    let on_memory = tollgate().arg("check").arg(folder.write("m.toml", text)).output().unwrap();
    assert!(String::from_utf8_lossy(&on_memory.stderr).contains("`durable` needs a file"));
    let url = format!("sqlite:{}", db.display());
    let server = Server::start(&["--store", &url, "--limit", "2/1h"]);
    assert_eq!(get(&server.api, "/v1/check?policy=default&subject=a&cost=2", &[]).status, 200);
    drop(server);
    let server = Server::start(&["--store", &url, "--limit", "2/1h"]);
    assert_eq!(get(&server.api, "/v1/check?policy=default&subject=a", &[]).status, 429);
}

/// A real file system of 300 KiB that fills up: the policy's direction answers, 503 or on, and it recovers by itself.
#[test]
fn a_full_disk_is_answered_by_the_policys_direction() {
    let folder = Folder::new();
    let disk = folder.0.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = |arguments: &[&str]| std::process::Command::new(arguments[0]).args(&arguments[1..]).status();
    let at = disk.to_str().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", at]).is_ok_and(|status| status.success())
    {
        println!("not run: this needs the right to mount a small file system");
        return;
    }
    let text = "[store]\nurl = \"sqlite:disk/counts.db\"\n\
                [[policy]]\nname = \"no\"\nquota = \"9/1d\"\nclass = \"credential\"\n\
                [[policy]]\nname = \"yes\"\nquota = \"9/1d\"\nclass = \"read\"\n";
    let file = folder.write("p.toml", text);
    let salted = std::fs::write(folder.0.join("p.toml.salt"), "a salt of sixteen characters or more");
    salted.unwrap();
    let mut server = Server::with_file(&file, "");
    assert_eq!(get(&server.api, "/v1/check?policy=no&subject=a", &[]).status, 200);
    std::fs::write(disk.join("filler"), vec![0; 1 << 20]).unwrap_err();
    let mut refused = None;
    for subject in 0..2_000 {
        let answer = get(&server.api, &format!("/v1/check?policy=no&subject={subject}"), &[]);
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert_eq!((refused.status, &refused.json()["fallback"]), (503, &true.into()));
    assert!(!refused.header("retry-after").is_empty());
    let admitted = get(&server.api, "/v1/check?policy=yes&subject=a", &[]);
    assert_eq!((admitted.status, &admitted.json()["fallback"]), (200, &true.into()));
    let metrics = get(&server.admin, "/metrics", &[]).body;
    assert!(metrics.contains(r#"tollgate_fallback_total{direction="refuse",policy="no"}"#), "{metrics}");
    assert!(metrics.contains(r#"tollgate_fallback_total{direction="admit",policy="yes"} 1"#), "{metrics}");
    std::fs::remove_file(disk.join("filler")).unwrap();
    let recovered = get(&server.api, "/v1/check?policy=no&subject=again", &[]);
    assert_eq!((recovered.status, &recovered.json()["fallback"]), (200, &false.into()));
    server.signal("-TERM");
    assert!(server.ended());
    assert!(mount(&["umount", at]).is_ok_and(|status| status.success()));
}

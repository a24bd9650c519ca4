//! `/v1/check`: the decision for any program that speaks HTTP.

use serde_json::json;

use crate::rig::{Folder, Server, get, post, send, wait_for};

const POLICIES: &str = r#"
[[policy]]
name = "login"
match = { method = "POST", path = "/login" }
subject = ["header:x-user-id", "address"]
quota = "5/1m burst 5"

[[policy.tier]]
name = "gold"
subjects = ["midas"]
quota = "10/1m"

[[policy]]
name = "small"
match = { path = "/login" }
subject = "const:all"
quota = "2/1m"

[[policy]]
name = "watch"
match = { path = "/login" }
quota = "1/1m"
shadow = true

[[policy]]
name = "strict"
match = { path = "/strict" }
subject = "header:x-key"
quota = "5/1m"
deny = ["203.0.113.0/24", "subject:mallory"]
allow = ["subject:root"]
cost = { header = "x-cost", max = 3 }
"#;

fn server() -> (Server, Folder) {
    let folder = Folder::new();
    let file = folder.write("p.toml", POLICIES);
    (Server::with_file(&file, ""), folder)
}

#[test]
fn a_check_by_name_answers_as_documented() {
    let (server, _folder) = server();
    let check = |body: &str| post(&server.api, "/v1/check", body);
    for left in (0..5).rev() {
        let answer = check(r#"{"policy": "login", "subject": "alice"}"#);
        assert_eq!(answer.status, 200);
        let body = answer.json();
        assert_eq!((&body["decision"], &body["fallback"]), (&"admit".into(), &false.into()));
        assert_eq!(body["policies"][0]["remaining"], left);
    }
    let answer = check(r#"{"policy": "login", "subject": "alice", "cost": 1}"#);
    assert_eq!((answer.status, answer.header("retry-after")), (429, "12"));
    let body = answer.json();
    assert_eq!((&body["decision"], &body["scope"]), (&"refuse".into(), &"login".into()));
    let retry = body["retry_after_ms"].as_u64().unwrap();
    assert!((11_000..=12_000).contains(&retry), "{retry}");
    let standing = &body["policies"][0];
    assert_eq!(
        (&standing["policy"], &standing["limit"], &standing["remaining"]),
        (&"login".into(), &5.into(), &0.into())
    );
    assert!(standing["reset_after_ms"].as_u64().unwrap() > 58_000);
    assert_eq!(standing["retry_after_ms"], retry);
    let quiet = post(&server.api, "/v1/check?status=always200", r#"{"policy": "login", "subject": "alice"}"#);
    assert_eq!((quiet.status, &quiet.json()["decision"]), (200, &"refuse".into()));
}

#[test]
fn a_peek_charges_nothing_and_a_cost_above_the_burst_is_never() {
    let (server, _folder) = server();
    for body in [
        r#"{"policy": "login", "subject": "p", "cost": 0}"#,
        r#"{"policy": "login", "subject": "p", "peek": true}"#,
    ] {
        let answer = post(&server.api, "/v1/check", body);
        assert_eq!((answer.status, &answer.json()["policies"][0]["remaining"]), (200, &5.into()));
    }
    assert_eq!(get(&server.api, "/v1/check?policy=login&subject=p&peek=1", &[]).status, 200);
    let never = post(&server.api, "/v1/check", r#"{"policy": "login", "subject": "p", "cost": 6}"#);
    assert_eq!((never.status, never.header("retry-after")), (429, ""));
    assert_eq!((&never.json()["retry_after_ms"], &never.json()["reason"]), (&json!(null), &"never".into()));
    let all = get(&server.api, "/v1/check?policy=login&subject=p&cost=5", &[]);
    assert_eq!(
        (all.status, &all.json()["policies"][0]["remaining"]),
        (200, &0.into()),
        "nothing was charged before"
    );
}

#[test]
fn tiers_have_their_own_quota() {
    let (server, _folder) = server();
    let answer = post(&server.api, "/v1/check", r#"{"policy": "login", "subject": "midas", "cost": 10}"#);
    assert_eq!((answer.status, &answer.json()["policies"][0]["limit"]), (200, &10.into()));
}

#[test]
fn several_checks_are_admitted_together_or_not_at_all() {
    let (server, _folder) = server();
    let both = |subject: &str| {
        let body = json!({ "checks": [
            { "policy": "login", "subject": subject, "cost": 2 },
            { "policy": "small", "subject": "all" },
        ] });
        post(&server.api, "/v1/check", &body.to_string())
    };
    assert_eq!([both("a").status, both("b").status], [200, 200]);
    let refused = both("c").json();
    assert_eq!((&refused["decision"], &refused["scope"]), (&"refuse".into(), &"small".into()));
    assert_eq!(refused["policies"][0]["decision"], "admit");
    let metrics = get(&server.admin, "/metrics", &[]).body;
    assert!(
        metrics.contains(r#"tollgate_decisions_total{decision="uncharged",policy="login"} 1"#),
        "{metrics}"
    );
    assert!(metrics.contains(r#"tollgate_decisions_total{decision="admit",policy="login"} 2"#), "{metrics}");
    let look = get(&server.api, "/v1/check?policy=login&subject=c&cost=0", &[]).json();
    assert_eq!(look["policies"][0]["remaining"], 5, "the refused demand charged nothing");
}

#[test]
fn attributes_are_matched_and_every_policy_that_fired_is_named() {
    let (server, _folder) = server();
    let body = json!({
        "method": "POST", "host": "example.com", "path": "/login?next=/", "headers": { "X-User-Id": "bob" },
        "address": "2001:db8::1",
    });
    let ask = || post(&server.api, "/v1/check", &body.to_string()).json();
    let first = ask();
    let names: Vec<&str> =
        first["policies"].as_array().unwrap().iter().map(|p| p["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["login", "small"]);
    assert_eq!(
        (&first["shadow"][0]["policy"], &first["shadow"][0]["decision"]),
        (&"watch".into(), &"admit".into())
    );
    let second = ask();
    assert_eq!((&second["decision"], &second["shadow"][0]["decision"]), (&"admit".into(), &"refuse".into()));
    assert_eq!((&ask()["decision"], &ask()["scope"]), (&"refuse".into(), &"small".into()));
    let none = post(&server.api, "/v1/check", r#"{"method": "GET", "path": "/elsewhere"}"#).json();
    assert_eq!((&none["decision"], &none["policies"]), (&"admit".into(), &json!([])));
}

#[test]
fn lists_subjects_and_costs_have_their_own_answers() {
    let (server, _folder) = server();
    let ask = |headers: serde_json::Value, address: &str| {
        let body = json!({ "method": "GET", "path": "/strict", "headers": headers, "address": address });
        post(&server.api, "/v1/check", &body.to_string())
    };
    assert_eq!(ask(json!({}), "192.0.2.1").status, 400, "no subject");
    assert_eq!(ask(json!({ "x-key": "mallory" }), "192.0.2.1").status, 403);
    assert_eq!(ask(json!({ "x-key": "k" }), "203.0.113.9").status, 403);
    assert_eq!(
        ask(json!({ "x-key": "k" }), "::ffff:203.0.113.9").status,
        403,
        "a mapped address is its IPv4 one"
    );
    assert_eq!(ask(json!({ "x-key": "k", "x-cost": "many" }), "192.0.2.1").status, 400);
    assert_eq!(ask(json!({ "x-key": "k", "x-cost": "-1" }), "192.0.2.1").status, 400);
    assert_eq!(
        ask(json!({ "x-key": "k", "x-cost": "0" }), "192.0.2.1").json()["policies"][0]["remaining"],
        4,
        "at least 1"
    );
    assert_eq!(
        ask(json!({ "x-key": "k", "x-cost": "999" }), "192.0.2.1").json()["policies"][0]["remaining"],
        1,
        "at most 3"
    );
    for _ in 0..20 {
        assert_eq!(ask(json!({ "x-key": "root" }), "192.0.2.1").status, 200, "on the allow list");
    }
}

#[test]
fn bad_input_is_a_clear_4xx_and_changes_nothing() {
    let (server, _folder) = server();
    for (body, status, says) in [
        ("", 400, "EOF"),
        ("{", 400, "EOF"),
        ("[]", 400, "expected"),
        (r#"{"polcy": "login"}"#, 400, "unknown field `polcy`"),
        (r#"{"policy": "login"}"#, 400, "no_subject"),
        (r#"{"policy": "login", "subject": ""}"#, 400, "no_subject"),
        (r#"{"policy": "login", "subject": "x", "cost": 1.5}"#, 400, "i64"),
        (r#"{"policy": "login", "subject": "x", "cost": 1e99}"#, 400, ""),
        (r#"{"policy": "login", "subject": "x", "cost": 18446744073709551616}"#, 400, ""),
        (r#"{"policy": "none", "subject": "x"}"#, 404, ""),
        (r#"{"policy": "login", "subject": "x", "path": "/"}"#, 400, "expected either"),
        (r#"{"checks": []}"#, 400, "expected either"),
        (r#"{"checks": [{"policy": "login", "subject": "x"}], "cost": 0}"#, 400, "stand in each of checks"),
        (r#"{"path": "/", "address": "nowhere"}"#, 400, "IP address"),
        (r#"{"path": "/", "headers": {"bad name": "x"}}"#, 400, "is not a header field"),
        (r#"{"path": "/", "cost": 3}"#, 400, "go with policy"),
    ] {
        let answer = post(&server.api, "/v1/check", body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert!(answer.body.contains(says), "{body}: {}", answer.body);
    }
    for (query, says) in [
        ("policy=login&policy=login&subject=x", "stands twice"),
        ("policy=login&subject=u%ff", "not UTF-8"),
        ("policy=login&subject=x&peek=junk", "neither true nor false"),
    ] {
        let answer = get(&server.api, &format!("/v1/check?{query}"), &[]);
        assert!(answer.status == 400 && answer.body.contains(says), "{query}: {}", answer.body);
    }
    let nine: Vec<_> = (0..9).map(|n| json!({ "policy": "login", "subject": n.to_string() })).collect();
    let answer = post(&server.api, "/v1/check", &json!({ "checks": nine }).to_string());
    assert_eq!((answer.status, answer.body.contains("at most 8")), (400, true));
    let huge = format!(r#"{{"policy": "login", "subject": "{}"}}"#, "x".repeat(70_000));
    assert_eq!(post(&server.api, "/v1/check", &huge).status, 413);
    assert_eq!(get(&server.api, "/v1/check?policy=login&subject=x&bogus=1", &[]).status, 400);
    assert_eq!(get(&server.api, "/v1/check?policy=login&subject=x&cost=x", &[]).status, 400);
    assert_eq!(
        post(&server.api, "/v1/check?status=bogus", r#"{"policy": "login", "subject": "x"}"#).status,
        400
    );
    assert_eq!(send("DELETE", &server.api, "/v1/check", &[], "").status, 405);
    assert_eq!(get(&server.api, "/nowhere", &[]).status, 404);
    let look = get(&server.api, "/v1/check?policy=login&subject=x&cost=0", &[]).json();
    assert_eq!(look["policies"][0]["remaining"], 5, "nothing of all this was charged");
}

#[test]
fn every_decision_has_one_line_without_a_subject_in_it() {
    let (server, _folder) = server();
    for _ in 0..6 {
        post(&server.api, "/v1/check", r#"{"policy": "login", "subject": "alice-the-secret"}"#);
    }
    wait_for("six lines", || server.decisions().len() == 6);
    let lines = server.decisions();
    let last = &lines[5];
    assert_eq!(
        (&last["decision"], &last["policy"], &last["door"]),
        (&"refuse".into(), &"login".into(), &"check".into())
    );
    assert_eq!(
        (&last["limit"], &last["remaining"], &last["fallback"]),
        (&5.into(), &0.into(), &false.into())
    );
    assert!(last["retry_after_ms"].as_u64().unwrap() > 11_000 && last["store_us"].as_f64().is_some());
    assert!(last["cell"].as_u64().unwrap() > 0 && last["time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(last["key"].as_str().unwrap().len(), 16);
    assert_eq!(last["key"], lines[0]["key"]);
    let all = server.out.lock().unwrap().clone() + &server.errors.lock().unwrap();
    assert!(!all.contains("alice-the-secret"));
    let metrics = get(&server.admin, "/metrics", &[]).body;
    assert!(metrics.contains(r#"tollgate_decisions_total{decision="admit",policy="login"} 5"#), "{metrics}");
    assert!(metrics.contains(r#"tollgate_decisions_total{decision="refuse",policy="login"} 1"#), "{metrics}");
    assert!(!metrics.contains("alice"));
}

#[test]
fn a_verified_claim_is_a_subject_and_an_unverified_one_is_none() {
    let folder = Folder::new();
    folder.write("secret", "a shared secret of the issuer\n");
    let text = "[jwt]\nkey_file = \"secret\"\nissuer = \"me\"\n[[policy]]\nname = \"u\"\nsubject = \"jwt:sub\"\nquota = \"1/1m\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), "");
    let token = |secret: &str, subject: &str, issuer: &str, expiry: u64| {
        let claims = json!({ "sub": subject, "iss": issuer, "exp": expiry });
        let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let ask = |token: String| {
        let body = json!({ "path": "/", "headers": { "authorization": format!("Bearer {token}") } });
        post(&server.api, "/v1/check", &body.to_string()).status
    };
    let good = "a shared secret of the issuer";
    assert_eq!(
        [ask(token(good, "a", "me", 9_999_999_999)), ask(token(good, "a", "me", 9_999_999_999))],
        [200, 429]
    );
    assert_eq!(ask(token(good, "b", "me", 9_999_999_999)), 200);
    assert_eq!(ask(token("another secret", "c", "me", 9_999_999_999)), 400);
    assert_eq!(ask(token(good, "d", "you", 9_999_999_999)), 400);
    assert_eq!(ask(token(good, "e", "me", 1_000_000_000)), 400, "expired");
    assert_eq!(ask("rubbish".to_owned()), 400);
    let key = jsonwebtoken::EncodingKey::from_secret(good.as_bytes());
    let claims = json!({ "sub": "f", "exp": 9_999_999_999_u64 });
    let anonymous = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    assert_eq!(ask(anonymous), 400, "a token without an issuer is not the issuer's");
    for secret in ["short", "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQ\n-----END PUBLIC KEY-----\n"] {
        folder.write("secret", secret);
        let wrong = crate::rig::tollgate().arg("check").arg(folder.0.join("p.toml")).output().unwrap();
        assert_eq!(wrong.status.code(), Some(1), "{secret} is no shared secret");
    }
}

//! `check`, `explain` and `replay`, as they are typed.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::rig::{Folder, tollgate};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    said(&tollgate().args(arguments).output().unwrap())
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_problem_of_a_file_is_said_at_once_with_its_place() {
    let folder = Folder::new();
    let text = r#"[server]
listen = "nowhere"
upstreem = "http://127.0.0.1:3000"

[store]
url = "mongodb://localhost"

[[policy]]
name = "a b"
quota = "100"

[[policy]]
name = "login"
quota = "5/1m burst 0"
algorithm = "gcrah"
subject = ["heder:x-user", "address"]
match = { path = "login", method = "P T" }
placement = "strict"
class = "credential"
on_unavailable = "refuse"

[[policy]]
name = "login"
quota = "10/1m"
cost = { header = "x-cost" }
allow = ["10.0.0.0/99"]
keys = 0

[[policy]]
name = "claims"
quota = "10/1m burst 3"
algorithm = "fixed-window"
subject = "jwt:sub"

[[policy]]
quota = 5
"#;
    let file = folder.write("p.toml", text);
    let (code, _, errors) = run(&["check", file.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    let at = |place: &str, says: &str| {
        let line =
            errors.lines().find(|line| line.contains(&format!("p.toml:{place}: ")) && line.contains(says));
        assert!(line.is_some(), "{place}: {says} is missing in\n{errors}");
    };
    at("2:10", "server.listen: `nowhere` is no address; expected one such as 127.0.0.1:8080");
    at("3:1", "server.upstreem: unknown key; did you mean `upstream`?");
    at("6:7", "store.url: `mongodb:` begins no store of this version; expected memory:");
    at("9:8", "policy[0].name: `a b` is no name");
    at("10:9", "policy[0].quota: a quota is written LIMIT/WINDOW");
    at("14:9", "policy[1].quota: the burst is 0");
    at("15:13", "policy[1].algorithm: expected gcra, token-bucket");
    at("16:12", "policy[1].subject[0]: `heder:x-user` is no subject");
    at("17:18", "policy[1].match.path: `login` matches no path; begin it with / or *");
    at("17:36", "policy[1].match.method: `P T` is no method");
    at("18:13", "policy[1].placement: `strict` needs a store that instances share");
    at("19:9", "policy[1].class: says what on_unavailable says already");
    at("25:8", "policy[2].cost.max: missing");
    at("26:10", "policy[2].allow[0]: `10.0.0.0/99` is no network");
    at("27:8", "policy[2].keys: expected a whole number from 1 to 4294967296, found 0");
    at("31:9", "policy[3].quota: windows admit their limit at once and have no other burst");
    at("36:9", "policy[4].quota: expected a string, found integer");
    at("35:1", "policy[4].name: missing");
}

#[test]
fn syntax_errors_and_missing_files_are_said_too() {
    let folder = Folder::new();
    let broken = folder.write("b.toml", "[[policy]\nname = 'x'\n");
    let (code, _, errors) = run(&["check", broken.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("b.toml:1:"), "{errors}");
    let empty = folder.write("e.toml", "");
    assert!(run(&["check", empty.to_str().unwrap()]).2.contains("there is no policy"));
    let (code, _, errors) = run(&["check", "/nowhere/at/all"]);
    assert_eq!((code, errors.contains("/nowhere/at/all: No such file")), (Some(2), true));
    let good = folder.write("g.toml", "[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n");
    let (code, out, _) = run(&["check", good.to_str().unwrap()]);
    assert_eq!((code, out.contains("1 policy and no problems")), (Some(0), true));
}

#[test]
fn explain_says_the_promise_and_what_a_request_would_meet() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tollgate.toml");
    let (code, out, errors) = run(&["explain", example]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for says in [
        "policy login: 5/1m burst 5 by gcra per header:x-user-id, else address",
        "in any interval of t at most 5 + 5 x t/1m units are admitted",
        "in any 1m: at most 10",
        "N instances admit up to N times this",
        "gold for 2 subjects: 100/1s burst 500",
        "policy global (shadow: it only watches)",
        "All",
        "all admit and are charged",
    ] {
        assert!(out.to_lowercase().contains(&says.to_lowercase()), "{says} is missing in {out}");
    }
    let (_, out, _) = run(&["explain", example, "POST", "https://x.org/login?a=b", "-H", "X-User-Id: alice"]);
    assert!(out.contains("meets login: subject `alice` from header:x-user-id"), "{out}");
    assert!(out.contains("meets site: subject `192.0.2.1` from address"), "{out}");
    assert!(out.contains("admitted, status 200") && out.contains("\"login\";r=4;t=12"), "{out}");
    let (_, out, _) = run(&["explain", example, "/", "--address", "203.0.113.7"]);
    assert!(out.contains("refused, status 403 (blocked)"), "{out}");
    let (_, out, _) = run(&["explain", example, "/api/x", "-H", "x-api-key: key-of-acme"]);
    assert!(
        out.contains(
            "meets api: subject `key-of-acme` from header:x-api-key; in any interval of t at most 500"
        ),
        "{out}"
    );
    let (code, _, errors) = run(&["explain", example, "/", "-H", "nonsense"]);
    assert_eq!((code, errors.contains("expected NAME: VALUE")), (Some(1), true));
}

const POLICIES: &str = "[[policy]]\nname = \"p\"\nquota = \"2/1m\"\n";

fn log_line(client: &str, second: u64) -> String {
    format!("{client} - - [17/May/2015:10:05:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n")
}

#[test]
fn replay_takes_requests_in_order_of_time_from_plain_packed_and_piped_logs() {
    let folder = Folder::new();
    let policies = folder.write("p.toml", POLICIES);
    // Out of order by seconds; taken as written, the third of 192.0.2.1 would be another one.
    let lines: String =
        [("192.0.2.1", 9), ("192.0.2.1", 3), ("2001:db8::7", 5), ("192.0.2.1", 59), ("2001:db8::8", 4)]
            .map(|(client, second)| log_line(client, second))
            .concat();
    let text = format!("{lines}broken line\n\n");
    let plain = folder.write("a.log", &text);
    let packed = folder.0.join("a.log.gz");
    let mut gz =
        flate2::write::GzEncoder::new(std::fs::File::create(&packed).unwrap(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    gz.finish().unwrap();
    let replay = |log: &str| {
        let mut child = tollgate()
            .args(["replay", policies.to_str().unwrap(), log, "--format", "json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _unread = input.write_all(text.as_bytes());
        drop(input);
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    let bytes = std::fs::read(&packed).unwrap();
    let cut = folder.0.join("cut.log.gz");
    std::fs::write(&cut, &bytes[..bytes.len() - 6]).unwrap();
    assert_eq!(
        replay(cut.to_str().unwrap())["totals"]["requests"],
        5,
        "a log that breaks off tells what it tells"
    );
    for log in [plain.to_str().unwrap(), packed.to_str().unwrap(), "-"] {
        let report = replay(log);
        let policy = &report["policies"][0];
        // 3 s, 9 s: two spent; 59 s: 56 s after the first, 30 s give one back, so it is admitted. The /64 is one subject.
        assert_eq!((&policy["policy"], &policy["requests"]), (&"p".into(), &5.into()), "{log}");
        assert_eq!((&policy["admitted"], &policy["refused"]), (&5.into(), &0.into()), "{log}");
        assert_eq!((&policy["subjects"], &policy["subjects_refused"]), (&2.into(), &0.into()), "{log}");
        assert_eq!(
            (&report["totals"]["requests"], &report["totals"]["broken_lines"]),
            (&5.into(), &1.into()),
            "{log}"
        );
    }
}

#[test]
fn replay_sees_clients_behind_trusted_proxies_and_says_who_was_not_charged() {
    let folder = Folder::new();
    let policies = folder.write(
        "p.toml",
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n[[policy]]\nname = \"client\"\nquota = \"2/1h\"\n\
         [[policy]]\nname = \"all\"\nsubject = \"const:all\"\nquota = \"3/1h\"\n",
    );
    let line = |client: &str| {
        format!(
            "{{\"ts\":1431857103,\"remote_addr\":\"10.0.0.1\",\"request\":\"GET / HTTP/1.1\",\"http_x_forwarded_for\":\"{client}\"}}\n"
        )
    };
    let text: String = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.1"].map(line).concat();
    let log = folder.write("a.log", &text);
    let (code, out, _) =
        run(&["replay", policies.to_str().unwrap(), log.to_str().unwrap(), "--format", "json"]);
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let [client, all] = [&report["policies"][0], &report["policies"][1]];
    assert_eq!(
        (&client["subjects"], &client["admitted"], &client["refused"]),
        (&4.into(), &3.into(), &0.into())
    );
    assert_eq!((&client["uncharged"], &all["refused"]), (&2.into(), &2.into()));
}

#[test]
fn replay_goes_by_the_responses_that_were_logged() {
    let folder = Folder::new();
    let policies = folder.write(
        "p.toml",
        "[[policy]]\nname = \"failed\"\nquota = \"5/1h\"\nresponse = { status = \"401\" }\n\
         [[policy]]\nname = \"bytes\"\nquota = \"1000/1h\"\nresponse = { cost = { size = \"1KiB\", max = 100 } }\n",
    );
    let line = |status: u16| log_line("192.0.2.1", 3).replace(" 200 ", &format!(" {status} "));
    let text: String = [200, 401].iter().flat_map(|status| (0..20).map(|_| line(*status))).collect();
    assert!(text.contains(" 401 "), "{text}");
    let log = folder.write("a.log", &text);
    let (_, out, _) = run(&["replay", policies.to_str().unwrap(), log.to_str().unwrap(), "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&report["policies"][0]["admitted"], &report["policies"][0]["refused"]),
        (&25.into(), &15.into())
    );
    assert_eq!(report["policies"][1]["refused"], 0);
}

#[test]
fn replay_of_the_sample_reports_as_text_json_and_a_page() {
    let folder = Folder::new();
    let policies = folder.write("p.toml", POLICIES);
    let mut text = String::new();
    for second in 0..30 {
        text += &log_line("192.0.2.1", second);
        text += &log_line("<script>alert(1)</script>", second);
    }
    let log = folder.write("a.log", &text);
    let (policies, log) = (policies.to_str().unwrap(), log.to_str().unwrap());
    let (code, out, _) = run(&["replay", policies, log]);
    assert_eq!(code, Some(0));
    assert!(out.contains("60 requests") && out.contains("30 requests were refused without a count"), "{out}");
    assert!(out.contains("30: 2 admitted, 28 refused") && out.contains("192.0.2.1"), "{out}");
    let page = folder.0.join("page.html");
    let (code, _, _) =
        run(&["replay", policies, log, "--format", "html", "--output", page.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("192.0.2.1") && page.ends_with("</html>\n"));
    assert!(
        !page.contains("<script") && !page.contains("http://") && !page.contains("https://"),
        "it needs nothing else"
    );
    let (code, _, errors) = run(&["replay", policies, "/nowhere"]);
    assert_eq!((code, errors.contains("/nowhere")), (Some(2), true));
}

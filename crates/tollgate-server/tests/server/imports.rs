//! `tollgate import`, on configurations in the style of the ones that people publish, and against the programs themselves.

use std::path::{Path, PathBuf};

use tollgate::{Asked, Clock, Descriptor, Limiter, PolicySet, SECOND, Salt, Stated};

use crate::rig::{Folder, Nginx, Server, get, mirror, tollgate};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/imports").join(name)
}

/// The policies, and what was said about the rest.
fn import(kind: &str, file: &Path) -> (String, String) {
    let output = tollgate().args(["import", kind]).arg(file).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn limiter(text: &str) -> (Limiter, Clock) {
    let clock = Clock::manual(1_800_057_600 * SECOND);
    let set = PolicySet::from_toml(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    (Limiter::new(set, Salt::random(), clock.clone()), clock)
}

/// How many of so many equal descriptors are admitted at once.
fn admitted(limiter: &Limiter, domain: &str, entries: &[(&str, &str)], asked: usize) -> usize {
    let ask = || {
        let descriptor = Descriptor { domain, entries, cost: None, rule: Stated::Nothing };
        pollster(limiter.decide_all(&[Asked::Descriptor(descriptor)])).is_admit()
    };
    (0..asked).filter(|_| ask()).count()
}

fn pollster<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Whether every one of these stands in a text.
fn says(text: &str, all: &[&str]) {
    for one in all {
        assert!(text.contains(one), "`{one}` is missing in:\n{text}");
    }
}

#[test]
fn a_tree_of_descriptors_limits_as_it_did() {
    let (policies, said) = import("envoy", &fixture("messages.yaml"));
    assert!(said.contains("4 policies, 0 notes"), "{said}");
    let (limiter, clock) = limiter(&policies);
    let at_once = |entries: &[(&str, &str)]| admitted(&limiter, "messages", entries, 150);
    assert_eq!(at_once(&[("kind", "advertising"), ("number", "1")]), 5);
    assert_eq!(at_once(&[("kind", "advertising"), ("number", "2")]), 5, "each number");
    assert_eq!(at_once(&[("number", "1")]), 100);
    assert_eq!(at_once(&[("kind", "news")]), 30);
    assert_eq!(at_once(&[("kind", "advertising")]), 150, "a branch that has no limit here is none");
    assert_eq!(at_once(&[("kind", "news"), ("number", "1")]), 150, "no such branch");
    clock.set(clock.now() + 86_400 * SECOND);
    assert_eq!(at_once(&[("kind", "advertising"), ("number", "1")]), 5, "another day");
}

#[test]
fn zero_unlimited_wildcards_shared_and_shadowed_limits_are_carried_over_and_the_rest_is_listed() {
    let (policies, said) = import("envoy", &fixture("proxy.yaml"));
    let (limiter, _) = limiter(&policies);
    let at_once = |entries: &[(&str, &str)]| admitted(&limiter, "edge", entries, 50);
    assert_eq!(at_once(&[("remote_address", "192.0.2.1")]), 10);
    assert_eq!(at_once(&[("remote_address", "203.0.113.5")]), 0);
    assert_eq!(at_once(&[("remote_address", "198.51.100.7")]), 50);
    assert_eq!(at_once(&[("path", "/files/a")]), 4);
    assert_eq!(at_once(&[("path", "/files/b")]), 0, "they share");
    assert_eq!(at_once(&[("path", "/")]), 20);
    assert_eq!(at_once(&[("service", "auth"), ("user", "tester")]), 50, "only watched");
    assert_eq!(at_once(&[("service", "auth"), ("user", "other")]), 20);
    assert_eq!(at_once(&[("health", "x")]), 50);
    says(
        &said,
        &[
            "proxy.yaml:12: a limit of 0 becomes a deny list",
            "`detailed_metric` is left out",
            "`replaces` is left out",
            "`quota_mode` is left out",
        ],
    );
    for line in said.lines().filter(|line| line.contains("proxy.yaml:")) {
        let note = line.split_once("proxy.yaml:").unwrap().1;
        assert!(policies.contains(&format!("#   line {note}")), "{line} is in the file too");
    }
}

#[test]
fn zones_become_policies_and_what_has_no_counterpart_is_listed() {
    let (policies, said) = import("nginx", &fixture("limits.conf"));
    let (limiter, _) = limiter(&policies);
    drop(limiter);
    says(
        &policies,
        &[
            "name = \"login\"\nmatch = { host = [\"example.com\", \"www.example.com\"], path = \"/login\" }\n\
             subject = \"address\"\nquota = \"2/1m burst 6\"\nkeys = 163840\n",
            "name = \"pages\"\nmatch = { host = [\"example.com\", \"www.example.com\"] }\n\
             subject = \"address\"\nquota = \"5/1s burst 9 queue 12\"\nalgorithm = \"leaky-queue\"\n",
            "name = \"api\"\nmatch = { host = \"api.example.com\" }\nsubject = \"header:x-api-key\"\n\
             quota = \"10/1s burst 51\"\nmissing = \"skip\"\nkeys = 16384\nshadow = true\n",
            "path = \"**.zip\"",
            "allow = [\"192.0.2.0/24\", \"2001:db8::/32\"]",
        ],
    );
    says(
        &said,
        &[
            "`include mime.types` is not followed",
            "zone `perserver` counts by $server_name",
            "zone `each` counts by $binary_remote_addr$request_uri",
            "zone `unused` is not used",
            "refusals are 429 here, not 444",
            "limit_req_log_level is left out",
            "limit_conn is left out",
            "limit_conn_zone is left out",
            "location ~ ^/(a|b)/: a regular expression is no pattern",
            "zone `pages` counts requests for example.com www.example.com/login too",
            "zone `pages` counts requests for example.com www.example.com**.zip too",
            "cut to their /64",
        ],
    );
}

#[test]
fn what_is_no_such_configuration_is_an_error_with_its_line() {
    let folder = Folder::new();
    for (kind, text, expected) in [
        ("envoy", "domain: [", "w:"),
        ("envoy", "a: b", "no `domain`"),
        ("envoy", "domain: d\ndescriptors:\n  - value: x\n", "w:3: a descriptor has a `key`"),
        (
            "envoy",
            "domain: d\ndescriptors:\n  - key: x\n    rate_limit: { unit: era, requests_per_unit: 1 }\n",
            "`era` is no unit",
        ),
        (
            "envoy",
            "domain: d\ndescriptors:\n  - key: x\n    rate_limit: { unit: day, requests_per_unit: many }\n",
            "w:4: expected `requests_per_unit`",
        ),
        (
            "nginx",
            "http {\n  limit_req_zone $binary_remote_addr zone=a rate=1r/s;\n}",
            "w:2: limit_req_zone: expected zone",
        ),
        ("nginx", "http {\n limit_req_zone $a zone=a:1m rate=0r/s;\n}", "the limit is 0"),
        ("nginx", "http {", "w:1: `http` has no end"),
        ("envoy", "domain: tollgate\ndescriptors: []\n", "a meaning of its own"),
    ] {
        let file = folder.write("w", text);
        let output = tollgate().args(["import", kind]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{text}: {said}");
    }
    let missing = tollgate().args(["import", "envoy", "/nowhere"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn what_would_be_limited_otherwise_or_not_at_all_is_listed_too() {
    let folder = Folder::new();
    let zone =
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s; limit_req_zone $key zone=b:1m rate=1r/s;\n";
    for (text, policies, notes) in [
        ("server { server_name a.x; server_name b.x; limit_req zone=a; }", "host = [\"a.x\", \"b.x\"]", ""),
        ("server { listen 1; location ~* \\.php$ { limit_req zone=a; } }", "", "tells upper from lower case"),
        (
            "geo $g { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; } map $g $key { 0 \"\"; 1 $binary_remote_addr; }\n\
             server { listen 1; limit_req zone=b; }",
            "",
            "zone `b` counts by $key, which no subject is",
        ),
        (
            "limit_req zone=a burst=5; server { server_name api.x; limit_req zone=a burst=9; }",
            "burst 1 queue 9",
            "zone `a` counts requests for api.x too",
        ),
        (
            "server { server_name s.x; location / { limit_req zone=a; } location /static/ { } }",
            "host = \"s.x\"",
            "counts requests for s.x/static/** too",
        ),
        (
            "server { server_name s.x; location / { limit_req zone=a; } location ~* \\.(png|jpg)$ { expires 30d; } }",
            "host = \"s.x\"",
            "counts requests for s.x (location ~* \\.(png|jpg)$) too",
        ),
        (
            "server { server_name s.x; location /files/ { limit_req zone=a; } location ~ \\.zip$ { } }",
            "path = \"/files/**\"",
            "counts requests for s.x**.zip too",
        ),
        (
            "server { server_name s.x; limit_req zone=a; location /x { limit_req_dry_run on; } }",
            "path = \"/x**\" }\nsubject = \"address\"\nquota = \"1/1s burst 1\"\nkeys = 16384\nshadow = true",
            "counts requests for s.x/x** too",
        ),
    ] {
        let (written, said) = import("nginx", &folder.write("n.conf", &format!("http {{\n{zone}{text}\n}}")));
        assert!(written.contains(policies) && said.contains(notes), "{text}\n{written}\n{said}");
    }
    let yaml = "domain: d\ndescriptors:\n  - { key: a, value: x*, rate_limit: { unit: second, requests_per_unit: 1 } }\n  \
                - { key: a, value: xy*, rate_limit: { unit: second, requests_per_unit: 9 } }\n  \
                - { key: b, value: 007, shadow_mode: yes, rate_limit: { unit: second, requests_per_unit: 1 } }\n  \
                - { key: c, rate_limit: { unit: second, requests_per_unit: 4294967295 } }\n";
    let (written, said) = import("envoy", &folder.write("e.yaml", yaml));
    says(&written, &["descriptor = \"b=007\"", "shadow = true", "subject = \"const:unlimited\""]);
    let merged = "domain: d\ndescriptors:\n  - &first\n    key: a\n    rate_limit: &limit { unit: minute, requests_per_unit: 10 }\n  \
                  - <<: *first\n    key: b\n  - key: c\n    rate_limit: { <<: *limit, requests_per_unit: 7 }\n";
    let (merged, _) = import("envoy", &folder.write("m.yaml", merged));
    says(&merged, &["descriptor = \"b\" }\nquota = \"10/1m\"", "descriptor = \"c\" }\nquota = \"7/1m\""]);
    says(&said, &["`a=xy*` is left out", "4294967295/1s is more than can be counted"]);
    limiter(&written);
}

/// How many of twelve requests at once nginx lets through by its own limits, and Tollgate by those that were imported.
#[test]
fn nginx_and_what_was_imported_from_it_admit_the_same() {
    for (limit, at_once) in
        [("", 1), ("burst=5 nodelay", 6), ("burst=5 delay=5", 6), ("burst=11 nodelay", 12)]
    {
        let zone = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;";
        let place = format!("limit_req zone=z {limit}; limit_req_status 429;");
        let nginx = Nginx::with(zone, &place);
        let address = nginx.url.strip_prefix("http://").unwrap();
        let folder = Folder::new();
        let file = folder.write("n.conf", &format!("http {{ {zone} server {{ listen 80; {place} }} }}"));
        let (policies, _) = import("nginx", &file);
        let server = Server::with_file(&folder.write("p.toml", &policies), &mirror());
        let admitted = |address: &str| (0..12).filter(|_| get(address, "/", &[]).status == 200).count();
        assert_eq!(admitted(address), at_once, "nginx: {limit}");
        assert_eq!(admitted(&server.gateway), at_once, "imported: {limit}");
    }
}

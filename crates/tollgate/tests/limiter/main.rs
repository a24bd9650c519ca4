//! What a library user relies on, on a manual clock.

mod afterwards;
mod asked;
mod manners;
mod reload;

use std::time::Duration;

use http::HeaderMap;
use tollgate::contract::Contract;
use tollgate::{
    Answer, Capacity, Check, Clock, Decision, Demand, Direction, InProcess, Limiter, Memory, Placement,
    PolicySet, Quota, Reason, Request, Ruling, SECOND, Salt, Store, Unanswered, WhenFull,
};

const START: u64 = 1_800_057_600 * SECOND;

fn limiter(text: &str) -> (Limiter, Clock) {
    let clock = Clock::manual(START);
    let set = PolicySet::from_toml(text).unwrap_or_else(|problems| panic!("{problems}"));
    (Limiter::new(set, Salt::random(), clock.clone()), clock)
}

fn decide(limiter: &Limiter, path: &str, user: &str) -> Ruling {
    let mut headers = HeaderMap::new();
    if !user.is_empty() {
        headers.insert("x-user", user.parse().unwrap());
    }
    let request = Request {
        method: "GET",
        host: "example.com",
        path,
        query: None,
        headers: &headers,
        address: Some([192, 0, 2, 1].into()),
        size: Some(2_500),
    };
    pollster::block_on(limiter.decide(&request))
}

fn check(limiter: &Limiter, policy: &str, subject: &str, cost: i64) -> Ruling {
    pollster::block_on(limiter.decide_checks(&[Check { policy, subject, cost: Some(cost) }]))
}

fn remaining(limiter: &Limiter, policy: &str, subject: &str) -> u64 {
    check(limiter, policy, subject, 0).parts().next().unwrap().1.outcome.remaining
}

#[test]
fn a_quota_a_key_and_a_check_are_all_it_takes() {
    let quota = Quota::per_minute(100).burst(20).unwrap();
    let limiter = Limiter::in_process(quota, Capacity::keys(1_000).when_full(WhenFull::Refuse));
    let at = |now| limiter.check_at("alice", 1, now);
    for left in (0..20).rev() {
        let Decision::Admit(standing) = at(START) else { panic!("within the burst") };
        assert_eq!((standing.limit, standing.remaining), (20, left));
    }
    let Decision::Refuse(refusal) = at(START) else { panic!("beyond the burst") };
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(600)));
    assert!(!refusal.unavailable);
    assert!(!at(START + 599_999_999).is_admit() && at(START + 600_000_000).is_admit());
    let Decision::Refuse(never) = limiter.check_at("alice", 21, START) else { panic!("above the capacity") };
    assert_eq!(never.retry_after, None);
    assert!(limiter.check("bob").is_admit() && limiter.peek("bob").is_admit());
}

#[test]
fn policies_that_a_request_meets_are_charged_together_or_not_at_all() {
    let (limiter, _) = limiter(
        r#"
        [[policy]]
        name = "user"
        subject = "header:x-user"
        missing = "skip"
        quota = "3/1m"
        [[policy]]
        name = "all"
        subject = "const:all"
        quota = "5/1m"
        "#,
    );
    for _ in 0..3 {
        assert!(decide(&limiter, "/", "a").is_admit());
    }
    let refused = decide(&limiter, "/", "a");
    assert_eq!((refused.reason, refused.scope().unwrap().name.as_str()), (Reason::Throttled, "user"));
    assert_eq!(remaining(&limiter, "all", "all"), 2);
    assert!(decide(&limiter, "/", "").is_admit(), "without a user the policy is skipped");
    assert!(decide(&limiter, "/", "b").is_admit());
    let both = decide(&limiter, "/", "a");
    let violated: Vec<&str> = both.violated().map(|policy| policy.name.as_str()).collect();
    assert_eq!(violated, ["user", "all"]);
    assert_eq!(both.scope().unwrap().name, "user", "the one with the longest wait: 20 s against 12 s");
    assert_eq!(both.retry_after(), Some(20 * SECOND));
    assert_eq!(remaining(&limiter, "user", "b"), 2);
}

#[test]
fn a_shadow_policy_watches_and_never_refuses() {
    let (limiter, _) = limiter(
        r#"
        [[policy]]
        name = "seen"
        quota = "1/1m"
        shadow = true
        deny = ["192.0.2.0/24"]
        [[policy]]
        name = "watch"
        quota = "1/1m"
        shadow = true
        "#,
    );
    for round in 0..3 {
        let ruling = decide(&limiter, "/", "");
        assert!(ruling.is_admit());
        let watched: Vec<(&str, bool)> =
            ruling.shadows().map(|(p, part)| (p.name.as_str(), part.outcome.verdict.is_admit())).collect();
        assert_eq!(watched, [("watch", round == 0)]);
    }
}

#[test]
fn more_policies_than_one_demand_can_hold_are_not_passed_over_in_silence() {
    let text: String = (0..9)
        .map(|n| format!("[[policy]]\nname = \"p{n}\"\nquota = \"1/1m\"\nmatch = {{ path = \"/**\" }}\n"))
        .collect();
    let (limiter, _) = limiter(&text);
    assert_eq!(decide(&limiter, "/", "").reason, Reason::Unavailable);
    let everywhere = text.replace("match = { path = \"/**\" }", "");
    assert!(
        PolicySet::from_toml(&everywhere)
            .unwrap_err()
            .to_string()
            .contains("at most 8 keys can be charged by one request")
    );
}

#[test]
fn a_cost_by_size_counts_started_pieces() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"p\"\nquota = \"10/1m\"\ncost = { size = \"1KB\", max = 4 }\nsubject = \"const:all\"\n",
    );
    assert!(decide(&limiter, "/", "").is_admit());
    assert_eq!(remaining(&limiter, "p", "all"), 7, "2,500 bytes are three started kilobytes");
}

#[test]
fn who_says_two_things_is_not_let_off() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"p\"\nsubject = [\"header:x-user\", \"query:key\", \"cookie:sid\"]\nmissing = \"skip\"\nquota = \"1/1m\"\n\
         deny = [\"subject:mallory\"]\n",
    );
    let ask = |lines: &[(&str, &str)], query: Option<&str>| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let request = Request {
            method: "GET",
            host: "",
            path: "/",
            query,
            headers: &headers,
            address: None,
            size: None,
        };
        pollster::block_on(limiter.decide(&request)).reason
    };
    assert_eq!(ask(&[], None), Reason::Admitted, "nobody is skipped");
    assert_eq!(ask(&[("x-user", "mallory")], None), Reason::Blocked);
    assert_eq!(ask(&[("x-user", "a"), ("x-user", "mallory")], None), Reason::NoSubject);
    assert_eq!(ask(&[("x-user", &"x".repeat(5_000))], None), Reason::NoSubject);
    assert_eq!(ask(&[], Some("key=1&key=2")), Reason::NoSubject);
    assert_eq!(ask(&[("cookie", "sid=1; sid=2")], None), Reason::NoSubject);
    assert_eq!(
        [ask(&[], Some("key=a+b")), ask(&[], Some("key=a%20b"))],
        [Reason::Admitted, Reason::Throttled]
    );
}

#[test]
fn other_spellings_of_a_request_meet_the_same_policy() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"p\"\nmatch = { method = \"POST\", host = \"example.com\", path = [\"/api/login\", \"/caf%C3%A9/\"] }\n\
         subject = \"const:all\"\nquota = \"1/1m\"\n",
    );
    let headers = HeaderMap::new();
    let meets = |method, host, path| {
        let request =
            Request { method, host, path, query: None, headers: &headers, address: None, size: None };
        pollster::block_on(limiter.look(&request)).parts().count() == 1
    };
    assert!(meets("POST", "example.com", "/api/login") && meets("post", "EXAMPLE.com.:443", "/api/login/"));
    for path in [
        "/api%2Flogin",
        "/api%2flogin",
        "/api/login;jsessionid=1",
        "/x/..;/api/login",
        "//api/./login",
        "/api/%6Cogin",
        "/caf%c3%a9",
    ] {
        assert!(meets("POST", "u@example.com", path), "{path}");
    }
    assert!(!meets("GET", "example.com", "/api/login") && !meets("POST", "example.org", "/api/login"));
    assert!(!meets("POST", "example.com", "/api/login2"));
}

#[test]
fn a_tier_publishes_its_own_window() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n[[policy.tier]]\nname = \"t\"\nsubjects = [\"slow\"]\nquota = \"5/1h\"\n",
    );
    let mut headers = HeaderMap::new();
    Contract::default().write(&check(&limiter, "p", "slow", 1), &mut headers);
    assert_eq!(headers["ratelimit-policy"], "\"p\";q=5;w=3600");
}

/// A store that is always out of reach.
struct Away(Memory);

impl Store for Away {
    async fn decide(&self, _: &Demand<'_>, _: u64) -> Result<Answer, Unanswered> {
        Err(Unanswered::Unavailable)
    }
}

impl InProcess for Away {
    fn memory(&self) -> &Memory {
        &self.0
    }

    fn over(&self, memory: Memory, _: &[Option<&str>]) -> Self {
        Away(memory)
    }
}

#[test]
fn only_policies_whose_count_is_out_of_reach_say_what_happens_then() {
    let decided = |placements: &[(Placement, Direction)]| {
        let rule = tollgate::Rule::gcra("5/1m".parse().unwrap());
        let policies = placements.iter().zip('a'..).map(|((placement, direction), name)| tollgate::Policy {
            placement: *placement,
            on_unavailable: *direction,
            ..tollgate::Policy::named(&name.to_string(), rule)
        });
        let set = PolicySet { policies: policies.collect(), ..PolicySet::default() };
        let limiter =
            Limiter::with_store(set, Salt::random(), Clock::manual(START), |_, memory| Away(memory));
        let checks: Vec<String> = ('a'..).take(placements.len()).map(String::from).collect();
        let checks: Vec<Check<'_>> =
            checks.iter().map(|policy| Check { policy, subject: "x", cost: None }).collect();
        let ruling = pollster::block_on(limiter.decide_checks(&checks));
        (ruling.reason, ruling.fallback)
    };
    let (local, kept) = (Placement::Local, Placement::Durable);
    let (refuse, admit) = (Direction::Refuse, Direction::Admit);
    assert_eq!(decided(&[(kept, refuse)]), (Reason::Unavailable, Some(refuse)));
    assert_eq!(decided(&[(kept, admit)]), (Reason::Admitted, Some(admit)));
    assert_eq!(decided(&[(kept, admit), (kept, refuse)]), (Reason::Unavailable, Some(refuse)));
    assert_eq!(decided(&[(local, refuse), (kept, admit)]), (Reason::Admitted, Some(admit)));
}

#[test]
fn headers_say_what_was_decided_and_never_promise_early() {
    let (limiter, clock) = limiter(
        "[[policy]]\nname = \"burst\"\nquota = \"10/1s burst 2\"\nsubject = \"const:a\"\n\
         [[policy]]\nname = \"daily\"\nquota = \"1000/1d\"\nsubject = \"const:a\"\nalgorithm = \"fixed-window\"\n",
    );
    let headers = |contract: Contract, ruling: &Ruling| {
        let mut headers = HeaderMap::new();
        contract.write(ruling, &mut headers);
        let all = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        all.collect::<Vec<_>>()
    };
    let first = decide(&limiter, "/", "");
    assert_eq!(
        headers(Contract::default(), &first),
        [
            "ratelimit-policy: \"burst\";q=2;w=1,\"daily\";q=1000;w=86400",
            "ratelimit: \"burst\";r=1;t=1,\"daily\";r=999;t=86400",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 1",
        ]
    );
    decide(&limiter, "/", "");
    let refused = decide(&limiter, "/", "");
    let epoch = Contract { draft: false, epoch_reset: true, ..Contract::default() };
    assert_eq!(
        headers(epoch, &refused),
        [
            "retry-after: 1",
            "cache-control: no-store",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START / SECOND + 1),
        ]
    );
    clock.set(START + SECOND);
    let jitter = Contract { retry_jitter: 30 * SECOND, ..Contract::default() };
    decide(&limiter, "/", "");
    decide(&limiter, "/", "");
    let waits: Vec<u64> = (0..50)
        .map(|n| {
            clock.set(START + SECOND + n);
            jitter.retry_after(&decide(&limiter, "/", "")).unwrap()
        })
        .collect();
    assert!(waits.iter().all(|wait| (1..=31).contains(wait)), "{waits:?}");
    assert!(waits.iter().max() > waits.iter().min(), "it spreads: {waits:?}");
}

#[test]
fn a_file_that_is_wrong_says_everything_that_is() {
    let problems =
        PolicySet::from_toml("[[policy]]\nname = \"p\"\nquota = \"1/1m\"\nshaddow = true\nkeys = \"many\"\n")
            .unwrap_err();
    let text = problems.to_string();
    assert!(text.contains("policy:4:1: policy[0].shaddow: unknown key; did you mean `shadow`?"), "{text}");
    assert!(text.contains("policy:5:8: policy[0].keys: expected a whole number, found string"), "{text}");
    assert!(Limiter::from_toml("").is_err());
    for (wrong, says) in [
        ("quota = \"5/1m\"\ncost = 0\n", "from 1 to"),
        ("quota = \"5/1m\"\nmatch = { path = [] }\n", "an empty list matches nothing"),
        ("quota = \"5/1m\"\nkeys = 4000000000\n", "the tables take over 64 GiB"),
        (
            "quota = \"5/1m\"\ncost = 4\n[[policy.tier]]\nname = \"t\"\nsubjects = [\"a\"]\nquota = \"3/1m\"\n",
            "more than this tier ever gives",
        ),
        (
            "quota = \"5/1m\"\nalgorithm = \"sliding-log\"\n[[policy.tier]]\nname = \"t\"\nsubjects = [\"a\"]\nquota = \"5/1h\"\n",
            "have its window, 1m",
        ),
        (
            "quota = \"5/1m\"\n[[policy.tier]]\nname = \"t\"\nsubjects = [\"a\", \"a\"]\nquota = \"9/1h\"\n",
            "`a` is listed before",
        ),
    ] {
        let problems = PolicySet::from_toml(&format!("[[policy]]\nname = \"p\"\n{wrong}"))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(problems.contains(says), "{wrong}: {problems}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(\\[\\[policy\\]\\]\n)?((name|quota|match|cost|keys|subject|tier) = .{0,20}\n){0,6}") {
        let _ = PolicySet::from_toml(&text);
    }
}

/// Asked without awaiting, a count that is shared cannot be had: that is said, and not made up for by one of this process.
#[test]
fn a_check_that_cannot_await_does_not_stand_in_for_a_shared_count() {
    let (limiter, _) = limiter("[[policy]]\nname = \"p\"\nquota = \"5/1m\"\nplacement = \"strict\"\n");
    for _ in 0..3 {
        let Decision::Refuse(refusal) = limiter.check("alice") else { panic!("admitted") };
        assert!(refusal.unavailable && refusal.retry_after.is_none());
    }
    let (limiter, _) = self::limiter("[[policy]]\nname = \"p\"\nquota = \"5/1m\"\nplacement = \"divided\"\n");
    assert!(limiter.check("alice").is_admit());
}

//! What a library user relies on, on a manual clock.

use std::time::Duration;

use http::HeaderMap;
use tollgate::contract::Contract;
use tollgate::{
    Capacity, Check, Clock, Decision, Limiter, PolicySet, Quota, Reason, Request, Ruling, SECOND, Salt,
    WhenFull,
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

fn check(limiter: &Limiter, policy: &str, subject: &str, cost: u64) -> Ruling {
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
    let text: String = (0..9).map(|n| format!("[[policy]]\nname = \"p{n}\"\nquota = \"1/1m\"\n")).collect();
    let (limiter, _) = limiter(&text);
    assert_eq!(decide(&limiter, "/", "").reason, Reason::Unavailable);
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
fn tiers_keep_their_own_usage_through_a_reload() {
    let text = |usual: &str, gold: &str, subjects: &str| {
        format!(
            "[[policy]]\nname = \"p\"\nquota = \"{usual}\"\n[[policy.tier]]\nname = \"gold\"\nsubjects = {subjects}\nquota = \"{gold}\"\n"
        )
    };
    let (limiter, _) = limiter(&text("4/1h", "40/1h", r#"["midas", "croesus"]"#));
    check(&limiter, "p", "midas", 10);
    check(&limiter, "p", "croesus", 20);
    check(&limiter, "p", "alice", 2);
    let set = PolicySet::from_toml(&text("8/1h", "50/1h", r#"["midas", "alice"]"#)).unwrap();
    assert_eq!(limiter.reload(set), 2);
    assert_eq!(remaining(&limiter, "p", "midas"), 40, "50 less the 10 used");
    assert_eq!(remaining(&limiter, "p", "alice"), 48, "promoted: 50 less the 2 used");
    assert_eq!(remaining(&limiter, "p", "croesus"), 0, "demoted: more used than the 8 of everybody");
    assert_eq!(remaining(&limiter, "p", "bob"), 8);
}

#[test]
fn a_reload_keeps_usage_by_name_in_any_order_and_forgets_what_is_gone() {
    let policy = |name: &str, quota: &str| format!("[[policy]]\nname = \"{name}\"\nquota = \"{quota}\"\n");
    let (limiter, clock) = limiter(&(policy("a", "5/1h") + &policy("b", "6/1h")));
    check(&limiter, "a", "x", 2);
    check(&limiter, "b", "x", 3);
    let reload = |text: &str| limiter.reload(PolicySet::from_toml(text).unwrap());
    reload(&(policy("b", "6/1h") + &policy("a", "5/1h")));
    assert_eq!((remaining(&limiter, "a", "x"), remaining(&limiter, "b", "x")), (3, 3));
    reload(&policy("b", "6/1h"));
    assert_eq!(check(&limiter, "a", "x", 1).reason, Reason::UnknownPolicy);
    reload(&(policy("a", "5/1h") + &policy("b", "6/1h")));
    assert_eq!((remaining(&limiter, "a", "x"), remaining(&limiter, "b", "x")), (5, 3));
    clock.set(START + 3_600 * SECOND);
    assert_eq!(remaining(&limiter, "b", "x"), 6);
}

#[test]
fn a_reload_in_the_middle_of_a_storm_loses_no_count() {
    let text = |keys: usize| format!("[[policy]]\nname = \"p\"\nquota = \"1000/1h\"\nkeys = {keys}\n");
    let (limiter, _) = limiter(&text(100));
    let admitted = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    let admit = check(&limiter, "p", "x", 1).is_admit();
                    admitted.fetch_add(u64::from(admit), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        for round in 0..200 {
            limiter.reload(PolicySet::from_toml(&text(100 + round)).unwrap());
        }
    });
    assert_eq!(admitted.into_inner(), 1_000);
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
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(\\[\\[policy\\]\\]\n)?((name|quota|match|cost|keys|subject|tier) = .{0,20}\n){0,6}") {
        let _ = PolicySet::from_toml(&text);
    }
}

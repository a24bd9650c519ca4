//! What is asked together, given back, asked by descriptor, or under a quota of the asker's own.

use proptest::prelude::*;
use tollgate::{
    Asked, Check, Clock, Descriptor, Limiter, PolicySet, Reason, Rule, Ruling, SECOND, Salt, Stated, Throttle,
};

use crate::{START, check, limiter, remaining};

fn ask(limiter: &Limiter, asked: &[Asked<'_>]) -> Ruling {
    pollster::block_on(limiter.decide_all(asked))
}

fn descriptor<'a>(domain: &'a str, entries: &'a [(&'a str, &'a str)]) -> Asked<'a> {
    Asked::Descriptor(Descriptor { domain, entries, cost: None, rule: Stated::Nothing })
}

const EVERY_SHAPE: &str = "[[policy]]\nname = \"gcra\"\nquota = \"5/1m\"\n\
     [[policy]]\nname = \"window\"\nquota = \"5/1m\"\nalgorithm = \"fixed-window\"\n\
     [[policy]]\nname = \"counter\"\nquota = \"5/1m\"\nalgorithm = \"sliding-counter\"\n\
     [[policy]]\nname = \"log\"\nquota = \"5/1m\"\nalgorithm = \"sliding-log\"\n";

#[test]
fn what_is_given_back_can_be_spent_again_and_never_more() {
    let (limiter, clock) = limiter(EVERY_SHAPE);
    for policy in ["gcra", "window", "counter", "log"] {
        clock.set(START);
        assert!(check(&limiter, policy, "a", 3).is_admit());
        clock.set(START + SECOND);
        let back = check(&limiter, policy, "a", -2);
        let (_, part) = back.parts().next().unwrap();
        assert!(back.is_admit() && part.given_back, "{policy}");
        assert_eq!(
            (part.cost, part.outcome.remaining, back.part_name(part)),
            (2, 4, "give_back"),
            "{policy}"
        );
        assert!(check(&limiter, policy, "a", i64::MIN).is_admit());
        assert_eq!(remaining(&limiter, policy, "a"), 5, "{policy}: full, and no fuller");
        assert!(check(&limiter, policy, "a", 5).is_admit() && !check(&limiter, policy, "a", 1).is_admit());
        assert!(check(&limiter, policy, "nobody", -1).is_admit(), "{policy}: nothing to give back");
    }
}

#[test]
fn a_refusal_takes_nothing_and_gives_nothing_back() {
    let (limiter, _) = limiter(EVERY_SHAPE);
    let both = |cost, back| {
        [("gcra", cost), ("log", back)]
            .map(|(policy, cost)| Asked::Check(Check { policy, subject: "a", cost: Some(cost) }))
    };
    check(&limiter, "log", "a", 3);
    let refused = ask(&limiter, &both(6, -2));
    assert_eq!((refused.reason, remaining(&limiter, "log", "a")), (Reason::TooCostly, 2));
    let admitted = ask(&limiter, &both(4, -2));
    let left = |n| admitted.parts_of(n).next().unwrap().1.outcome.remaining;
    assert_eq!((left(0), left(1)), (1, 4));
    assert_eq!(admitted.parts_of(2).count(), 0);
}

#[test]
fn each_thing_asked_finds_its_own_parts_also_where_two_charge_one_key() {
    let (limiter, _) = limiter(EVERY_SHAPE);
    let check = |policy, subject, cost| Asked::Check(Check { policy, subject, cost: Some(cost) });
    let ruling = ask(&limiter, &[check("gcra", "a", 1), check("log", "b", 2), check("gcra", "a", 3)]);
    let told = |n: usize| ruling.parts_of(n).map(|(p, part)| (p.name.clone(), part.cost)).collect::<Vec<_>>();
    assert_eq!(told(0), [("gcra".to_owned(), 4)], "costs of one key add up");
    assert_eq!(told(0), told(2));
    assert_eq!(told(1), [("log".to_owned(), 2)]);
    let many = [check("gcra", "a", 0); tollgate::MAX_ASKED + 1];
    assert_eq!(ask(&limiter, &many).reason, Reason::Unavailable);
    assert!(ask(&limiter, &many[1..]).is_admit());
}

#[test]
fn nobody_is_what_the_policy_says_nobody_is() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"strict\"\nquota = \"5/1m\"\n\
         [[policy]]\nname = \"lenient\"\nquota = \"5/1m\"\nmissing = \"skip\"\n",
    );
    assert_eq!(check(&limiter, "strict", "", 1).reason, Reason::NoSubject);
    let lenient = check(&limiter, "lenient", "", 9);
    assert!(lenient.is_admit() && lenient.parts().count() == 0);
    let long = "x".repeat(tollgate::MAX_SUBJECT_BYTES + 1);
    assert_eq!(check(&limiter, "lenient", &long, 1).reason, Reason::NoSubject, "unclear is not absent");
}

const DESCRIPTORS: &str = "[[policy]]\nname = \"each\"\nmatch = { domain = \"d\", descriptor = \"database\" }\nquota = \"2/1m\"\n\
     [[policy]]\nname = \"users\"\nmatch = { domain = \"d\", descriptor = \"database=users\" }\nquota = \"4/1m\"\n\
     [[policy]]\nname = \"daily\"\nmatch = { domain = \"d\", descriptor = \"database=users\" }\nquota = \"3/1d\"\n\
     [[policy]]\nname = \"marketing\"\nmatch = { domain = \"d\", descriptor = [\"type=m*\", \"to\"] }\nquota = \"1/1d\"\nsubject = \"descriptor:to\"\n\
     [[policy]]\nname = \"chosen\"\nmatch = { domain = \"d\", descriptor = \"plan\" }\nquota = \"100/1s\"\nclient_quota = true\n\
     [[policy]]\nname = \"requests\"\nquota = \"1/1m\"\n";

#[test]
fn of_the_policies_of_a_descriptor_the_most_specific_count_and_all_of_those() {
    let (limiter, _) = limiter(DESCRIPTORS);
    let names = |domain, entries: &[(&str, &str)]| {
        let ruling = ask(&limiter, &[descriptor(domain, entries)]);
        assert!(ruling.is_admit());
        ruling.parts().map(|(policy, _)| policy.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("d", &[("database", "x")]), ["each"]);
    assert_eq!(names("d", &[("database", "users")]), ["users", "daily"]);
    assert_eq!(names("d", &[("type", "mail"), ("to", "1")]), ["marketing"]);
    for (domain, entries) in [
        ("e", &[("database", "x")][..]),
        ("d", &[("database", "x"), ("to", "1")]),
        ("d", &[("type", "sms"), ("to", "1")]),
        ("d", &[]),
    ] {
        assert!(names(domain, entries).is_empty(), "{entries:?}: no limit is no refusal");
    }
    assert_eq!(remaining(&limiter, "each", "x"), 1, "its subject is the value");
    assert_eq!(remaining(&limiter, "marketing", "1"), 0);
    assert_eq!(names("d", &[("database", "")]), ["each"], "an empty value is one too");
}

#[test]
fn an_asker_chooses_within_the_quota_of_a_policy_that_says_so() {
    let (limiter, _) = limiter(DESCRIPTORS);
    let rule = |text: &str| Rule::gcra(text.parse().unwrap());
    let ask = |entries: &[(&str, &str)], rule: &Rule| {
        ask(
            &limiter,
            &[Asked::Descriptor(Descriptor { domain: "d", entries, cost: None, rule: Stated::Rule(rule) })],
        )
    };
    let limit = |ruling: &Ruling| ruling.parts().next().unwrap().1.outcome.limit;
    assert_eq!(limit(&ask(&[("plan", "gold")], &rule("50/1s"))), 50);
    let above = ask(&[("plan", "gold")], &rule("101/1s burst 1"));
    assert_eq!((above.reason, above.scope().unwrap().name.as_str()), (Reason::BadQuota, "chosen"));
    assert_eq!(ask(&[("plan", "gold")], &rule("1/1s burst 101")).reason, Reason::BadQuota);
    assert_eq!(
        limit(&ask(&[("database", "x")], &rule("50/1s"))),
        2,
        "elsewhere the policy's own quota counts"
    );
}

#[test]
fn a_throttle_policy_counts_each_key_by_its_own_quota() {
    let text = |quota: &str| {
        format!("[[policy]]\nname = \"t\"\nmatch = {{ command = \"CL.THROTTLE\" }}\nquota = \"{quota}\"\n")
    };
    let (limiter, clock) = limiter(&text("1000/1s burst 1000"));
    let rule = Rule::gcra("30/1m burst 16".parse().unwrap());
    let ask = |limiter: &Limiter, cost| {
        ask(limiter, &[Asked::Throttle(Throttle { key: b"\xFFk", rule: &rule, cost })])
    };
    for left in (0..16).rev() {
        assert_eq!(ask(&limiter, 1).parts().next().unwrap().1.outcome.remaining, left);
    }
    assert_eq!(ask(&limiter, 1).retry_after(), Some(2 * SECOND));
    limiter.reload(PolicySet::from_toml(&text("2000/1s burst 2000")).unwrap());
    assert_eq!(ask(&limiter, 1).retry_after(), Some(2 * SECOND), "a ceiling that moves moves no count");
    clock.set(START + 2 * SECOND);
    assert!(ask(&limiter, 1).is_admit());
    let (without, _) = crate::limiter(EVERY_SHAPE);
    assert_eq!(ask(&without, 1).reason, Reason::UnknownPolicy);
}

/// Whoever states two quotas for one key in turn gains nothing: on every store that carries states over from rule to rule.
#[test]
fn a_state_under_stated_rules_is_one_time() {
    let rule = |text: &str| Rule::gcra(text.parse().unwrap()).stated();
    let (wide, narrow) = (rule("1000/1s burst 1000"), rule("1000/1s burst 1"));
    assert_eq!(wide.to_string().parse(), Ok(wide));
    let charge =
        |rule, cost| tollgate::Charge { policy: 0, key: tollgate::Fingerprint(1), rule, cost, spare: 0 };
    let (mut cell, mut carried) = ([0], [0]);
    assert!(charge(&wide, 1_000).decide(&mut cell, START).verdict.is_admit());
    tollgate_core::carry(tollgate::Fingerprint(1), &wide, &cell, &narrow, &mut carried, START + 1);
    assert_eq!(carried, cell);
    assert!(!charge(&narrow, 1).decide(&mut carried, START + SECOND / 100).verdict.is_admit());
}

#[test]
fn a_shadow_takes_and_gives_back_as_an_enforced_policy_would() {
    let (limiter, _) = limiter("[[policy]]\nname = \"s\"\nquota = \"2/1m\"\nshadow = true\n");
    for _ in 0..5 {
        let taken = check(&limiter, "s", "a", 1);
        assert!(taken.shadows().all(|(_, part)| part.outcome.verdict.is_admit()));
        check(&limiter, "s", "a", -1);
    }
}

#[test]
fn what_makes_no_sense_about_descriptors_and_commands_is_said() {
    let said = |rest: &str| {
        let text = format!("[[policy]]\nname = \"p\"\nquota = \"5/1m\"\n{rest}\n");
        PolicySet::from_toml(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
    };
    for (rest, expected) in [
        ("match = { domain = \"d\" }", "domain and descriptor go together"),
        ("match = { descriptor = \"a\" }", "domain and descriptor go together"),
        ("match = { domain = \"d\", descriptor = [] }", "1 to 16 entries"),
        ("match = { domain = \"d\", descriptor = \"=x\" }", "has no key"),
        ("match = { domain = \"d\", descriptor = \"a\", path = \"/\" }", "no method, host, path or header"),
        (
            "match = { domain = \"d\", descriptor = \"a\" }\nsubject = \"address\"",
            "a descriptor has the subjects",
        ),
        ("match = { domain = \"d\", descriptor = \"a\" }\nsubject = \"descriptor:b\"", "one of its keys"),
        ("match = { domain = \"d\", descriptor = \"a\" }\ncost = { size = 1, max = 2 }", "only requests"),
        ("match = { command = \"GET\" }", "no command with a policy"),
        ("match = { command = \"CL.THROTTLE\" }\nalgorithm = \"sliding-log\"", "counted by gcra"),
        ("match = { command = \"CL.THROTTLE\" }\nsubject = \"address\"", "is its key"),
        ("client_quota = true", "nobody who sends a request can choose"),
        ("subject = \"descriptor\"", "only policies that match a descriptor"),
        (
            "match = { command = \"CL.THROTTLE\" }\n[[policy]]\nname = \"q\"\nquota = \"5/1m\"\nmatch = { command = \"cl.throttle\" }",
            "another policy",
        ),
    ] {
        assert!(said(rest).contains(expected), "{rest}: {}", said(rest));
    }
}

proptest! {
    /// Admitted less given back keeps the bound, whatever is given back when.
    #[test]
    fn what_is_given_back_without_a_time_keeps_the_bound_of_the_rest(
        steps in prop::collection::vec((-4_i64..5, 0..4_000_u64), 1..80),
    ) {
        let text = "[[policy]]\nname = \"p\"\nquota = \"60/1m burst 5\"\n";
        let clock = Clock::manual(START);
        let limiter = Limiter::new(PolicySet::from_toml(text).unwrap(), Salt::random(), clock.clone());
        let (mut now, mut net) = (START, Vec::new());
        for (cost, pause) in steps {
            now += pause * SECOND / 1_000;
            clock.set(now);
            if check(&limiter, "p", "a", cost).is_admit() {
                net.push((now, cost));
            }
        }
        for (from, (start, _)) in net.iter().enumerate() {
            let mut sum = 0;
            for (end, cost) in &net[from..] {
                sum += cost;
                let most = 5 + i64::try_from((end - start) / SECOND).unwrap();
                prop_assert!(sum <= most, "{sum} of {most} between {start} and {end}");
            }
        }
    }
}

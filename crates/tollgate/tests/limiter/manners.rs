//! Bans, the origin's own limits, and sampling.

use tollgate::{Limiter, Reason, SECOND, Verdict};

use crate::{START, check, decide, limiter};

const BAN: &str = r#"
    [[policy]]
    name = "login"
    subject = "header:x-user"
    quota = "2/1s"
    ban = { after = 3, within = "1m", for = "10s", up_to = "60s", forget = "10m" }
"#;

/// Asks until it is banned, and gives for how long that is.
fn ban(limiter: &Limiter, user: &str) -> u64 {
    for _ in 0..20 {
        let ruling = decide(limiter, "/login", user);
        if ruling.reason == Reason::Banned {
            assert!(ruling.ban_began && !ruling.is_admit());
            return ruling.retry_after().unwrap();
        }
        assert!(ruling.is_admit() || ruling.reason == Reason::Throttled);
    }
    panic!("never banned");
}

#[test]
fn whoever_is_refused_too_often_is_banned_for_longer_each_time() {
    let (limiter, clock) = limiter(BAN);
    let reasons: Vec<Reason> = (0..6).map(|_| decide(&limiter, "/login", "mallory").reason).collect();
    use Reason::{Admitted, Banned, Throttled};
    assert_eq!(reasons, [Admitted, Admitted, Throttled, Throttled, Banned, Banned]);
    assert_eq!(Banned.status(), 403);
    assert!(decide(&limiter, "/login", "alice").is_admit(), "nobody else is");
    clock.set(START + 10 * SECOND - 1);
    let still = decide(&limiter, "/login", "mallory");
    assert_eq!((still.reason, still.retry_after(), still.ban_began), (Banned, Some(1), false));
    assert_eq!(still.scope().unwrap().name, "login");
    let mut now = START + 10 * SECOND;
    for lasts in [20, 40, 60, 60] {
        clock.set(now);
        assert!(decide(&limiter, "/login", "mallory").is_admit(), "the ban is over at its time");
        assert_eq!(ban(&limiter, "mallory"), lasts * SECOND);
        now += lasts * SECOND;
    }
    clock.set(now + 3_600 * SECOND);
    assert_eq!(ban(&limiter, "mallory"), 10 * SECOND, "bans are forgotten in time");
}

#[test]
fn a_ban_takes_nothing_and_is_lifted_by_hand() {
    let (limiter, clock) = limiter(BAN);
    ban(&limiter, "mallory");
    clock.set(START + 2 * SECOND);
    for _ in 0..50 {
        assert_eq!(decide(&limiter, "/login", "mallory").reason, Reason::Banned);
    }
    assert_eq!(check(&limiter, "login", "mallory", 0).reason, Reason::Banned, "a look says so");
    let unban = |policy, subject| pollster::block_on(limiter.unban(policy, subject)).unwrap();
    assert_eq!(
        (unban("login", "alice"), unban("login", "mallory"), unban("login", "mallory")),
        (Some(false), Some(true), Some(false))
    );
    assert_eq!(unban("nobody", "mallory"), None);
    assert!(decide(&limiter, "/login", "mallory").is_admit(), "and what was refused has charged nothing");
    assert_eq!(ban(&limiter, "mallory"), 10 * SECOND, "nor is it remembered");
    assert_eq!(pollster::block_on(limiter.reset("login", "mallory")).unwrap(), Some(true));
    assert!(decide(&limiter, "/login", "mallory").is_admit());
}

#[test]
fn refusals_by_another_policy_or_for_another_reason_are_no_strikes() {
    let (limiter, _) =
        limiter(&format!("{BAN}[[policy]]\nname = \"all\"\nsubject = \"const:all\"\nquota = \"1/1h\"\n"));
    for n in 0..20 {
        let ruling = decide(&limiter, "/login", "alice");
        assert_eq!(ruling.reason, if n == 0 { Reason::Admitted } else { Reason::Throttled });
    }
    for _ in 0..20 {
        assert_eq!(check(&limiter, "login", "bob", 3).reason, Reason::TooCostly);
    }
    assert!(check(&limiter, "login", "bob", 1).is_admit());
}

#[test]
fn one_key_at_once_is_banned_like_any_other() {
    let (limiter, _) = limiter(BAN);
    let admitted: Vec<bool> = (0..5).map(|_| limiter.check_at("m", 1, START).is_admit()).collect();
    assert_eq!(admitted, [true, true, false, false, false]);
    let tollgate::Decision::Refuse(refusal) = limiter.check_at("m", 1, START + 2 * SECOND) else {
        panic!("banned")
    };
    assert_eq!(refusal.retry_after, Some(std::time::Duration::from_secs(8)));
}

#[test]
fn one_credential_that_an_origin_holds_does_not_delay_another() {
    let (limiter, clock) = limiter(
        "[[policy]]\nname = \"api\"\nsubject = \"header:x-user\"\nquota = \"1000/1s\"\nobey = \"1h\"\n",
    );
    let users: Vec<String> = (0..100).map(|n| format!("credential-{n}")).collect();
    let held = decide(&limiter, "/", &users[7]);
    assert!(pollster::block_on(limiter.obey(&held, 30 * SECOND)));
    for _ in 0..5 {
        // Others that were under way are told the same, later.
        pollster::block_on(limiter.obey(&held, 30 * SECOND));
    }
    for (n, user) in users.iter().enumerate() {
        let ruling = decide(&limiter, "/", user);
        let expected = if n == 7 { (Reason::Held, Some(30 * SECOND)) } else { (Reason::Admitted, None) };
        assert_eq!((ruling.reason, ruling.retry_after()), expected, "{user}");
    }
    assert_eq!(Reason::Held.status(), 429);
    clock.set(START + 30 * SECOND - 1);
    assert_eq!(decide(&limiter, "/", &users[7]).reason, Reason::Held);
    clock.set(START + 30 * SECOND);
    let free = decide(&limiter, "/", &users[7]);
    assert!(free.is_admit());
    pollster::block_on(limiter.obey(&free, u64::MAX));
    assert_eq!(
        decide(&limiter, "/", &users[7]).retry_after(),
        Some(3_600 * SECOND),
        "no longer than it obeys"
    );
}

#[test]
fn a_reload_lifts_no_ban_and_makes_none() {
    let (limiter, clock) = limiter(BAN);
    ban(&limiter, "mallory");
    decide(&limiter, "/login", "alice");
    for text in [BAN.replace("2/1s", "4/1s"), BAN.replace("after = 3", "after = 5")] {
        limiter.reload(tollgate::PolicySet::from_toml(&text).unwrap());
        assert_eq!(decide(&limiter, "/login", "mallory").reason, Reason::Banned);
        assert!(decide(&limiter, "/login", "alice").is_admit());
        clock.set(limiter.clock().now() + SECOND);
    }
    limiter.reload(tollgate::PolicySet::from_toml(&BAN.replace("ban =", "# ban =")).unwrap());
    assert!(decide(&limiter, "/login", "mallory").is_admit(), "without bans nobody is banned");
}

/// One in ten is charged for ten: what is charged keeps the bound exactly, what is admitted keeps it as draws do.
#[test]
fn a_sample_admits_as_many_as_its_odds_say() {
    let (limiter, clock) = limiter("[[policy]]\nname = \"cheap\"\nquota = \"1000/1s\"\nsample = \"1/10\"\n");
    let (mut admitted, mut refused) = (0_u64, 0_u64);
    for n in 0..40_000_u64 {
        clock.set(START + n * SECOND / 10_000);
        let ruling = check(&limiter, "cheap", "a", 1);
        if ruling.is_admit() {
            admitted += 1;
        } else {
            refused += 1;
        }
        let part = ruling.parts().next().unwrap().1;
        assert!(matches!(part.cost, 0 | 10));
        assert!(
            ruling.part_name(part) != "look",
            "whoever is not drawn is admitted or refused like those who are"
        );
        if let Verdict::Refuse { retry_after } = part.outcome.verdict {
            assert!(retry_after <= SECOND / 100, "until ten fit");
        }
    }
    // 1,000 at once and 1,000 a second over 4 s: 500 draws, and as many that were not drawn as came between them.
    assert!((4_000..6_200).contains(&admitted), "{admitted} admitted, {refused} refused");
}

#[test]
fn refusals_that_come_together_make_one_ban() {
    for seed in 0..20 {
        let (limiter, clock) = limiter(&BAN.replace("quota = \"2/1s\"", "quota = \"1/1h\""));
        check(&limiter, "login", "m", 1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| drop(check(&limiter, "login", "m", 1))));
            }
        });
        let banned = check(&limiter, "login", "m", 1);
        assert_eq!((banned.reason, banned.retry_after()), (Reason::Banned, Some(3_600 * SECOND)), "{seed}");
        clock.set(START + 10 * SECOND);
        assert_eq!(check(&limiter, "login", "m", 1).reason, Reason::Throttled, "the first ban is over");
        let again = (0..5).map(|_| check(&limiter, "login", "m", 1)).find(|ruling| ruling.ban_began).unwrap();
        assert_eq!(again.reason, Reason::Banned);
        clock.set(START + 30 * SECOND - 1);
        assert_eq!(check(&limiter, "login", "m", 1).reason, Reason::Banned, "the second is twice as long");
        clock.set(START + 30 * SECOND);
        assert_eq!(check(&limiter, "login", "m", 1).reason, Reason::Throttled, "and no longer");
    }
}

#[test]
fn whoever_is_allowed_is_not_counted_at_one_key_either() {
    let (limiter, _) = limiter(&format!("{BAN}allow = [\"subject:admin\"]\n"));
    for _ in 0..50 {
        assert!(limiter.check_at("admin", 1, START).is_admit());
    }
    // Subjects that are no text are not one another.
    for subject in [b"\xFF\x01", b"\xFF\x02", b"\xFE\x01"] {
        assert!(limiter.check_at(subject, 2, START).is_admit(), "{subject:?}");
    }
}

#[test]
fn an_origin_that_asks_for_longer_is_obeyed_for_longer() {
    let (limiter, clock) =
        limiter("[[policy]]\nname = \"api\"\nsubject = \"header:x-user\"\nquota = \"9/1s\"\nobey = \"1h\"\n");
    let rulings: Vec<_> = (0..5).map(|_| decide(&limiter, "/", "a")).collect();
    let obey = |n: usize, seconds: u64| pollster::block_on(limiter.obey(&rulings[n], seconds * SECOND));
    let left = || decide(&limiter, "/", "a").retry_after().map(|nanos| nanos / SECOND);
    assert!(obey(0, 1));
    assert_eq!(left(), Some(1));
    assert!(obey(1, 60) && obey(2, 60) && obey(3, 5));
    assert_eq!(left(), Some(60));
    clock.set(START + 50 * SECOND);
    assert!(obey(4, 60));
    assert_eq!(left(), Some(60));
}

#[test]
fn two_checks_of_a_sampled_subject_fit_wherever_one_does() {
    let (limiter, clock) =
        limiter("[[policy]]\nname = \"s\"\nquota = \"100/1s burst 15\"\nsample = \"1/10\"\n");
    for n in 0..2_000 {
        clock.set(START + n * SECOND);
        let one = tollgate::Check { policy: "s", subject: "a", cost: Some(1) };
        let ruling = pollster::block_on(limiter.decide_checks(&[one, one]));
        let drawn: u64 = ruling.parts().map(|(_, part)| part.cost).sum();
        assert!(drawn == 20 || ruling.is_admit(), "{:?} with {drawn} drawn", ruling.reason);
    }
}

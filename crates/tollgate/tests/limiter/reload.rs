//! Policies exchanged while they count.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

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

/// Reloads that change the quota, the shape, what happens when the table is full, and the order of the policies, while
/// threads charge two policies at once: nothing is lost, nothing is charged twice, nobody hangs.
#[test]
fn reloads_in_the_middle_of_a_storm_lose_no_count() {
    let policy = |name: &str, algorithm: &str, when_full: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\nsubject = \"const:x\"\nquota = \"4000/300d\"\nalgorithm = \"{algorithm}\"\nwhen_full = \"{when_full}\"\n"
        )
    };
    let text = |round: usize| {
        let algorithm = ["gcra", "sliding-counter", "sliding-log", "fixed-window"][round % 4];
        let both = [policy("a", algorithm, "share"), policy("b", "gcra", ["share", "evict"][round % 2])];
        if round.is_multiple_of(3) { both.concat() } else { both.iter().rev().map(String::as_str).collect() }
    };
    let (limiter, _) = limiter(&text(0));
    let (admitted, reloads) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let checks = ["a", "b"].map(|policy| Check { policy, subject: "x", cost: Some(1) });
                    let ruling = pollster::block_on(limiter.decide_checks(&checks));
                    admitted.fetch_add(u64::from(ruling.is_admit()), Ordering::Relaxed);
                }
                reloads.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut round = 1;
        while reloads.load(Ordering::Relaxed) < 3 {
            limiter.reload(PolicySet::from_toml(&text(round)).unwrap());
            round += 1;
        }
        println!("{round} reloads");
    });
    assert_eq!(admitted.into_inner(), 4_000);
    assert_eq!((remaining(&limiter, "a", "x"), remaining(&limiter, "b", "x")), (0, 0));
}

#[test]
fn a_policy_that_counts_somebody_else_begins_anew_with_room_for_them() {
    let text =
        |subject: &str| format!("[[policy]]\nname = \"p\"\nsubject = \"{subject}\"\nquota = \"2/1h\"\n");
    let (limiter, _) = limiter(&text("const:all"));
    check(&limiter, "p", "all", 2);
    limiter.reload(PolicySet::from_toml(&text("header:x-user")).unwrap());
    for user in 0..1_000 {
        assert_eq!(remaining(&limiter, "p", &user.to_string()), 2);
        check(&limiter, "p", &user.to_string(), 2);
    }
    assert_eq!(limiter.tables()[0].1.events().shared, 0);
}

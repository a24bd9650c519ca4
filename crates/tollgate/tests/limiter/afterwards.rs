//! Cost that is known afterwards: by the response, and by settlement.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use tollgate::{Asked, Limiter, Reason, Request, Reserved, Response, Ruling, SECOND, Settled};

use crate::{START, check, limiter, remaining};

const LOGIN: &str = r#"
    [[policy]]
    name = "failed-logins"
    match = { method = "POST", path = "/login" }
    subject = "header:x-user"
    quota = "5/1m"
    response = { status = ["401", "403"] }
"#;

fn exchange(limiter: &Limiter) -> Ruling {
    let headers: HeaderMap = [("x-user".parse().unwrap(), "alice".parse().unwrap())].into_iter().collect();
    let request = Request {
        method: "POST",
        host: "example.com",
        path: "/login",
        query: None,
        headers: &headers,
        address: None,
        size: None,
    };
    pollster::block_on(limiter.decide_all(&[Asked::Exchange(&request)]))
}

fn respond(limiter: &Limiter, ruling: &mut Ruling, status: u16, cost: Option<&str>, size: Option<u64>) {
    let mut headers = HeaderMap::new();
    if let Some(cost) = cost {
        headers.insert("x-tokens", cost.parse().unwrap());
    }
    let response = Response { status: StatusCode::from_u16(status).unwrap(), headers: &headers, size };
    pollster::block_on(limiter.responded(ruling, &response));
}

#[test]
fn a_thousand_good_logins_leave_the_count_at_nothing_and_ten_bad_ones_at_once_are_counted_exactly() {
    for algorithm in ["gcra", "fixed-window", "sliding-counter", "sliding-log"] {
        let (limiter, clock) = limiter(&format!("{LOGIN}algorithm = \"{algorithm}\"\n"));
        for n in 0..1_000 {
            clock.set(START + n * SECOND / 100);
            let mut ruling = exchange(&limiter);
            assert!(ruling.is_admit(), "{algorithm}, login {n}");
            respond(&limiter, &mut ruling, 200, None, None);
            let left = ruling.parts().next().unwrap().1.outcome.remaining;
            assert_eq!(left, 5, "{algorithm}: the answer says what is left after all");
        }
        assert_eq!(remaining(&limiter, "failed-logins", "alice"), 5, "{algorithm}");
        // All ten are under way before any is answered.
        let mut under_way: Vec<Ruling> = (0..10).map(|_| exchange(&limiter)).collect();
        assert_eq!(under_way.iter().filter(|ruling| ruling.is_admit()).count(), 5, "{algorithm}");
        for ruling in under_way.iter_mut().filter(|ruling| ruling.is_admit()) {
            respond(&limiter, ruling, 401, None, None);
        }
        assert_eq!(remaining(&limiter, "failed-logins", "alice"), 0, "{algorithm}");
        assert!(!exchange(&limiter).is_admit(), "{algorithm}");
    }
}

/// Eight at a time for ten minutes, each for up to a second: nobody's time is lost for being spent together.
#[test]
fn good_logins_that_overlap_use_nothing_up() {
    let (limiter, clock) = limiter(&LOGIN.replace("5/1m", "10/1m"));
    let mut under_way = std::collections::VecDeque::new();
    for n in 0..6_000 {
        clock.set(START + n * SECOND / 10);
        let ruling = exchange(&limiter);
        assert!(ruling.is_admit(), "login {n}");
        under_way.push_back(ruling);
        if under_way.len() == 8 {
            respond(&limiter, &mut under_way.pop_front().unwrap(), 200, None, None);
        }
    }
    under_way.iter_mut().for_each(|ruling| respond(&limiter, ruling, 200, None, None));
    assert_eq!(remaining(&limiter, "failed-logins", "alice"), 10);
}

#[test]
fn an_answer_is_counted_once_and_a_refusal_or_another_door_has_nothing_to_say() {
    let (limiter, _) = limiter(LOGIN);
    let mut ruling = exchange(&limiter);
    for _ in 0..3 {
        respond(&limiter, &mut ruling, 200, None, None);
    }
    check(&limiter, "failed-logins", "alice", 4);
    assert_eq!(remaining(&limiter, "failed-logins", "alice"), 1, "given back once");
    check(&limiter, "failed-logins", "alice", 1);
    let mut refused = exchange(&limiter);
    assert_eq!(refused.reason, Reason::Throttled);
    respond(&limiter, &mut refused, 200, None, None);
    assert_eq!(remaining(&limiter, "failed-logins", "alice"), 0);
}

#[test]
fn what_is_not_passed_on_is_given_back_whole() {
    let (limiter, _) = limiter(&format!(
        "{LOGIN}[[policy]]\nname = \"all\"\nsubject = \"const:all\"\nquota = \"100/1m\"\ncost = 7\n"
    ));
    let mut ruling = exchange(&limiter);
    assert_eq!((remaining(&limiter, "failed-logins", "alice"), remaining(&limiter, "all", "all")), (4, 93));
    pollster::block_on(limiter.give_back(&mut ruling));
    pollster::block_on(limiter.give_back(&mut ruling));
    assert_eq!((remaining(&limiter, "failed-logins", "alice"), remaining(&limiter, "all", "all")), (5, 100));
}

#[test]
fn a_response_costs_what_its_header_or_its_size_says() {
    let tokens = LOGIN.replace("5/1m", "100/1m").replace(
        "{ status = [\"401\", \"403\"] }",
        "{ status = \"2xx\", cost = { header = \"x-tokens\", max = 40, default = 3 } }",
    );
    let left_after = |text: &str, status, cost, size| {
        let (limiter, _) = limiter(text);
        let mut ruling = exchange(&limiter);
        respond(&limiter, &mut ruling, status, cost, size);
        (remaining(&limiter, "failed-logins", "alice"), limiter, ruling)
    };
    for (status, cost, charged) in [
        (200, Some("12"), 12),
        (200, Some("0"), 0),
        (200, Some("1000000"), 40),
        (200, Some("many"), 40),
        (200, None, 3),
        (500, Some("12"), 0),
    ] {
        assert_eq!(left_after(&tokens, status, cost, None).0, 100 - charged, "{status} {cost:?}");
    }
    let bytes = tokens.replace("header = \"x-tokens\", max = 40, default = 3", "size = \"1KiB\", max = 40");
    assert_eq!(left_after(&bytes, 200, None, Some(5_000)).0, 95);
    let (left, limiter, mut ruling) = left_after(&bytes, 200, None, None);
    assert_eq!(left, 60, "until the size is known it costs the most");
    pollster::block_on(limiter.streamed(&mut ruling, 9_000));
    assert_eq!(remaining(&limiter, "failed-logins", "alice"), 91);
    assert_eq!(left_after(&bytes, 404, None, None).0, 100, "one that does not count needs no size");
}

#[test]
fn charged_after_those_that_are_under_way_outrun_the_count_by_as_many() {
    let (limiter, clock) = limiter(&LOGIN.replace("\"403\"]", "\"403\"], charge = \"after\""));
    let mut under_way: Vec<Ruling> = (0..12).map(|_| exchange(&limiter)).collect();
    assert!(under_way.iter().all(Ruling::is_admit), "nothing is charged yet");
    for (n, ruling) in under_way.iter_mut().enumerate() {
        respond(&limiter, ruling, if n < 8 { 401 } else { 200 }, None, None);
    }
    assert_eq!(remaining(&limiter, "failed-logins", "alice"), 0);
    let refused = exchange(&limiter);
    assert_eq!(refused.retry_after(), Some(4 * 12 * SECOND), "eight are owed of five, and one more must fit");
    clock.set(START + 4 * 12 * SECOND);
    assert!(exchange(&limiter).is_admit());
}

const TOKENS: &str = r#"
    [[policy]]
    name = "tokens"
    quota = "1000/1h"
    reserve = { within = "10m", open = 1000, debt = 50 }
"#;

fn reserve(limiter: &Limiter, units: u64, id: &str) -> Ruling {
    let reserved = Reserved { policy: "tokens", subject: "alice", units, id: id.as_bytes() };
    pollster::block_on(limiter.decide_all(&[Asked::Reserve(reserved)]))
}

fn settle(limiter: &Limiter, token: &str, used: u64) -> Settled {
    pollster::block_on(limiter.settle(token, used))
}

#[test]
fn a_reservation_is_settled_once_at_what_was_used() {
    let (limiter, clock) = limiter(TOKENS);
    let left = || remaining(&limiter, "tokens", "alice");
    let made = reserve(&limiter, 300, "call-1").reservation.unwrap();
    assert_eq!((made.units, made.repeated, left()), (300, false, 700));
    assert_eq!(made.ends, START + 600 * SECOND);
    let again = reserve(&limiter, 300, "call-1").reservation.unwrap();
    assert_eq!((&again.token, again.repeated, left()), (&made.token, true, 700));
    assert!(!reserve(&limiter, 200, "call-1").reservation.unwrap().repeated, "another size is another one");
    assert_eq!(left(), 500);
    let now = Settled::Now { given_back: 200, added: 0, dropped: 0 };
    assert_eq!((settle(&limiter, &made.token, 100), left()), (now, 700));
    for used in [0, 100, 300] {
        assert_eq!((settle(&limiter, &made.token, used), left()), (Settled::Before, 700));
    }
    assert!(reserve(&limiter, 300, "call-1").reservation.unwrap().repeated, "also once it is settled");

    let made = reserve(&limiter, 100, "call-2").reservation.unwrap();
    let over = Settled::Now { given_back: 0, added: 50, dropped: 25 };
    assert_eq!((settle(&limiter, &made.token, 175), left()), (over, 550), "a debt has its bound");

    let made = reserve(&limiter, 100, "call-3").reservation.unwrap();
    clock.set(made.ends - 1);
    let late = reserve(&limiter, 1, "call-4").reservation.unwrap();
    clock.set(made.ends);
    assert_eq!(settle(&limiter, &made.token, 0), Settled::Lapsed);
    assert!(matches!(settle(&limiter, &late.token, 1), Settled::Now { .. }));
}

#[test]
fn a_reservation_that_does_not_fit_is_refused_and_leaves_no_trace() {
    let (limiter, clock) = limiter(TOKENS);
    assert!(reserve(&limiter, 900, "a").is_admit());
    let refused = reserve(&limiter, 200, "b");
    assert_eq!((refused.reason, &refused.reservation), (Reason::Throttled, &None));
    clock.set(START + refused.retry_after().unwrap());
    let made = reserve(&limiter, 200, "b").reservation.unwrap();
    assert!(!made.repeated);
    assert!(reserve(&limiter, 200, "b").reservation.unwrap().repeated, "though nothing is left");
    assert_eq!(reserve(&limiter, 1_001, "c").reason, Reason::TooCostly);
    assert_eq!(reserve(&limiter, 0, "d").reason, Reason::BadCost);
    assert_eq!(reserve(&limiter, 1, "").reason, Reason::BadCost);
}

#[test]
fn tokens_are_nobodys_to_make() {
    let (limiter, _) = limiter(TOKENS);
    let token = reserve(&limiter, 300, "a").reservation.unwrap().token;
    let other = crate::limiter(TOKENS).0;
    assert_eq!(settle(&other, &token, 0), Settled::Unknown, "another salt");
    for at in 0..token.len() {
        let mut forged = token.clone().into_bytes();
        forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
        assert_eq!(settle(&limiter, &String::from_utf8(forged).unwrap(), 0), Settled::Unknown);
    }
    for nonsense in ["", "0", "zz", "é", &"00".repeat(2_000), &token[2..], &format!("{token}00")] {
        assert_eq!(settle(&limiter, nonsense, 0), Settled::Unknown, "{nonsense:?}");
    }
    assert!(matches!(settle(&limiter, &token, 0), Settled::Now { given_back: 300, .. }));
}

#[test]
fn room_for_reservations_is_bounded_and_what_is_open_is_never_forgotten() {
    let (limiter, clock) =
        limiter(&TOKENS.replace("1000/1h", "1000000/1h").replace("open = 1000", "open = 16"));
    let made: Vec<_> = (0..500).map(|n| reserve(&limiter, 1, &n.to_string())).collect();
    let open = made.iter().filter(|ruling| ruling.is_admit()).count();
    assert!((16..200).contains(&open), "{open}");
    assert!(made.iter().all(|ruling| ruling.is_admit() || ruling.reason == Reason::Unavailable));
    assert_eq!(
        remaining(&limiter, "tokens", "alice"),
        1_000_000 - open as u64,
        "those that were refused took nothing"
    );
    for ruling in made.iter().filter(|ruling| ruling.is_admit()) {
        let token = &ruling.reservation.as_ref().unwrap().token;
        assert!(matches!(settle(&limiter, token, 1), Settled::Now { .. }), "what is open can be settled");
        assert_eq!(settle(&limiter, token, 1), Settled::Before);
    }
    clock.set(START + 1_201 * SECOND);
    assert!(reserve(&limiter, 1, "later").is_admit());
}

#[test]
fn sixty_four_threads_whose_callers_die_settle_lapse_and_sum_up() {
    let (limiter, _) = limiter(&TOKENS.replace("1000/1h", "1000000/1h\"\nalgorithm = \"fixed-window"));
    let (settled, lapsed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..64_u64 {
            let (limiter, settled, lapsed) = (&limiter, &settled, &lapsed);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for n in 0..10 {
                    let (units, used) = (random.u64(1..100), random.u64(0..140));
                    let id = format!("{thread}-{n}");
                    let made = reserve(limiter, units, &id).reservation.unwrap();
                    if random.bool() {
                        // It never hears the answer, and asks again.
                        assert_eq!(reserve(limiter, units, &id).reservation.unwrap().token, made.token);
                    }
                    if random.u8(0..4) == 0 {
                        lapsed.fetch_add(units, Ordering::Relaxed);
                        continue;
                    }
                    let first = settle(limiter, &made.token, used);
                    assert!(matches!(first, Settled::Now { .. }), "{first:?}");
                    settled.fetch_add(used.min(units + 50), Ordering::Relaxed);
                    assert_eq!(settle(limiter, &made.token, random.u64(0..100)), Settled::Before);
                }
            });
        }
    });
    let charged = 1_000_000 - remaining(&limiter, "tokens", "alice");
    assert_eq!(charged, settled.into_inner() + lapsed.into_inner());
}

proptest! {
    /// Whenever responses come, what counted keeps the bound by the times at which it was admitted.
    #[test]
    fn what_counts_keeps_the_bound(
        steps in proptest::collection::vec((0..40 * SECOND, any::<bool>(), 0..4_usize), 1..120),
        algorithm in 0..4_usize,
    ) {
        let algorithm = ["gcra", "fixed-window", "sliding-counter", "sliding-log"][algorithm];
        let (limiter, clock) = limiter(&format!("{LOGIN}algorithm = \"{algorithm}\"\n"));
        let (mut now, mut under_way) = (START, Vec::new());
        let mut admitted: Vec<(u64, bool)> = Vec::new();
        for (pause, bad, answers) in steps {
            now += pause;
            clock.set(now);
            let ruling = exchange(&limiter);
            if ruling.is_admit() {
                under_way.push((ruling, admitted.len(), bad));
                admitted.push((now, true));
            }
            for _ in 0..answers {
                let Some((mut ruling, index, bad)) = (!under_way.is_empty()).then(|| under_way.remove(under_way.len() / 2)) else { break };
                respond(&limiter, &mut ruling, if bad { 401 } else { 200 }, None, None);
                admitted[index].1 = bad;
            }
        }
        let policies = limiter.policies();
        let rule = policies.named("failed-logins").unwrap().policy.rule;
        let counted: Vec<u64> = admitted.iter().filter(|(_, counts)| *counts).map(|(at, _)| *at).collect();
        if algorithm == "gcra" {
            for (first, from) in counted.iter().enumerate() {
                for (last, to) in counted.iter().enumerate().skip(first) {
                    let most = rule.bound().at(to - from + tollgate::RESPONSE_GRACE);
                    prop_assert!((last - first + 1) as u64 <= most, "{} in {} ns", last - first + 1, to - from);
                }
            }
        } else {
            let mut admissions = tollgate_harness::Admissions::new();
            counted.iter().for_each(|at| admissions.push(*at, 1));
            prop_assert_eq!(admissions.breach(&rule), None);
        }
    }
}

#[test]
fn a_policy_that_is_asked_by_name_meets_no_request() {
    let (limiter, _) = limiter(&format!("{TOKENS}match = {{ by_name = true }}\n"));
    assert_eq!(exchange(&limiter).parts().count(), 0);
    assert_eq!(reserve(&limiter, 1_000, "a").reservation.unwrap().units, 1_000);
    assert!(!check(&limiter, "tokens", "alice", 1).is_admit());
}

#[test]
fn a_late_settlement_leaves_nothing_behind_that_looks_like_a_reservation() {
    let (limiter, clock) = limiter(TOKENS);
    let made = reserve(&limiter, 300, "a").reservation.unwrap();
    clock.set(START + 7_200 * SECOND);
    for _ in 0..3 {
        assert_eq!(settle(&limiter, &made.token, 0), Settled::Lapsed);
    }
    let again = reserve(&limiter, 300, "a").reservation.unwrap();
    assert!(!again.repeated && again.ends == START + 7_800 * SECOND);
    assert_eq!(remaining(&limiter, "tokens", "alice"), 700);
    assert_eq!(settle(&limiter, &made.token, 0), Settled::Lapsed, "the old token is not the new one's");
    assert!(matches!(settle(&limiter, &again.token, 0), Settled::Now { given_back: 300, .. }));
    assert_eq!(
        (settle(&limiter, &again.token, 0), remaining(&limiter, "tokens", "alice")),
        (Settled::Before, 1_000)
    );
}

#[test]
fn what_the_store_has_forgotten_is_neither_settled_nor_taken_for_open() {
    let salt = tollgate::Salt::random();
    let start = || {
        let set = tollgate::PolicySet::from_toml(TOKENS).unwrap();
        Limiter::new(set, salt.clone(), tollgate::Clock::manual(START))
    };
    let token = reserve(&start(), 300, "a").reservation.unwrap().token;
    let restarted = start();
    check(&restarted, "tokens", "alice", 500);
    for _ in 0..3 {
        assert_eq!(settle(&restarted, &token, 0), Settled::Lapsed);
    }
    assert_eq!(remaining(&restarted, "tokens", "alice"), 500);
    assert!(!reserve(&restarted, 300, "a").reservation.unwrap().repeated);
}

#[test]
fn a_reservation_is_asked_for_alone_and_a_repeated_one_has_charged_nothing() {
    let (limiter, _) = limiter(TOKENS);
    let reserved = Reserved { policy: "tokens", subject: "alice", units: 100, id: b"a" };
    let other = Asked::Check(tollgate::Check { policy: "tokens", subject: "bob", cost: Some(5) });
    for mixed in [[other, Asked::Reserve(reserved)], [Asked::Reserve(reserved), Asked::Reserve(reserved)]] {
        let ruling = pollster::block_on(limiter.decide_all(&mixed));
        assert_eq!((ruling.reason, ruling.reservation), (Reason::NoReservations, None));
    }
    assert_eq!(remaining(&limiter, "tokens", "bob"), 1_000);
    reserve(&limiter, 100, "a");
    let mut repeated = reserve(&limiter, 100, "a");
    pollster::block_on(limiter.give_back(&mut repeated));
    assert_eq!(remaining(&limiter, "tokens", "alice"), 900);
}

#[test]
fn whoever_leaves_before_the_answer_has_not_got_out_of_paying() {
    for (charge, left) in [("after", 2), ("before", 2)] {
        let (limiter, _) = limiter(&LOGIN.replace("\"403\"]", &format!("\"403\"], charge = \"{charge}\"")));
        for _ in 0..3 {
            let mut ruling = exchange(&limiter);
            pollster::block_on(limiter.unanswered(&mut ruling));
            pollster::block_on(limiter.unanswered(&mut ruling));
        }
        assert_eq!(remaining(&limiter, "failed-logins", "alice"), left, "{charge}");
    }
}

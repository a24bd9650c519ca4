//! Properties of the pure functions that no store is needed for. What every store must keep is in `tollgate-harness`.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use proptest::prelude::*;
use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict, carry};

const START: u64 = 1_800_057_600 * SECOND;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(Algorithm::ALL.to_vec())
}

/// Any rule whose burst is what the algorithm can have.
fn rule() -> impl Strategy<Value = Rule> {
    (algorithm(), 1_u64..30, 1_u64..20, 1_u64..20, 0_u64..9, any::<bool>()).prop_map(
        |(algorithm, limit, tenths, burst, queue, jitter)| {
            let burst = match algorithm {
                Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyQueue => burst,
                _ => limit,
            };
            let queue = if algorithm == Algorithm::LeakyQueue { queue } else { 0 };
            let quota = Quota::new(limit, tenths * SECOND / 10, burst, queue).unwrap();
            Rule::new(quota, algorithm).unwrap().with_jittered_edges(jitter)
        },
    )
}

fn charge(rule: &Rule, key: u128, cost: u64) -> Charge<'_> {
    Charge { policy: 0, key: Fingerprint(key), rule, cost, spare: 0 }
}

fn state(rule: &Rule) -> Vec<u64> {
    vec![0; rule.words()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_state_whose_first_word_has_passed_decides_as_if_it_were_new(
        rule in rule(), key: u128, costs in prop::collection::vec((1_u64..4, 0..SECOND), 1..20), later in 0..SECOND,
    ) {
        let mut old = state(&rule);
        let mut now = START;
        for (cost, pause) in costs {
            charge(&rule, key, cost).decide(old.as_mut_slice(), now);
            now += pause;
        }
        let now = now.max(old[0]) + later;
        let mut new = state(&rule);
        for cost in [0, 1, 2, rule.capacity(), 1] {
            let was = charge(&rule, key, cost).decide(old.as_mut_slice(), now);
            let is = charge(&rule, key, cost).decide(new.as_mut_slice(), now);
            prop_assert_eq!((was.verdict, was.remaining), (is.verdict, is.remaining));
        }
    }

    #[test]
    fn a_refund_right_after_its_charge_leaves_the_standing_as_it_was(
        rule in rule(), key: u128, costs in prop::collection::vec((1_u64..4, 0..SECOND / 3), 0..12), cost in 1_u64..4,
    ) {
        let mut words = state(&rule);
        let mut now = START;
        for (cost, pause) in costs {
            charge(&rule, key, cost).decide(words.as_mut_slice(), now);
            now += pause;
        }
        let look = charge(&rule, key, 0);
        let before = look.decide(words.as_mut_slice(), now);
        let outcome = charge(&rule, key, cost).decide(words.as_mut_slice(), now);
        prop_assume!(outcome.verdict.is_admit());
        charge(&rule, key, cost).refund(words.as_mut_slice(), now, now);
        prop_assert_eq!(look.decide(words.as_mut_slice(), now).remaining, before.remaining);
    }

    /// What was refunded was never served; what was, stays within the bound, whenever the refund comes.
    #[test]
    fn refunds_never_loosen_the_bound(
        rule in rule(),
        steps in prop::collection::vec((1_u64..3, 0..SECOND / 2, any::<bool>(), 0..6_usize), 1..80),
    ) {
        let mut words = state(&rule);
        let mut now = START;
        let mut served: Vec<(u64, u64)> = Vec::new();
        let mut pending: Vec<(usize, u64, u64)> = Vec::new();
        for (index, (cost, pause, refunded, delay)) in steps.into_iter().enumerate() {
            let outcome = charge(&rule, 1, cost).decide(words.as_mut_slice(), now);
            if outcome.verdict.is_admit() {
                if refunded { pending.push((index + delay, cost, now)) } else { served.push((now, cost)) }
            }
            pending.retain(|(due, cost, charged)| {
                if *due <= index {
                    charge(&rule, 1, *cost).refund(words.as_mut_slice(), *charged, now);
                }
                *due > index
            });
            now += pause;
        }
        for from in 0..served.len() {
            let mut sum = 0;
            for (time, cost) in &served[from..] {
                sum += cost;
                prop_assert!(sum <= rule.bound().at(time - served[from].0), "{:?} {:?}", rule, served);
            }
        }
    }

    #[test]
    fn admit_up_to_n_is_the_largest_n_that_fits(
        rule in rule(), cost in 1_u64..5, spent in 0_u64..20, most in 0_u64..40, into in 0..SECOND,
    ) {
        let now = START + into;
        let mut words = state(&rule);
        charge(&rule, 3, spent.min(rule.capacity())).decide(words.as_mut_slice(), now);
        let fit = charge(&rule, 3, cost).fit(words.as_slice(), now, most);
        prop_assert!(fit <= most);
        prop_assert!(fit == 0 || charge(&rule, 3, cost * fit).judge(words.as_slice(), now).is_admit());
        prop_assert!(fit == most || !charge(&rule, 3, cost * (fit + 1)).judge(words.as_slice(), now).is_admit());
    }

    /// Used units stay used under the new rule, and the rest of its capacity is there at once.
    #[test]
    fn usage_outlives_a_change_of_rule(old in rule(), new in rule(), spent in 0_u64..30, into in 0..SECOND) {
        let now = START + into;
        let mut before = state(&old);
        let used = spent.min(old.capacity());
        charge(&old, 5, used).decide(before.as_mut_slice(), now);
        let mut after = state(&new);
        carry(Fingerprint(5), &old, before.as_slice(), &new, after.as_mut_slice(), now);
        let left = charge(&new, 5, 0).decide(after.as_mut_slice(), now).remaining;
        prop_assert_eq!(left, new.capacity().saturating_sub(used), "{:?} to {:?}", old, new);
    }

    /// No words, however they came about, make a decision panic or admit what can never fit.
    #[test]
    fn any_words_are_survived(
        rule in rule(), words in prop::collection::vec(any::<u64>(), 1..40), cost: u64, charged: u64, now: u64,
    ) {
        let mut words = words;
        words.resize(rule.words(), u64::MAX);
        let charge = charge(&rule, 1, cost);
        let outcome = charge.decide(words.as_mut_slice(), now);
        prop_assert!(cost <= rule.capacity() || outcome.verdict == Verdict::Never);
        charge.fit(words.as_slice(), now, 9);
        charge.refund(words.as_mut_slice(), charged, now);
        let mut to = state(&rule);
        carry(Fingerprint(1), &rule, words.as_slice(), &rule, to.as_mut_slice(), now);
    }

    /// The enforced rate is never above the published one, and at most 1 % below it.
    #[test]
    fn rounding_never_raises_a_rate(limit in 1..2_000_000_000_u64, window in 1..400 * 86_400 * SECOND) {
        if let Ok(quota) = Quota::new(limit, window, 1, 0) {
            let spent = u128::from(quota.interval()) * u128::from(limit);
            prop_assert!(spent >= u128::from(window));
            prop_assert!(spent * 100 <= u128::from(window) * 101);
        }
    }

    #[test]
    fn no_text_makes_the_quota_parser_panic(text in ".{0,40}") {
        let _ = text.parse::<Quota>();
        let _ = tollgate_core::parse_duration(&text);
    }
}

/// Two keys with jittered edges flip at different times, each once a window.
#[test]
fn jittered_edges_differ_by_key_and_keep_the_window() {
    let rule = Rule::new("10/1m".parse().unwrap(), Algorithm::FixedWindow).unwrap().with_jittered_edges(true);
    let minute = 60 * SECOND;
    let mut flips = Vec::new();
    for key in 0..50_u128 {
        let charge = charge(&rule, key.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835), 10);
        let mut cell = [0];
        charge.decide(&mut cell, START);
        let Verdict::Refuse { retry_after } = charge.decide(&mut cell, START).verdict else {
            panic!("the window is spent");
        };
        assert!(retry_after <= minute);
        assert!(charge.decide(&mut cell, START + retry_after).verdict.is_admit());
        let Verdict::Refuse { retry_after: next } = charge.decide(&mut cell, START + retry_after).verdict
        else {
            panic!("the window is spent");
        };
        assert_eq!(next, minute);
        flips.push(retry_after);
    }
    flips.sort_unstable();
    flips.dedup();
    assert!(flips.len() >= 49, "{} distinct flips", flips.len());
}

#[test]
fn burst_is_a_table_in_the_documentation() {
    let at_once = |text: &str, algorithm| {
        let rule = Rule::new(text.parse().unwrap(), algorithm).unwrap();
        let mut words = state(&rule);
        (0..1_000)
            .filter(|_| charge(&rule, 1, 1).decide(words.as_mut_slice(), START).verdict.is_admit())
            .count()
    };
    assert_eq!(at_once("100/1m", Algorithm::Gcra), 100);
    assert_eq!(at_once("100/1m burst 20", Algorithm::Gcra), 20);
    assert_eq!(at_once("100/1m burst 1", Algorithm::TokenBucket), 1);
    assert_eq!(at_once("100/1m", Algorithm::LeakyMeter), 1);
    assert_eq!(at_once("100/1m burst 20 queue 5", Algorithm::LeakyQueue), 25);
    assert_eq!(at_once("100/1m", Algorithm::FixedWindow), 100);
    assert_eq!(at_once("100/1m", Algorithm::SlidingCounter), 100);
    assert_eq!(at_once("100/1m", Algorithm::SlidingLog), 100);
}

#[test]
fn a_quota_and_an_algorithm_that_do_not_fit_are_refused() {
    let build = |text: &str, algorithm| Rule::new(text.parse().unwrap(), algorithm).map(|_| ());
    use tollgate_core::RuleError as E;
    assert_eq!(build("10/s burst 3", Algorithm::LeakyMeter), Err(E::MeterBurst));
    assert_eq!(build("10/s burst 3", Algorithm::FixedWindow), Err(E::WindowBurst));
    assert_eq!(build("10/s burst 3", Algorithm::SlidingLog), Err(E::WindowBurst));
    assert_eq!(build("10/s queue 3", Algorithm::Gcra), Err(E::NoQueue));
    assert_eq!(build("4097/h", Algorithm::SlidingLog), Err(E::LogTooLong));
    assert_eq!(build("10/10ns", Algorithm::FixedWindow), Err(E::WindowTooShort));
}

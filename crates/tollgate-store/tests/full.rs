//! What happens when a table is full: nobody gets a free pass, and nothing grows.

use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND, Verdict};
use tollgate_harness::Admissions;
use tollgate_store::{Demand, Intent, Memory, Rules, Table, WhenFull};

const START: u64 = 1_800_057_600 * SECOND;

fn key(number: u64) -> Fingerprint {
    // A mixer of its own for each half, so that neighbours land far apart.
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    Fingerprint((u128::from(mix(number)) << 64) | u128::from(mix(number ^ 0xABCD_EF01_2345)))
}

fn rule(text: &str, algorithm: Algorithm) -> Rule {
    Rule::new(text.parse::<Quota>().unwrap(), algorithm).unwrap()
}

fn table(rule: &Rule, keys: usize, when_full: WhenFull) -> Memory {
    Memory::new([Table::new(keys, rule.words(), when_full)])
}

fn ask(memory: &Memory, rule: &Rule, number: u64, cost: u64, now: u64) -> Verdict {
    memory.check(&Charge { policy: 0, key: key(number), rule, cost, spare: 0 }, now).unwrap().verdict
}

/// 50 keys are limited; a flood of new keys comes; the 50 are asked again and again.
fn flooded(when_full: WhenFull, algorithm: Algorithm) -> (Memory, Vec<Admissions>, Rule) {
    let rule = rule("10/1m", algorithm);
    let memory = table(&rule, 1_000, when_full);
    let mut admissions = vec![Admissions::new(); 50];
    let mut now = START;
    for round in 0..300_u64 {
        for (number, log) in admissions.iter_mut().enumerate() {
            if ask(&memory, &rule, number as u64, 1, now).is_admit() {
                log.push(now, 1);
            }
        }
        for other in 0..100 {
            ask(&memory, &rule, 1_000 + round * 100 + other, 1, now);
        }
        now += SECOND / 2;
    }
    (memory, admissions, rule)
}

#[test]
fn a_flood_of_invented_keys_loosens_no_limit_under_share_and_refuse() {
    for algorithm in
        [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::SlidingLog]
    {
        for when_full in [WhenFull::Share, WhenFull::Refuse] {
            let (memory, admissions, rule) = flooded(when_full, algorithm);
            for log in &admissions {
                assert_eq!(log.breach(&rule), None, "{when_full}, {algorithm}");
                assert!(log.total() > 0, "{when_full}, {algorithm}: shut out");
            }
            let events = memory.table(0).unwrap().events();
            let counted = if when_full == WhenFull::Share { events.shared } else { events.refused };
            assert!(counted > 1_000, "{when_full}, {algorithm}: {events:?}");
            assert_eq!(events.evicted, 0);
        }
    }
}

#[test]
fn under_evict_a_limit_loosens_only_as_often_as_counted() {
    let (memory, admissions, rule) = flooded(WhenFull::Evict, Algorithm::Gcra);
    let events = memory.table(0).unwrap().events();
    let allowed = rule.bound().at(150 * SECOND);
    let over: u64 = admissions.iter().map(|log| log.total().saturating_sub(allowed)).sum();
    assert!(events.evicted > 1_000 && (events.shared, events.refused) == (0, 0), "{events:?}");
    assert!(over <= events.evicted * rule.capacity(), "{over} over, {} evictions", events.evicted);
}

/// A key that had to share, and then finds a slot of its own, brings its debt along.
#[test]
fn a_key_that_shared_gets_no_second_allowance_with_its_own_slot() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        let short = rule("1/1s", algorithm);
        let long = rule("8/1h", algorithm);
        let memory = Memory::new([Table::new(1, long.words().max(short.words()), WhenFull::Share)]);
        // Fourteen slots in all; fill them with keys that will soon be spent.
        let full = (0..200).filter(|n| ask(&memory, &short, 1_000 + n, 1, START).is_admit()).count();
        assert!(full >= 14, "{full}");
        let spent = (0..20).filter(|_| ask(&memory, &long, 7, 1, START).is_admit()).count();
        let later = START + 10 * SECOND;
        let again = (0..20).filter(|_| ask(&memory, &long, 7, 1, later).is_admit()).count();
        assert!(spent + again <= 8, "{algorithm}: {spent} shared, then {again} more");
    }
}

/// Keys whose window edges differ share states: none of them is admitted above its bound.
#[test]
fn keys_with_edges_of_their_own_share_without_exceeding() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        let rule = rule("10/1m", algorithm).with_jittered_edges(true);
        let memory = table(&rule, 1, WhenFull::Share);
        // Fill every slot for good, then let thirty keys share what is left.
        (0..200).for_each(|n| _ = ask(&memory, &rule, 1_000 + n, 1, START));
        let mut admissions = vec![Admissions::new(); 30];
        for step in 0..1_200_u64 {
            let now = START + step * SECOND / 4;
            (0..14).for_each(|n| _ = ask(&memory, &rule, 1_000 + n, 1, now));
            let number = (step * 7) % 30;
            if ask(&memory, &rule, number, 1 + step % 2, now).is_admit() {
                admissions[usize::try_from(number).unwrap()].push(now, 1 + step % 2);
            }
        }
        assert!(memory.table(0).unwrap().events().shared > 10, "{algorithm}");
        assert!(admissions.iter().all(|log| log.breach(&rule).is_none()), "{algorithm}");
    }
}

/// New keys of one demand in one full bucket: the one that shares must not spoil the state that another starts from.
#[test]
fn a_demand_that_shares_and_takes_a_slot_charges_both() {
    let small = rule("10/1h", Algorithm::Gcra);
    for round in 0..200_u64 {
        let memory = table(&small, 8, WhenFull::Share);
        (0..round % 40).for_each(|n| _ = ask(&memory, &small, 5_000 + n, 1, START));
        let mut demand = Demand::new();
        for number in 0..4 {
            demand
                .push(Charge {
                    policy: 0,
                    key: key(round * 10 + number),
                    rule: &small,
                    cost: 1 + number,
                    spare: 0,
                })
                .unwrap();
        }
        let before = look(&memory, &demand);
        if memory.decide(&demand, START).unwrap().is_admit() {
            let after = look(&memory, &demand);
            for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                assert!(before - after > index as u64, "round {round}: {before} to {after}");
            }
        }
    }
}

#[test]
fn refuse_says_when_a_slot_may_be_free() {
    let rule = rule("1/10s", Algorithm::Gcra);
    let memory = table(&rule, 1, WhenFull::Refuse);
    let verdicts: Vec<Verdict> = (0..50).map(|n| ask(&memory, &rule, n, 1, START)).collect();
    let Some(Verdict::Full { retry_after }) = verdicts.iter().find(|v| !v.is_admit()) else {
        panic!("fourteen slots took fifty keys: {verdicts:?}");
    };
    assert_eq!(*retry_after, 10 * SECOND);
    assert!((100..114).all(|n| ask(&memory, &rule, n, 1, START + 10 * SECOND).is_admit()));
}

#[test]
fn a_table_holds_the_keys_that_it_was_built_for() {
    let rule = rule("10/1h", Algorithm::Gcra);
    let keys = 200_000;
    let memory = table(&rule, keys, WhenFull::Evict);
    for number in 0..keys as u64 {
        assert!(ask(&memory, &rule, number, 1, START).is_admit());
    }
    let evicted = memory.table(0).unwrap().events().evicted;
    assert!(evicted * 5_000 <= keys as u64, "{evicted} of {keys} keys met two full buckets");
    let bytes = Table::bytes_for(keys, rule.words()) as f64 / keys as f64;
    assert!(bytes < 30.0, "{bytes} bytes a key");
}

/// A demand whose keys all fall into one full bucket never counts two of them in one place.
#[test]
fn keys_of_one_demand_never_take_one_place() {
    for when_full in [WhenFull::Evict, WhenFull::Share, WhenFull::Refuse] {
        let rule = rule("3/1m", Algorithm::Gcra);
        let memory = table(&rule, 1, when_full);
        for round in 0..60_u64 {
            let mut demand = Demand::new();
            for number in 0..6 {
                let key = key((round * 3 + number) % 23);
                demand.push(Charge { policy: 0, key, rule: &rule, cost: 1, spare: 0 }).unwrap();
            }
            let before: Vec<u64> = look(&memory, &demand);
            let answer = memory.decide(&demand, START).unwrap();
            if !answer.is_admit() {
                assert_eq!(look(&memory, &demand), before, "{when_full}: refused, yet charged");
            } else if when_full == WhenFull::Refuse {
                let after: Vec<u64> = before.iter().map(|left| left - 1).collect();
                assert_eq!(look(&memory, &demand), after, "{when_full}: charged other than once each");
            }
        }
    }
}

fn look(memory: &Memory, demand: &Demand<'_>) -> Vec<u64> {
    let look = |charge: &Charge<'_>| memory.check(&Charge { cost: 0, ..*charge }, START).unwrap().remaining;
    demand.charges().iter().map(look).collect()
}

struct Change(Rule, Rule);
impl Rules for Change {
    fn of(&self, _: Option<u64>) -> (&Rule, &Rule) {
        (&self.0, &self.1)
    }
}

#[test]
fn a_changed_rule_applies_at_once_to_every_key_and_keeps_what_was_used() {
    let old = rule("5/1h", Algorithm::Gcra);
    for new in [
        rule("10/1h", Algorithm::Gcra),
        rule("8/1m", Algorithm::SlidingLog),
        rule("7/1m", Algorithm::SlidingCounter),
    ] {
        let memory = table(&old, 500, WhenFull::Share);
        for number in 0..300 {
            (0..number % 6).for_each(|_| assert!(ask(&memory, &old, number, 1, START).is_admit()));
        }
        let copy = memory.table(0).unwrap().carry(new.words(), WhenFull::Share, &Change(old, new), START);
        assert_eq!(forget(&memory, &old, key(1)), Err(tollgate_store::Moved));
        let charge = Charge { policy: 0, key: key(1), rule: &old, cost: 1, spare: 0 };
        assert_eq!(
            memory.check(&charge, START),
            Err(tollgate_store::Moved),
            "nothing is charged to a table that moved"
        );
        let after = Memory::new([copy]);
        for number in 0..300 {
            let left = (0..20).filter(|_| ask(&after, &new, number, 1, START).is_admit()).count() as u64;
            assert_eq!(left, new.capacity() - number % 6, "{new:?}");
        }
    }
}

fn forget(memory: &Memory, rule: &Rule, key: Fingerprint) -> Result<u64, tollgate_store::Moved> {
    let demand = Demand::of(Charge { policy: 0, key, rule, cost: 1, spare: 0 }).to(Intent::Forget);
    memory.decide(&demand, START).map(|answer| answer.admitted)
}

#[test]
fn a_forgotten_key_is_new() {
    let rule = rule("5/1h", Algorithm::SlidingCounter);
    let memory = table(&rule, 10, WhenFull::Share);
    assert_eq!(forget(&memory, &rule, key(1)), Ok(0));
    assert!(ask(&memory, &rule, 1, 5, START).is_admit());
    assert!(!ask(&memory, &rule, 1, 1, START).is_admit());
    assert_eq!(forget(&memory, &rule, key(1)), Ok(1));
    assert!(ask(&memory, &rule, 1, 5, START).is_admit());
}

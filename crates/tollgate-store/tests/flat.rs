//! Memory stays flat: 50 million distinct keys through a table built for one million.

use tollgate_core::{Algorithm, Charge, Fingerprint, Quota, Rule, SECOND};
use tollgate_harness::Admissions;
use tollgate_store::{Memory, Table, WhenFull};

const START: u64 = 1_800_057_600 * SECOND;

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// `keys` invented keys over a minute of virtual time, beside one key that is asked throughout.
fn flood(when_full: WhenFull, keys: u64) -> (Admissions, tollgate_store::Events) {
    let rule = Rule::new("10/1m".parse::<Quota>().unwrap(), Algorithm::Gcra).unwrap();
    let memory = Memory::new([Table::new(1_000_000, rule.words(), when_full)]);
    let mut honest = Admissions::new();
    let mut mixed = 0x1234_5678_9ABC_DEF0_u128;
    let mut touched = 0;
    for number in 0..keys {
        mixed = mixed.wrapping_mul(0xDA94_2042_E4DD_58B5_1234_5678_9ABC_DEF1).wrapping_add(0x9E37_79B9);
        let now = START + number * 60 * SECOND / keys;
        let invented = Charge { policy: 0, key: Fingerprint(mixed), rule: &rule, cost: 10, spare: 0 };
        memory.check(&invented, now).unwrap();
        if number == 3_000_000 {
            touched = resident();
        }
        if number % 1_000 == 0 {
            let known =
                Charge { key: Fingerprint(0xABCD_EF01_2345_6789_ABCD_EF01_2345_6789), cost: 1, ..invented };
            if memory.check(&known, now).unwrap().verdict.is_admit() {
                honest.push(now, 1);
            }
        }
    }
    let now = resident();
    assert!(now.abs_diff(touched) * 10 <= touched, "{when_full}: {touched} bytes grew to {now}");
    if when_full != WhenFull::Evict {
        assert_eq!(honest.breach(&rule), None, "{when_full}");
        assert!((19..=20).contains(&honest.total()), "{when_full}: {} admitted", honest.total());
    }
    (honest, memory.table(0).unwrap().events())
}

#[test]
fn fifty_million_keys_leave_memory_flat_and_limits_in_force() {
    let (_, events) = flood(WhenFull::Share, 50_000_000);
    assert!(events.shared > 0 && events.evicted == 0, "{events:?}");
    let (_, events) = flood(WhenFull::Refuse, 10_000_000);
    assert!(events.refused > 1_000_000 && events.evicted == 0, "{events:?}");
    let (honest, events) = flood(WhenFull::Evict, 10_000_000);
    assert!(events.evicted > 1_000_000 && events.shared + events.refused == 0, "{events:?}");
    assert!(honest.total() <= 20 + 10 * events.evicted);
}

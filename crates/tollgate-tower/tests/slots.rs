//! Slots: taken and given back, also by those that nobody polls any more.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Clock, SECOND};
use tollgate_tower::shed::{LEASE, Shed};

#[test]
fn a_slot_that_is_held_for_too_long_is_given_back_once_whatever_holds_it() {
    let clock = Clock::manual(SECOND);
    let shed = Shed::fixed(3, Duration::from_secs(60), clock.clone());
    let stuck: Vec<_> = (0..3).map(|_| shed.enter(0).unwrap()).collect();
    clock.set(50 * SECOND);
    assert!(shed.enter(0).is_none() && !shed.has_room(0));
    clock.set(62 * SECOND);
    assert!(shed.has_room(0));
    let next: Vec<_> = (0..3).map(|_| shed.enter(0).unwrap()).collect();
    assert_eq!(shed.under_way(), 3);
    drop(stuck);
    assert_eq!(shed.under_way(), 3, "it was given back already");
    drop(next);
    assert_eq!((shed.under_way(), shed.turned_away()), (0, 1));
}

#[test]
fn many_threads_take_no_more_than_there_are_and_give_all_back() {
    let shed = Shed::fixed(10, LEASE, Clock::system());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let shed = &shed;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    if random.bool() {
                        held.extend(shed.enter(0));
                    } else if !held.is_empty() {
                        held.swap_remove(random.usize(0..held.len()));
                    }
                    assert!(shed.under_way() <= 10);
                }
            });
        }
    });
    assert_eq!(shed.under_way(), 0);
}

#[test]
fn the_first_class_has_all_and_each_other_a_tenth_less() {
    let shed = Shed::fixed(20, LEASE, Clock::manual(0));
    assert_eq!([0, 1, 2, 7, 100].map(|class| shed.share(class)), [20, 18, 16, 6, 6]);
    assert_eq!(Shed::fixed(1, LEASE, Clock::manual(0)).share(5), 1);
    let held: Vec<_> = (0..18).map(|_| shed.enter(1).unwrap()).collect();
    assert!(shed.enter(1).is_none() && shed.enter(0).is_some());
    drop(held);
}

/// Of a limit of one nobody begins in a crowd, and it grows all the same.
#[test]
fn a_limit_of_one_is_not_stuck() {
    let clock = Clock::manual(SECOND);
    let shed = Shed::adaptive(1, 1, 100, LEASE, clock.clone());
    for n in 0..2_000_u64 {
        let slots: Vec<_> = (0..4).filter_map(|_| shed.enter(0)).collect();
        clock.set(SECOND + n * 10_000_000);
        slots.iter().for_each(|slot| slot.answered());
    }
    assert!(shed.limit() >= 4, "{}", shed.limit());
}

/// What a client takes to send is not the origin's slowness, and an answer to half a request says nothing.
#[test]
fn the_time_that_a_body_takes_is_not_counted() {
    let clock = Clock::manual(SECOND);
    let shed = Shed::adaptive(4, 20, 100, LEASE, clock.clone());
    let mut now = SECOND;
    let mut ask = |shed: &Arc<Shed>, upload: u64| {
        let slots: Vec<_> = (0..20).filter_map(|_| shed.enter(0)).collect();
        let sent: Vec<_> = slots.iter().map(|slot| slot.sending()).collect();
        now += upload;
        clock.set(now);
        slots.iter().for_each(|slot| slot.answered());
        sent.into_iter().for_each(|sent| sent());
        now += 10_000_000;
        clock.set(now);
        slots.iter().for_each(|slot| slot.answered());
    };
    (0..50).for_each(|_| ask(&shed, 0));
    let before = shed.limit();
    (0..50).for_each(|_| ask(&shed, SECOND));
    assert!(shed.limit() >= before, "{before} became {}", shed.limit());
}

//! The laws that need real threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate_store::Store;

use super::{Make, each_rule};
use crate::Scene;
use crate::scene::{START, rules};

/// 1, 2 and 64 threads that ask for twice the limit at once get the limit, in ones and in mixed costs.
pub fn many_threads_admit_exactly_the_limit<S: Store>(make: &impl Make<S>) {
    for (threads, burst) in [(1, 100), (2, 100), (64, 320)] {
        each_rule(make, burst, |scene| {
            let capacity = scene.rule().capacity();
            let each = (2 * burst).div_ceil(threads);
            let (ones, mixed) = (AtomicU64::new(0), AtomicU64::new(0));
            let ask = |seed| {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..each {
                    if scene.admits(1, 1, START) {
                        ones.fetch_add(1, Ordering::Relaxed);
                    }
                    let cost = random.u64(1..=3).min(capacity);
                    if scene.admits(2, cost, START) {
                        mixed.fetch_add(cost, Ordering::Relaxed);
                    }
                }
                // The rest in ones, so that the mixed costs come out even.
                for _ in 0..capacity {
                    mixed.fetch_add(u64::from(scene.admits(2, 1, START)), Ordering::Relaxed);
                }
            };
            thread::scope(|scope| (0..threads).for_each(|seed| drop(scope.spawn(move || ask(seed)))));
            assert_eq!(ones.into_inner(), capacity, "{threads} threads, {:?}", scene.rule());
            assert_eq!(mixed.into_inner(), capacity, "{threads} threads, mixed, {:?}", scene.rule());
        });
    }
}

/// Threads whose demands name the same keys in opposite order end, and admit exactly what fits.
pub fn crossing_demands_neither_deadlock_nor_exceed<S: Store>(make: &impl Make<S>) {
    for rule in rules(200) {
        let scene = Scene::new(make, vec![rule, rule]);
        let admitted = AtomicU64::new(0);
        let ask = |order: bool| {
            for _ in 0..400 {
                let mut demand = [(0, 1, 1), (1, 1, 1), (0, 2, 1)];
                if order {
                    demand.reverse();
                }
                admitted.fetch_add(scene.decide(&demand, START).admitted, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| (0..8).for_each(|n| drop(scope.spawn(move || ask(n % 2 == 0)))));
        assert_eq!(admitted.into_inner(), rule.capacity(), "{rule:?}");
        for (policy, key) in [(0, 1), (1, 1), (0, 2)] {
            assert_eq!(scene.decide(&[(policy, key, 0)], START).outcomes()[0].remaining, 0);
        }
    }
}

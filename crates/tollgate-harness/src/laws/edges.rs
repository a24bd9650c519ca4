//! For stores that compute elsewhere, in numbers of their own.

use tollgate_core::{Algorithm, Quota, Rule, SECOND};
use tollgate_store::Store;

use super::Make;
use crate::Scene;

/// Outcome for outcome what the core says, at the longest windows, the shortest intervals and the largest limits.
pub fn numbers_are_exact_at_the_edges<S: Store>(make: &impl Make<S>, quotas: &[(&str, Algorithm)]) {
    for (text, algorithm) in quotas {
        let quota: Quota = text.parse().expect("a quota");
        let rule = Rule::new(quota, *algorithm).expect("a rule");
        let (scene, mut words) = (Scene::new(make, vec![rule]), vec![0; rule.words()]);
        let mut random = fastrand::Rng::with_seed(3);
        let mut now = 1_800_057_600_123_456_789;
        for step in 0..200 {
            let capacity = rule.capacity();
            let cost = match random.u8(0..4) {
                0 => 1,
                2 if *algorithm != Algorithm::SlidingLog => random.u64(1..=capacity),
                _ => random.u64(1..=capacity.min(5)),
            };
            let charge = scene.as_charge((0, 1, cost));
            let here = charge.decide(words.as_mut_slice(), now);
            assert_eq!(scene.charge(1, cost, now), here, "{text} {algorithm}, step {step}, cost {cost}");
            now += match random.u8(0..3) {
                0 => random.u64(0..3),
                1 => random.u64(0..rule.memory().min(400 * 86_400 * SECOND)),
                _ => random.u64(0..rule.quota().interval() * 3),
            };
        }
    }
}

//! Charges that ask for more to be there than they take.

use tollgate_core::{SECOND, Verdict};
use tollgate_store::Store;

use super::{Make, each_rule, seeds};
use crate::Model;
use crate::scene::START;

/// A charge that asks for units beyond its cost is admitted exactly when all of them are there, and takes its cost. With cost 0
/// it takes nothing and still says when they are there.
pub fn spare_units_must_be_there_and_are_not_taken<S: Store>(make: &impl Make<S>) {
    for seed in seeds() {
        each_rule(make, 6, |scene| {
            let capacity = scene.rule().capacity();
            let mut model = Model::new(*scene.rule());
            let mut random = fastrand::Rng::with_seed(seed);
            let mut now = START + random.u64(0..SECOND);
            for step in 0..150 {
                let (cost, spare) = (random.u64(0..=2), random.u64(0..=capacity));
                let times = random.u64(1..=3);
                let left = model.remaining(now);
                let fits = match (left.checked_sub(spare), cost) {
                    _ if cost + spare == 0 => times,
                    (None, _) => 0,
                    (Some(_), 0) => times,
                    (Some(room), cost) => (room / cost).min(times),
                };
                let answer = scene.sparing(1, (cost, spare), times, now);
                let place = format!(
                    "{cost} and {spare} spare of {left}, step {step}, seed {seed}, {:?}",
                    scene.rule()
                );
                assert_eq!(answer.admitted, fits, "{place}");
                (0..fits).for_each(|_| assert!(model.decide(now, cost)));
                let outcome = answer.outcomes()[0];
                assert_eq!(outcome.remaining, model.remaining(now), "{place}");
                match outcome.verdict {
                    Verdict::Admit { .. } => assert_eq!(fits, times, "{place}"),
                    Verdict::Never => assert!(cost + spare > capacity, "{place}"),
                    Verdict::Refuse { retry_after } => {
                        let then = now + retry_after;
                        let needed = cost + spare;
                        assert!(
                            model.remaining(then) >= needed && model.remaining(then - 1) < needed,
                            "{place}"
                        );
                    }
                    other => panic!("{other:?}, {place}"),
                }
                now += random.u64(0..SECOND / 4);
            }
        });
    }
}

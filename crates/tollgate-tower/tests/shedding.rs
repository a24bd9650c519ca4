//! The adaptive limit before origins of several tempers, in virtual time; and that no slot is ever lost.
#![allow(clippy::cast_possible_truncation, reason = "a simulation's times are small")]

use std::cmp::Reverse;

use std::collections::BinaryHeap;

use tollgate_tower::shed::Adaptive;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A number between 0 and 1 that is drawn like the logarithm of waiting times.
fn exponential(random: &mut fastrand::Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

/// An origin that serves so many at full speed, and beyond that slows down in proportion.
struct Origin {
    workers: f64,
    service: fn(&mut fastrand::Rng) -> f64,
}

#[derive(Default, Debug)]
struct Outcome {
    /// When each began, and how long it took, in nanoseconds.
    admitted: Vec<(u64, u64)>,
    shed: usize,
    /// Its time and the limit.
    limits: Vec<(u64, usize)>,
}

impl Outcome {
    fn percentile(&self, from: u64, to: u64, percent: usize) -> u64 {
        let mut took: Vec<u64> =
            self.admitted.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, took)| *took).collect();
        took.sort_unstable();
        assert!(took.len() > 50, "{} answers", took.len());
        took[(took.len() * percent / 100).min(took.len() - 1)]
    }

    /// How many of those that began then were answered within so long.
    fn in_time(&self, from: u64, to: u64, most: u64) -> usize {
        self.admitted.iter().filter(|(at, took)| (from..to).contains(at) && *took <= most).count()
    }

    fn limit_between(&self, from: u64, to: u64) -> (usize, usize) {
        let limits = || self.limits.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, limit)| *limit);
        (limits().min().unwrap(), limits().max().unwrap())
    }
}

/// Requests at `rate(now)` a second for so long, before an origin whose pace is `slow(now)` times as slow. Jobs share the workers
/// evenly: what is left of each shrinks by the pace of the moment.
fn run(
    mut adaptive: Option<Adaptive>,
    origin: &Origin,
    length: u64,
    rate: impl Fn(u64) -> f64,
    slow: impl Fn(u64) -> f64,
) -> Outcome {
    let mut random = fastrand::Rng::with_seed(7);
    let mut outcome = Outcome::default();
    // Work that everybody under way has been given by now, so that a job ends when this reaches its own mark.
    let (mut given, mut now) = (0.0_f64, 0_u64);
    let mut jobs: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    let mut next = 0_u64;
    while now < length {
        let pace = (origin.workers / jobs.len().max(1) as f64).min(1.0) / slow(now);
        let ends =
            jobs.peek().map(|Reverse((mark, ..))| now + (((*mark as f64 - given).max(0.0) / pace) as u64));
        // In steps, for the pace may change with time.
        let then = next.min(ends.unwrap_or(u64::MAX)).min(now + 5 * MS).max(now);
        given += (then - now) as f64 * pace;
        now = then;
        if ends.is_some_and(|ends| ends <= now) {
            let Some(Reverse((_, began, crowd))) = jobs.pop() else { continue };
            outcome.admitted.push((began, now - began));
            if let Some(adaptive) = &mut adaptive {
                adaptive.answered(now - began, crowd, now);
                outcome.limits.push((now, adaptive.limit()));
            }
        }
        if next <= now {
            next = now + (exponential(&mut random) / rate(now) * SECOND as f64) as u64;
            if adaptive.as_ref().is_some_and(|adaptive| jobs.len() >= adaptive.limit()) {
                outcome.shed += 1;
                continue;
            }
            let work = (origin.service)(&mut random) * MS as f64;
            jobs.push(Reverse(((given + work) as u64, now, jobs.len() + 1)));
        }
    }
    outcome
}

fn adaptive() -> Option<Adaptive> {
    Some(Adaptive::new(4, 20, 1_000, 0))
}

const STEADY: Origin = Origin { workers: 8.0, service: |random| 9.0 + 2.0 * random.f64() };
const NOISY: Origin = Origin { workers: 8.0, service: |random| 1.0 + 9.0 * exponential(random) };

#[test]
fn under_ten_times_the_load_the_admitted_are_served_in_time_and_without_it_nobody_is() {
    // 800 a second are what it can do; from 10 s to 30 s come 8,000.
    let rate = |now| if (10 * SECOND..30 * SECOND).contains(&now) { 8_000.0 } else { 400.0 };
    for origin in [STEADY, NOISY] {
        let shedding = run(adaptive(), &origin, 60 * SECOND, rate, |_| 1.0);
        let unloaded = shedding.percentile(0, 10 * SECOND, 99);
        let loaded = shedding.percentile(12 * SECOND, 30 * SECOND, 99);
        assert!(loaded <= 3 * unloaded, "{loaded} of {unloaded}");
        let goodput = shedding.in_time(12 * SECOND, 30 * SECOND, 3 * unloaded);
        assert!(goodput > 18 * 800 * 85 / 100, "{goodput} served in time while it was overloaded");
        let after = shedding.percentile(40 * SECOND, 60 * SECOND, 99);
        assert!(after <= unloaded * 3 / 2, "{after} of {unloaded} ten seconds later");
        let without = run(None, &origin, 60 * SECOND, rate, |_| 1.0);
        let collapsed = without.in_time(12 * SECOND, 30 * SECOND, 3 * unloaded);
        assert!(collapsed < goodput / 50, "{collapsed} of {goodput}");
    }
}

#[test]
fn an_origin_that_becomes_ten_times_as_slow_is_given_less_and_all_of_it_back_when_it_recovers() {
    let slow = |now| if (20 * SECOND..60 * SECOND).contains(&now) { 10.0 } else { 1.0 };
    for origin in [STEADY, NOISY] {
        let run = run(adaptive(), &origin, 100 * SECOND, |_| 500.0, slow);
        // It serves 80 a second then; without a limit 420 more would wait with each second.
        let under_way = run.limit_between(25 * SECOND, 60 * SECOND);
        assert!(under_way.1 <= 40, "{under_way:?}");
        let within = |from, to| run.admitted.iter().filter(|(at, _)| (from..to).contains(at)).count();
        assert!(within(30 * SECOND, 60 * SECOND) > 30 * 80 * 3 / 4, "what it can do it does");
        let recovered = within(70 * SECOND, 100 * SECOND);
        assert!(
            recovered > 30 * 500 * 97 / 100,
            "{recovered} of {} ten seconds after it recovered",
            30 * 500
        );
    }
}

#[test]
fn ten_minutes_of_light_load_move_nothing() {
    for (origin, rate) in [(STEADY, 20.0), (STEADY, 200.0), (NOISY, 20.0), (NOISY, 200.0)] {
        let run = run(adaptive(), &origin, 600 * SECOND, |_| rate, |_| 1.0);
        assert_eq!(run.limit_between(0, 600 * SECOND), (20, 20), "at {rate}/s");
        assert_eq!(run.shed, 0, "at {rate}/s");
    }
}

/// Six in ten of what it can do, with service times that are all over the place.
#[test]
fn ten_minutes_of_fair_load_stay_clear_of_the_floor() {
    let run = run(adaptive(), &NOISY, 600 * SECOND, |_| 500.0, |_| 1.0);
    let (least, most) = run.limit_between(0, 600 * SECOND);
    assert!(least > 6, "from {least} to {most}");
    assert!(run.shed * 200 < run.admitted.len(), "{} shed of {}", run.shed, run.admitted.len());
}

#[test]
fn an_hour_of_overload_ratchets_nothing_up() {
    let run = run(adaptive(), &NOISY, 3_600 * SECOND, |_| 1_600.0, |_| 1.0);
    let early = run.percentile(20 * SECOND, 120 * SECOND, 99);
    let late = run.percentile(3_500 * SECOND, 3_600 * SECOND, 99);
    assert!(late < early * 3 / 2, "{early} became {late}");
    let served = run.admitted.len() as u64;
    assert!(served > 3_600 * 800 * 85 / 100, "{served}");
}

#[test]
fn a_service_that_is_slower_for_good_is_believed_in_time() {
    let run =
        run(adaptive(), &NOISY, 400 * SECOND, |_| 200.0, |now| if now > 100 * SECOND { 3.0 } else { 1.0 });
    // 267 a second are what it can do then, so nobody need be shed.
    let late = run.admitted.iter().filter(|(at, _)| *at > 300 * SECOND).count();
    assert!(late > 100 * 200 * 95 / 100, "{late} of 20,000");
}

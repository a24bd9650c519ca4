//! A store, its rules, and the few verbs that laws are written in.

use tollgate_core::{Algorithm, Charge, Fingerprint, Outcome, Quota, Rule};
use tollgate_store::{Answer, Demand, Intent, Store};

/// Midnight, some day: an edge of every window that laws use.
pub(crate) const START: u64 = 1_800_057_600 * tollgate_core::SECOND;

/// A store under test, with policy `n` under rule `n`.
#[derive(Debug)]
pub struct Scene<S> {
    store: S,
    rules: Vec<Rule>,
}

impl<S: Store> Scene<S> {
    /// Builds the store for `rules`.
    pub fn new(make: &impl Fn(&[Rule]) -> S, rules: Vec<Rule>) -> Self {
        Scene { store: make(&rules), rules }
    }

    /// The rule of policy 0.
    pub fn rule(&self) -> &Rule {
        &self.rules[0]
    }

    /// One charge of `key` under policy 0.
    pub fn charge(&self, key: u64, cost: u64, now: u64) -> Outcome {
        self.decide(&[(0, key, cost)], now).outcomes()[0]
    }

    /// Units that `key` has left under policy 0.
    pub fn remaining(&self, key: u64, now: u64) -> u64 {
        self.charge(key, 0, now).remaining
    }

    /// Whether one charge was admitted.
    pub fn admits(&self, key: u64, cost: u64, now: u64) -> bool {
        self.charge(key, cost, now).verdict.is_admit()
    }

    /// A demand of (policy, key, cost).
    pub fn decide(&self, charges: &[(u16, u64, u64)], now: u64) -> Answer {
        self.decide_times(charges, 1, now)
    }

    /// A demand, up to `times` times.
    pub fn decide_times(&self, charges: &[(u16, u64, u64)], times: u64, now: u64) -> Answer {
        self.ask(charges, Intent::Take { times }, now)
    }

    /// A charge as this scene makes it.
    pub fn as_charge(&self, (policy, key, cost): (u16, u64, u64)) -> Charge<'_> {
        let rule = &self.rules[usize::from(policy)];
        Charge { policy, key: fingerprint(policy, key), rule, cost, spare: 0 }
    }

    /// One charge of `key` under policy 0, up to `times` times, each to leave `spare` units over.
    pub fn sparing(&self, key: u64, (cost, spare): (u64, u64), times: u64, now: u64) -> Answer {
        let charge = Charge { spare, ..self.as_charge((0, key, cost)) };
        let demand = Demand::of(charge).times(times);
        pollster::block_on(self.store.decide(&demand, now)).expect("nobody moves a store under test")
    }

    /// A demand for any purpose.
    pub fn ask(&self, charges: &[(u16, u64, u64)], intent: Intent, now: u64) -> Answer {
        let mut demand = Demand::new().to(intent);
        for charge in charges {
            demand.push(self.as_charge(*charge)).expect("laws charge few keys");
        }
        pollster::block_on(self.store.decide(&demand, now)).expect("nobody moves a store under test")
    }
}

/// Spreads small numbers over all bits, as the keyed hash does for real keys.
fn fingerprint(policy: u16, key: u64) -> Fingerprint {
    let mut random = fastrand::Rng::with_seed(key ^ (u64::from(policy) << 48) ^ 0x70_6C_6C_67);
    Fingerprint(random.u128(..))
}

/// A rule for every algorithm, with `burst` units at once from cold and about 100 ms a unit.
pub(crate) fn rules(burst: u64) -> impl Iterator<Item = Rule> {
    Algorithm::ALL.into_iter().filter_map(move |algorithm| rule(algorithm, burst).ok())
}

/// The same for one algorithm.
pub(crate) fn rule(algorithm: Algorithm, burst: u64) -> Result<Rule, tollgate_core::RuleError> {
    const UNIT: u64 = tollgate_core::SECOND / 10;
    let quota = match algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket => Quota::new(10, 10 * UNIT, burst, 0),
        Algorithm::LeakyMeter => Quota::new(10, 10 * UNIT, 1, 0),
        Algorithm::LeakyQueue => Quota::new(10, 10 * UNIT, burst.div_ceil(2), burst / 2),
        Algorithm::FixedWindow | Algorithm::SlidingCounter | Algorithm::SlidingLog => {
            Quota::new(burst, burst * UNIT, burst, 0)
        }
    };
    Rule::new(quota.expect("a valid quota"), algorithm)
}

//! The wrappers around a shared store, in the order that a configuration asks for.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Quota;
#[cfg(any(feature = "postgres", feature = "redis"))]
use tollgate_store::Remote;
use tollgate_store::around::{Now, Wrapper, stack};
use tollgate_store::{Shared, Store, Tally};

use crate::{Clock, Limiter, ReadCap, Stacks};

/// How a shared store is asked.
#[derive(Clone, Debug)]
pub struct Around {
    /// How long a decision may take, with all that it has to wait for.
    pub deadline: Duration,
    /// Which wrappers stand around it, the first outermost: `refusals`, `deadline`, `coalescing` and `breaker`, each at most
    /// once.
    pub order: Vec<&'static str>,
    /// The most units of a lease.
    pub lease: u64,
    /// How often approximate counts are brought in line.
    pub sync: Duration,
    /// How much this instance admits while the store is out of reach, over all policies of class `read`.
    pub read_cap: Quota,
    /// Whether keys of one demand may be on different servers, so that they are asked in turn.
    pub singly: bool,
    /// What measures how long something took.
    pub clock: Clock,
}

/// The wrappers that a configuration may name, in their usual order.
pub const WRAPPERS: [&str; 4] = ["refusals", "deadline", "coalescing", "breaker"];

/// 1,000 a second, 1,000 at once.
#[allow(clippy::panic, reason = "when this is compiled, or never")]
const READ_CAP: Quota = match Quota::per_second(1_000).quota() {
    Ok(quota) => quota,
    Err(_) => panic!("a valid quota"),
};

impl Default for Around {
    fn default() -> Self {
        Around {
            deadline: Duration::from_millis(50),
            order: WRAPPERS.to_vec(),
            lease: 100,
            sync: Duration::from_millis(100),
            read_cap: READ_CAP,
            singly: false,
            clock: Clock::system(),
        }
    }
}

impl Around {
    /// How long one round trip may take: a little less than a decision, so that it is over, and known to have failed, before
    /// whoever waits for it is told.
    pub fn round_trip(&self) -> Duration {
        self.deadline.saturating_sub(self.deadline / 10)
    }

    /// The wrappers of a placement that asks strictly, the first outermost.
    pub fn strict(&self) -> Vec<Wrapper> {
        self.with(None)
    }

    /// The wrappers of the leased placement: leases stand inside coalescing, so that a key is bought for once at a time.
    pub fn leased(&self) -> Vec<Wrapper> {
        self.with(Some(Wrapper::Leases(self.lease)))
    }

    /// The wrappers of the approximate placement.
    pub fn approximate(&self) -> Vec<Wrapper> {
        let mut wrappers = self.with(None);
        wrappers.insert(0, Wrapper::Approximate(self.sync));
        wrappers
    }

    /// The breaker is one for all, and not among these.
    fn with(&self, leases: Option<Wrapper>) -> Vec<Wrapper> {
        let mut wrappers = Vec::new();
        wrappers.extend(self.singly.then_some(Wrapper::Singly));
        for name in &self.order {
            match *name {
                "refusals" => wrappers.push(Wrapper::Refusals),
                "deadline" => wrappers.push(Wrapper::Deadline(self.deadline)),
                "coalescing" => wrappers.push(Wrapper::Coalescing),
                _ => {}
            }
        }
        wrappers.extend(leases);
        wrappers
    }

    fn breaker(&self) -> &[Wrapper] {
        if self.order.contains(&"breaker") { &[Wrapper::Breaker] } else { &[] }
    }
}

impl Stacks {
    /// Wraps a store for each placement. What is given up by one is given up by all: the breaker is shared.
    pub fn around(store: impl Store + 'static, tally: Arc<Tally>, around: &Around) -> Self {
        let clock = around.clock.clone();
        let now: Now = Arc::new(move || clock.now());
        let store = stack(Shared::new(store, tally), around.breaker(), Some(&now));
        Stacks {
            strict: stack(store.clone(), &around.strict(), Some(&now)),
            leased: stack(store.clone(), &around.leased(), Some(&now)),
            approximate: stack(store, &around.approximate(), Some(&now)),
            read_cap: ReadCap::new(around.read_cap),
            deadline: around.deadline,
        }
    }
}

impl<S> Limiter<S> {
    /// Shares the counts of policies with a shared placement on a Redis or Valkey: see
    /// [`Address::parse`](tollgate_store::redis::Address::parse) for its URL. It is connected to when it is needed, and may be
    /// down until then.
    ///
    /// ```
    /// use tollgate::{Limiter, Salt};
    ///
    /// let policies = r#"
    ///     [[policy]]
    ///     name = "api"
    ///     quota = "100/1m"
    ///     placement = "strict"
    /// "#;
    /// // All instances have the same salt, or they would find no key of each other's.
    /// let salt = Salt::from_text("from the environment, say")?;
    /// let limiter = Limiter::salted(policies, salt)?.redis("redis://127.0.0.1:6379")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with the URL.
    #[cfg(feature = "redis")]
    pub fn redis(self, url: &str) -> Result<Self, String> {
        use tollgate_store::redis::{Address, Options, Redis};
        let address = Address::parse(url)?;
        let around =
            Around { singly: address.is_cluster(), clock: self.clock().clone(), ..Around::default() };
        let options =
            Options { salt: Some(self.salt_check()), deadline: around.deadline, ..Options::default() };
        let tally = Arc::new(Tally::default());
        let remote = Remote::new(Redis::new(address, options), around.round_trip(), Arc::clone(&tally));
        Ok(self.store(Stacks::around(remote, tally, &around)))
    }

    /// The same on a PostgreSQL.
    ///
    /// # Errors
    /// What is wrong with the URL.
    #[cfg(feature = "postgres")]
    pub fn postgres(self, url: &str) -> Result<Self, String> {
        use tollgate_store::postgres::{Options, Postgres};
        let around = Around { clock: self.clock().clone(), ..Around::default() };
        let options =
            Options { salt: Some(self.salt_check()), deadline: around.deadline, ..Options::default() };
        let tally = Arc::new(Tally::default());
        let remote = Remote::new(Postgres::new(url, options)?, around.round_trip(), Arc::clone(&tally));
        Ok(self.store(Stacks::around(remote, tally, &around)))
    }
}

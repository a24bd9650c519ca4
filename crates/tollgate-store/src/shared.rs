//! A stack of wrappers around a store that instances share, whatever is in it: one type, to be cloned and kept.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Answer, Demand, Store, Tally, Unanswered};

type Decided<'a> = Pin<Box<dyn Future<Output = Result<Answer, Unanswered>> + Send + 'a>>;

/// A store behind a pointer. One allocation a decision, which a round trip outweighs by far.
trait Boxed: Send + Sync {
    fn decide_boxed<'a>(&'a self, demand: &'a Demand<'_>, now: u64) -> Decided<'a>;
}

impl<S: Store> Boxed for S {
    fn decide_boxed<'a>(&'a self, demand: &'a Demand<'_>, now: u64) -> Decided<'a> {
        Box::pin(self.decide(demand, now))
    }
}

/// Any store, with the tally of its wrappers.
#[derive(Clone)]
pub struct Shared {
    store: Arc<dyn Boxed>,
    tally: Arc<Tally>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl Shared {
    /// This store, whose wrappers count in `tally`.
    pub fn new(store: impl Store + 'static, tally: Arc<Tally>) -> Self {
        Shared { store: Arc::new(store), tally }
    }

    /// Its tally, to be shared by one more wrapper.
    pub fn tally_of(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// What its wrappers did.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Store for Shared {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        self.store.decide_boxed(demand, now).await
    }
}

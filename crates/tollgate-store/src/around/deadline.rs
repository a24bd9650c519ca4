//! A decision has a deadline: whoever waits longer is told that the count is out of reach.

use std::sync::Arc;
use std::time::Duration;

use crate::{Answer, Demand, Store, Tally, Unanswered};

/// A store that is waited for so long and no longer.
#[derive(Debug)]
pub struct Deadline<S> {
    inner: S,
    deadline: Duration,
    tally: Arc<Tally>,
}

impl<S> Deadline<S> {
    /// Waits for `inner` until `deadline`, which includes connecting and whatever else it has to wait for.
    pub const fn new(inner: S, deadline: Duration, tally: Arc<Tally>) -> Self {
        Deadline { inner, deadline, tally }
    }
}

impl<S: Store> Store for Deadline<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let answer = tokio::time::timeout(self.deadline, self.inner.decide(demand, now)).await;
        answer.unwrap_or_else(|_| {
            self.tally.set_trouble(format!("no answer within {:?}", self.deadline));
            Err(Unanswered::Unavailable)
        })
    }
}

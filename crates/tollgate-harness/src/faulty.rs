//! A store that fails: it answers late, or not, or its answer is lost after it has charged.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_store::{Answer, Demand, Store, Unanswered};

/// How often what goes wrong, of 100 decisions each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The question is lost: nothing is charged.
    pub lost_questions: u8,
    /// The answer is lost: what was charged stays so.
    pub lost_answers: u8,
    /// The caller's turn ends between question and answer, some times.
    pub delays: u8,
}

/// A store with faults, from a seed.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
    random: Mutex<fastrand::Rng>,
    decided: AtomicU64,
}

impl<S> Faulty<S> {
    /// `inner`, failing so often.
    pub fn new(inner: S, faults: Faults, seed: u64) -> Self {
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        Faulty { inner, faults, random, decided: AtomicU64::new(0) }
    }

    /// How many questions reached the store.
    pub fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    fn happens(&self, percent: u8) -> bool {
        self.random.lock().unwrap_or_else(std::sync::PoisonError::into_inner).u8(0..100) < percent
    }

    async fn delay(&self) {
        while self.happens(self.faults.delays) {
            tokio::task::yield_now().await;
        }
    }
}

impl<S: Store> Store for Faulty<S> {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        self.delay().await;
        if self.happens(self.faults.lost_questions) {
            return Err(Unanswered::Unavailable);
        }
        self.decided.fetch_add(1, Ordering::Relaxed);
        let answer = self.inner.decide(demand, now).await;
        self.delay().await;
        if self.happens(self.faults.lost_answers) {
            return Err(Unanswered::Unavailable);
        }
        answer
    }
}

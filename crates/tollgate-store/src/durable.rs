//! The durable store: decisions in this process's tables, journalled in SQLite, and no answer before its commit.
//!
//! A crash cannot admit without counting: what was answered is in the file. A refusal needs no commit. On one machine, by
//! one process: the file is locked while it is open.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::journal::{Entry, Journal};
pub use crate::journal::{JournalError, Kept};
use crate::{Answer, Demand, InProcess, Memory, Store, Unanswered};

/// When an answer leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When its charge is on disk.
    #[default]
    Commit,
    /// At once; its charge is on disk a moment later. A crash may forget the last of them.
    Relaxed,
}

/// Counts in this process that outlive it.
#[derive(Clone, Debug)]
pub struct Durable {
    memory: Memory,
    policies: Arc<[Arc<str>]>,
    journal: Arc<Journal>,
    durability: Durability,
}

/// A file that was opened: the journal, what it keeps, and the latest time that it was written at.
#[derive(Debug)]
pub struct Opened {
    journal: Journal,
    /// The states in the file, under the rules that they were written under.
    pub kept: Vec<Kept>,
    /// The high-water mark: time must not begin before it, or keys that are forgotten would be missing.
    pub mark: u64,
}

impl Opened {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// [`JournalError`] when it is locked, corrupt, another program's, or of another version.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let (journal, kept, mark) = Journal::open(path)?;
        Ok(Opened { journal, kept, mark })
    }

    /// The store over these tables, which the caller has filled with what was kept; `policies` are their names.
    pub fn store(
        self,
        memory: Memory,
        policies: impl IntoIterator<Item = String>,
        durability: Durability,
    ) -> Durable {
        let policies = policies.into_iter().map(Arc::from).collect();
        Durable { memory, policies, journal: Arc::new(self.journal), durability }
    }
}

impl Durable {
    fn entries<'d>(&'d self, demand: &'d Demand<'_>) -> impl Iterator<Item = Entry> + 'd {
        demand.charges().iter().filter(|charge| charge.cost > 0).filter_map(|charge| {
            let table = Arc::clone(self.memory.table(charge.policy)?);
            let policy = Arc::clone(self.policies.get(usize::from(charge.policy))?);
            Some(Entry { table, policy, key: charge.key, rule: *charge.rule })
        })
    }
}

impl Store for Durable {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let answer = self.memory.decide(demand, now)?;
        if !answer.is_admit() || demand.charges().iter().all(|charge| charge.cost == 0) {
            return Ok(answer);
        }
        if self.durability == Durability::Relaxed {
            self.journal.write(self.entries(demand), now, None);
            return Ok(answer);
        }
        let (waiter, written) = oneshot::channel();
        self.journal.write(self.entries(demand), now, Some(waiter));
        written.await.unwrap_or(Err(Unanswered::Unavailable)).map(|()| answer)
    }
}

impl InProcess for Durable {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn over(&self, memory: Memory, policies: &[&str]) -> Self {
        let policies = policies.iter().map(|name| Arc::from(*name)).collect();
        Durable { memory, policies, journal: Arc::clone(&self.journal), durability: self.durability }
    }
}

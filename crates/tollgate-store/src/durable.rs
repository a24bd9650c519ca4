//! The durable store: decisions in this process's tables, journalled in SQLite, and no answer before its commit.
//!
//! A crash cannot admit without counting: what was answered is in the file. A refusal needs no commit. On one machine, by
//! one process: the file is locked while it is open.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_core::{Fingerprint, Rule};

use crate::journal::{Entry, Journal};
pub use crate::journal::{JournalError, Kept};
use crate::{Answer, Demand, InProcess, Intent, Memory, Store, Unanswered};

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
    /// The names of the policies that are journalled.
    policies: Arc<[Option<Arc<str>>]>,
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
    /// Opens or makes the file. `salt` is a number that only the deployment's salt gives, so that a file is not read under
    /// another one, which would find no key in it.
    ///
    /// # Errors
    /// [`JournalError`] when it is locked, corrupt, another program's, of another version, or of another salt.
    pub fn open(path: &Path, salt: i64) -> Result<Self, JournalError> {
        let (journal, kept, mark) = Journal::open(path, salt)?;
        Ok(Opened { journal, kept, mark })
    }

    /// The store over these tables, which the caller has filled with what was kept. Policies with a name are journalled.
    pub fn store(self, memory: Memory, policies: &[Option<&str>], durability: Durability) -> Durable {
        Durable { memory, policies: names(policies), journal: Arc::new(self.journal), durability }
    }
}

impl Durable {
    /// Lets the file have at most so many pages, as a disk that is full would: for tests of what happens then.
    #[doc(hidden)]
    pub fn limit_pages(&self, pages: u32) {
        self.journal.limit_pages(pages);
    }

    fn entries<'d>(&'d self, demand: &'d Demand<'_>) -> impl Iterator<Item = Entry> + 'd {
        let forget = demand.intent() == Intent::Forget;
        let written = demand.charges().iter().filter(move |charge| charge.cost > 0 || forget);
        written.filter_map(move |charge| {
            self.entry(charge.policy, charge.key, (!forget).then_some(*charge.rule))
        })
    }

    fn entry(&self, policy: u16, key: Fingerprint, rule: Option<Rule>) -> Option<Entry> {
        let table = Arc::clone(self.memory.table(policy)?);
        let policy = self.policies.get(usize::from(policy))?.clone()?;
        Some(Entry { table, policy, key, rule })
    }
}

fn names(policies: &[Option<&str>]) -> Arc<[Option<Arc<str>>]> {
    policies.iter().map(|name| name.map(Arc::from)).collect()
}

impl Store for Durable {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let answer = self.memory.decide(demand, now)?;
        let mut entries = self.entries(demand).peekable();
        if !answer.is_admit() || entries.peek().is_none() {
            return Ok(answer);
        }
        if self.durability == Durability::Relaxed {
            self.journal.write(entries, now, None);
            return Ok(answer);
        }
        let (waiter, written) = oneshot::channel();
        self.journal.write(entries, now, Some(waiter));
        written.await.unwrap_or(Err(Unanswered::Unavailable)).map(|()| answer)
    }
}

impl InProcess for Durable {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn over(&self, memory: Memory, policies: &[Option<&str>]) -> Self {
        let (policies, journal) = (names(policies), Arc::clone(&self.journal));
        Durable { memory, policies, journal, durability: self.durability }
    }
}

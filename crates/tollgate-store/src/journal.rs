//! The file behind the durable store: one writer, groups of commits.
//!
//! ```text
//! rules   id, policy, quota, algorithm, jitter          what a state was written under
//! counts  key -> rule, ends, state                      one row a key, its newest state
//! meta    name -> value                                 the high-water mark of the clock
//! ```
//!
//! Entries name a key, not a state: the writer reads the state from the table when it writes, so that what it writes
//! includes every charge that waits for it, in whatever order they came, and a hot key is one row a group.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags, params};
use tokio::sync::oneshot;
use tollgate_core::{Algorithm, Fingerprint, Rule};

use crate::{Table, Unanswered};

/// The version of the schema.
const SCHEMA: i64 = 1;

/// Marks a file as ours ("toll").
const APPLICATION: i64 = 0x746F_6C6C;

/// Rows whose time has passed that one group takes away at most.
const REAPED_AT_ONCE: usize = 256;

/// Why a journal cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalError(String);

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JournalError {}

/// A state that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The policy's name.
    pub policy: String,
    /// Whose it is.
    pub key: Fingerprint,
    /// The rule that it was written under.
    pub rule: Rule,
    /// The state.
    pub words: Vec<u64>,
}

/// A key whose newest state is to be written.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) table: Arc<Table>,
    pub(crate) policy: Arc<str>,
    pub(crate) key: Fingerprint,
    /// What it was charged under; `None` for a key that was forgotten.
    pub(crate) rule: Option<Rule>,
}

type Waiter = oneshot::Sender<Result<(), Unanswered>>;

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    waiters: Vec<Waiter>,
    now: u64,
    pages: Option<u32>,
    closed: bool,
}

#[derive(Default)]
struct Inbox {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// A handle on the writer. Dropping the last one writes what is left and ends it.
pub(crate) struct Journal {
    inbox: Arc<Inbox>,
    writer: Option<JoinHandle<()>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal(..)")
    }
}

impl Journal {
    /// Opens or makes the file, and gives what is kept in it and the latest time that it was written at.
    pub(crate) fn open(path: &Path, salt: i64) -> Result<(Self, Vec<Kept>, u64), JournalError> {
        let wrong = |error: rusqlite::Error| JournalError(format!("{}: {}", path.display(), plain(&error)));
        let mut connection = Connection::open_with_flags(path, OpenFlags::default()).map_err(wrong)?;
        prepare(&mut connection, salt).map_err(wrong)?;
        let version: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(wrong)?;
        if version != SCHEMA {
            let path = path.display();
            return Err(JournalError(format!(
                "{path}: schema {version}, this version reads schema {SCHEMA}"
            )));
        }
        let meta = "SELECT value FROM meta WHERE name = ?1";
        let of_salt: i64 = connection.query_row(meta, ["salt"], |row| row.get(0)).map_err(wrong)?;
        if of_salt != salt {
            let path = path.display();
            return Err(JournalError(format!(
                "{path}: written under another salt; give the same TOLLGATE_SALT or salt_file"
            )));
        }
        let kept = load(&connection).map_err(wrong)?;
        let mark: i64 = connection.query_row(meta, ["mark"], |row| row.get(0)).map_err(wrong)?;
        let inbox = Arc::new(Inbox::default());
        let mut writer =
            Writer { connection, inbox: Arc::clone(&inbox), rules: HashMap::new(), unwritten: Vec::new() };
        let spawned = std::thread::Builder::new().name("journal".to_owned()).spawn(move || writer.run());
        let thread = spawned.map_err(|error| JournalError(format!("cannot start the writer: {error}")))?;
        Ok((Journal { inbox, writer: Some(thread) }, kept, u64::try_from(mark).unwrap_or(0)))
    }

    /// Hands over keys to be written; with a waiter, which is told when they are on disk.
    pub(crate) fn write(&self, entries: impl Iterator<Item = Entry>, now: u64, waiter: Option<Waiter>) {
        let mut queue = self.inbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.entries.extend(entries);
        queue.waiters.extend(waiter);
        queue.now = queue.now.max(now);
        drop(queue);
        self.inbox.filled.notify_one();
    }
}

impl Journal {
    pub(crate) fn limit_pages(&self, pages: u32) {
        self.inbox.queue.lock().unwrap_or_else(PoisonError::into_inner).pages = Some(pages);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.inbox.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.inbox.filled.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ended = writer.join();
        }
    }
}

/// SQLite's words, with what to do about the common ones.
fn plain(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => {
            "locked: another process counts in this file; give each its own, or stop the other".to_owned()
        }
        Some(Code::NotADatabase) => "not a SQLite file".to_owned(),
        Some(Code::DatabaseCorrupt) => {
            "corrupt; move it away to begin anew, or repair it with `sqlite3 FILE .recover`".to_owned()
        }
        _ => error.to_string(),
    }
}

fn prepare(connection: &mut Connection, salt: i64) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // One process has the file to itself; a commit is on disk when it returns.
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; BEGIN IMMEDIATE;",
    )?;
    let fresh: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if fresh == 0 {
        connection.execute_batch(&format!(
            "CREATE TABLE rules (id INTEGER PRIMARY KEY, policy TEXT NOT NULL, quota TEXT NOT NULL,
                 algorithm TEXT NOT NULL, jitter INTEGER NOT NULL, UNIQUE (policy, quota, algorithm, jitter));
             CREATE TABLE counts (key BLOB PRIMARY KEY, rule INTEGER NOT NULL REFERENCES rules (id),
                 ends INTEGER NOT NULL, state BLOB NOT NULL) WITHOUT ROWID;
             CREATE INDEX counts_ends ON counts (ends);
             CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
             INSERT INTO meta VALUES ('mark', 0), ('salt', {salt});
             PRAGMA user_version = {SCHEMA}; PRAGMA application_id = {APPLICATION};"
        ))?;
    } else if application != APPLICATION {
        connection.execute_batch("ROLLBACK")?;
        return Err(rusqlite::Error::InvalidParameterName("the file belongs to another program".to_owned()));
    }
    connection.execute_batch("COMMIT")
}

fn load(connection: &Connection) -> rusqlite::Result<Vec<Kept>> {
    let mut query = connection.prepare(
        "SELECT policy, quota, algorithm, jitter, key, state FROM counts JOIN rules ON rules.id = counts.rule",
    )?;
    let rows = query.query_map([], |row| {
        let (policy, quota): (String, String) = (row.get(0)?, row.get(1)?);
        let (algorithm, jitter): (String, bool) = (row.get(2)?, row.get(3)?);
        let (key, state): (Vec<u8>, Vec<u8>) = (row.get(4)?, row.get(5)?);
        let rule = quota.parse().ok().zip(algorithm.parse::<Algorithm>().ok());
        let rule = rule.and_then(|(quota, algorithm)| Rule::new(quota, algorithm).ok());
        let key = <[u8; 16]>::try_from(key).ok().map(|bytes| Fingerprint(u128::from_be_bytes(bytes)));
        let words: Vec<u64> = state.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
        // A row that another version wrote and this one cannot read is one of no policy.
        Ok(rule.zip(key).map(|(rule, key)| Kept {
            policy,
            key,
            rule: rule.with_jittered_edges(jitter),
            words,
        }))
    })?;
    rows.filter_map(Result::transpose).collect()
}

/// What runs on the writer's thread.
struct Writer {
    connection: Connection,
    inbox: Arc<Inbox>,
    rules: HashMap<(Arc<str>, Rule), i64>,
    /// What a failed group left behind.
    unwritten: Vec<Entry>,
}

impl Writer {
    fn run(&mut self) {
        loop {
            let (queue, last) = self.next();
            if let Some(pages) = queue.pages {
                let _as_near_as_can_be = self.connection.pragma_update(None, "max_page_count", pages);
            }
            let mut entries = std::mem::take(&mut self.unwritten);
            entries.extend(queue.entries);
            let written = self.commit(&entries, queue.now);
            let answer = match &written {
                Ok(moved) if *moved => Err(Unanswered::Moved),
                Ok(_) => Ok(()),
                Err(_) => Err(Unanswered::Unavailable),
            };
            if written.is_err() {
                let _nothing_open = self.connection.execute_batch("ROLLBACK");
                self.rules.clear();
                self.unwritten = distinct(entries);
            }
            for waiter in queue.waiters {
                let _gone = waiter.send(answer);
            }
            if last {
                return;
            }
        }
    }

    /// The next group: everything that came while the last one was written.
    fn next(&self) -> (Queue, bool) {
        let mut queue = self.inbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.entries.is_empty() && !queue.closed {
            queue = self.inbox.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let closed = queue.closed;
        (std::mem::take(&mut *queue), closed)
    }

    /// Writes the newest state of every key in one transaction. Gives whether the states of some have moved to another
    /// table, so that what was charged under them has to be asked again.
    fn commit(&mut self, entries: &[Entry], now: u64) -> rusqlite::Result<bool> {
        if entries.is_empty() {
            return Ok(false);
        }
        let mut moved = false;
        let mut seen = HashSet::new();
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        for entry in entries.iter().rev().filter(|entry| seen.insert(entry.key)) {
            let Ok(state) = entry.table.state(entry.key) else {
                moved = true;
                continue;
            };
            let (Some(words), Some(rule)) = (state, entry.rule) else {
                let mut delete = self.connection.prepare_cached("DELETE FROM counts WHERE key = ?1")?;
                delete.execute([entry.key.0.to_be_bytes()])?;
                continue;
            };
            let rule = self.rule(&entry.policy, rule)?;
            let ends = words.first().copied().unwrap_or(0);
            let state: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO counts (key, rule, ends, state) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (key) DO UPDATE SET rule = ?2, ends = ?3, state = ?4",
            )?;
            insert.execute(params![entry.key.0.to_be_bytes(), rule, signed(ends), state])?;
        }
        let mut mark =
            self.connection.prepare_cached("UPDATE meta SET value = max(value, ?1) WHERE name = 'mark'")?;
        mark.execute([signed(now)])?;
        let mut reap = self.connection.prepare_cached(
            "DELETE FROM counts WHERE key IN (SELECT key FROM counts WHERE ends <= ?1 LIMIT ?2)",
        )?;
        reap.execute(params![signed(now), REAPED_AT_ONCE])?;
        drop((mark, reap));
        self.connection.execute_batch("COMMIT")?;
        Ok(moved)
    }

    fn rule(&mut self, policy: &Arc<str>, rule: Rule) -> rusqlite::Result<i64> {
        let name = (Arc::clone(policy), rule);
        if let Some(id) = self.rules.get(&name) {
            return Ok(*id);
        }
        let quota = rule.quota().to_string();
        let row = params![&**policy, quota, rule.algorithm().name(), rule.jittered_edges()];
        self.connection.execute(
            "INSERT OR IGNORE INTO rules (policy, quota, algorithm, jitter) VALUES (?1, ?2, ?3, ?4)",
            row,
        )?;
        let find = "SELECT id FROM rules WHERE policy = ?1 AND quota = ?2 AND algorithm = ?3 AND jitter = ?4";
        let id = self.connection.query_row(find, row, |row| row.get(0))?;
        self.rules.insert(name, id);
        Ok(id)
    }
}

fn distinct(entries: Vec<Entry>) -> Vec<Entry> {
    let mut seen = HashSet::new();
    entries.into_iter().rev().filter(|entry| seen.insert(entry.key)).collect()
}

/// Times and marks are far below the end of a signed integer: see [`tollgate_core::MAX_SPAN`].
fn signed(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

//! The file behind the durable store: one writer, groups of commits.
//!
//! ```text
//! rules   id, policy, quota, algorithm, jitter          what a state was written under
//! groups  id -> entries                                 what one commit wrote: keys, each with its newest state
//! meta    name -> value                                 the high-water mark of the clock
//! ```
//!
//! A group is one row, so a commit costs one insert however many wait for it. A key's newest entry is the one that counts. Each
//! commit takes out old groups with twice as many entries as it writes, and what is still newest and live in them goes into the
//! group that it writes: so a file holds about twice as many entries as there are live keys, and what has passed goes away.
//!
//! Entries name a key, not a state: the writer reads the state from the table when it writes, so that what it writes
//! includes every charge that waits for it, in whatever order they came, and a hot key is one entry a group.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags, params};
use tokio::sync::oneshot;
use tollgate_core::{Algorithm, Fingerprint, Rule};

use crate::groups::{Parts, Written, push, words_of};
use crate::{Table, Unanswered};

/// The version of the schema.
const SCHEMA: i64 = 2;

/// Marks a file as ours ("toll").
const APPLICATION: i64 = 0x746F_6C6C;

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
        let (kept, written) = load(&connection).map_err(wrong)?;
        let mark: i64 = connection.query_row(meta, ["mark"], |row| row.get(0)).map_err(wrong)?;
        let inbox = Arc::new(Inbox::default());
        let mut writer = Writer {
            connection,
            inbox: Arc::clone(&inbox),
            rules: HashMap::new(),
            written,
            unwritten: Vec::new(),
        };
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
             CREATE TABLE groups (id INTEGER PRIMARY KEY, entries BLOB NOT NULL);
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

fn load(connection: &Connection) -> rusqlite::Result<(Vec<Kept>, Written)> {
    let mut rules: HashMap<u32, (String, Rule)> = HashMap::new();
    let mut query = connection.prepare("SELECT id, policy, quota, algorithm, jitter FROM rules")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (policy, quota): (String, String) = (row.get(1)?, row.get(2)?);
        let (algorithm, jitter): (String, bool) = (row.get(3)?, row.get(4)?);
        let rule = quota.parse().ok().zip(algorithm.parse::<Algorithm>().ok());
        let rule = rule.and_then(|(quota, algorithm)| Rule::new(quota, algorithm).ok());
        // A rule that another version wrote and this one cannot read is one of no policy.
        if let Some(rule) = rule {
            rules.insert(row.get(0)?, (policy, rule.with_jittered_edges(jitter)));
        }
    }
    let mut written = Written::default();
    let mut states: HashMap<Fingerprint, (u32, Vec<u64>)> = HashMap::new();
    let mut query = connection.prepare("SELECT id, entries FROM groups ORDER BY id")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let entries: Vec<u8> = row.get(1)?;
        written.add(row.get(0)?, &entries);
        for (key, rule, words) in Parts(&entries) {
            states.insert(key, (rule, words_of(words).collect()));
        }
    }
    let known = states.into_iter().filter(|(_, (_, words))| !words.is_empty());
    let kept = known.filter_map(|(key, (id, words))| {
        let (policy, rule) = rules.get(&id)?;
        Some(Kept { policy: policy.clone(), key, rule: *rule, words })
    });
    Ok((kept.collect(), written))
}

/// What runs on the writer's thread.
struct Writer {
    connection: Connection,
    inbox: Arc<Inbox>,
    rules: HashMap<(Arc<str>, Rule), u32>,
    written: Written,
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
        let (mut moved, mut seen, mut group) = (false, HashSet::with_capacity(entries.len()), Vec::new());
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        for entry in entries.iter().rev().filter(|entry| seen.insert(entry.key)) {
            let Ok(state) = entry.table.state(entry.key) else {
                moved = true;
                continue;
            };
            let (Some(words), Some(rule)) = (state, entry.rule) else {
                push(&mut group, entry.key, 0, &[]);
                continue;
            };
            let rule = self.rule(&entry.policy, rule)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            push(&mut group, entry.key, rule, &bytes);
        }
        let (overdue, credit) = self.written.overdue(seen.len());
        let passed = self.clean(overdue, &seen, now, &mut group)?;
        let id = self.written.last.saturating_add(1);
        let mut insert = self.connection.prepare_cached("INSERT INTO groups VALUES (?1, ?2)")?;
        insert.execute(params![id, group])?;
        let mut mark =
            self.connection.prepare_cached("UPDATE meta SET value = max(value, ?1) WHERE name = 'mark'")?;
        mark.execute([signed(now)])?;
        drop((insert, mark));
        self.connection.execute_batch("COMMIT")?;
        self.written.remove(overdue);
        self.written.credit = credit;
        self.written.add(id, &group);
        for key in passed {
            self.written.newest.remove(&key);
        }
        Ok(moved)
    }

    /// Takes out the oldest groups, and puts what is newest and live of them into the one that is being written. Gives the keys
    /// whose newest entry has passed.
    fn clean(
        &self,
        groups: usize,
        writing: &HashSet<Fingerprint>,
        now: u64,
        group: &mut Vec<u8>,
    ) -> rusqlite::Result<Vec<Fingerprint>> {
        let mut passed = Vec::new();
        for (id, _) in self.written.groups.iter().take(groups) {
            let mut find = self.connection.prepare_cached("SELECT entries FROM groups WHERE id = ?1")?;
            let entries: Vec<u8> = find.query_row([id], |row| row.get(0))?;
            for (key, rule, words) in Parts(&entries) {
                let newest = self.written.newest.get(&key) == Some(id) && !writing.contains(&key);
                match words_of(words).next() {
                    Some(ends) if newest && ends > now => push(group, key, rule, words),
                    Some(_) if newest => passed.push(key),
                    _ => {}
                }
            }
            self.connection.prepare_cached("DELETE FROM groups WHERE id = ?1")?.execute([id])?;
        }
        Ok(passed)
    }

    fn rule(&mut self, policy: &Arc<str>, rule: Rule) -> rusqlite::Result<u32> {
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

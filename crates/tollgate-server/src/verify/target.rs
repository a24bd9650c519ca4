//! The store that is tried, under names of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::postgres::{self, Postgres};
use tollgate::redis::{self, Address, Redis};
use tollgate::{
    Answer, Charge, Demand, Durability, Durable, Fingerprint, Memory, Opened, Remote, Rule, Shared, Store,
    Table, Tally, Unanswered, WhenFull,
};

use crate::Failure;
use crate::cli::VerifyArgs;
use crate::store::StoreUrl;

/// How long an answer may take while laws are tried.
const DEADLINE: Duration = Duration::from_secs(10);

/// Instances that share the store.
pub(super) const INSTANCES: usize = 8;

/// Keys of one table that laws use at once.
const KEYS: usize = 2_000;

/// What is tried.
pub(super) enum Target {
    Memory,
    Sqlite(PathBuf),
    Server {
        name: String,
        /// What all of them count in.
        tally: Arc<Tally>,
        /// One that decides by the callers' time.
        virtual_time: Arc<Shared>,
        /// Several, each with a connection of its own, that decide by the server's.
        instances: Vec<Shared>,
        clear: Box<Cleaner>,
    },
}

/// What takes the names away again.
pub(super) enum Cleaner {
    Redis(Box<Redis>),
    Postgres(Postgres),
}

impl Target {
    /// Opens it, and sees whether it answers.
    pub(super) async fn open(url: &StoreUrl, arguments: &VerifyArgs) -> Result<Self, Failure> {
        let name = format!("{}{:08x}", arguments.prefix, fastrand::u32(..));
        let authority = arguments.ca.as_ref();
        let authority =
            authority.map(|path| std::fs::read(path).map_err(|error| Failure::file(path, &error)));
        let authority = authority.transpose()?;
        let wrong = |error| Failure::Wrong(format!("--store: {error}"));
        let tally = Arc::new(Tally::default());
        let target = match url {
            StoreUrl::Memory => return Ok(Target::Memory),
            StoreUrl::Sqlite(path) => {
                let folder = path.with_extension(format!("verify-{:08x}", fastrand::u32(..)));
                std::fs::create_dir_all(&folder).map_err(|error| Failure::file(&folder, &error))?;
                return Ok(Target::Sqlite(folder));
            }
            StoreUrl::Redis(text) => {
                let address = Address::parse(text).map_err(wrong)?;
                let address =
                    authority.map_or_else(|| address.clone(), |pem| address.clone().with_authority(pem));
                let cluster = address.is_cluster();
                let one = || {
                    let options = redis::Options {
                        prefix: format!("{name}:"),
                        deadline: DEADLINE,
                        ..redis::Options::default()
                    };
                    Redis::new(address.clone(), options)
                };
                let shared = |remote| {
                    if cluster {
                        Shared::new(tollgate::around::Singly::new(remote), Arc::default())
                    } else {
                        Shared::new(remote, Arc::default())
                    }
                };
                let remote = || Remote::new(one(), DEADLINE, Arc::clone(&tally));
                Target::Server {
                    virtual_time: Arc::new(shared(remote().by_callers_time())),
                    instances: (0..INSTANCES).map(|_| shared(remote())).collect(),
                    clear: Box::new(Cleaner::Redis(Box::new(one()))),
                    name,
                    tally: Arc::clone(&tally),
                }
            }
            StoreUrl::Postgres(text) => {
                let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_ascii_lowercase();
                let one = |connections| {
                    let options = postgres::Options {
                        schema: name.clone(),
                        deadline: DEADLINE,
                        authority: authority.clone(),
                        connections,
                        ..postgres::Options::default()
                    };
                    Postgres::new(text, options).map_err(wrong)
                };
                let remote = |connections| {
                    Ok::<_, Failure>(Remote::new(one(connections)?, DEADLINE, Arc::clone(&tally)))
                };
                let instances = (0..INSTANCES).map(|_| Ok(Shared::new(remote(1)?, Arc::default())));
                Target::Server {
                    virtual_time: Arc::new(Shared::new(remote(8)?.by_callers_time(), Arc::default())),
                    instances: instances.collect::<Result<_, Failure>>()?,
                    clear: Box::new(Cleaner::Postgres(one(1)?)),
                    name,
                    tally: Arc::clone(&tally),
                }
            }
        };
        match target.answers().await {
            Ok(()) => Ok(target),
            Err(why) => Err(Failure::Impossible(format!("{url} does not answer: {why}"))),
        }
    }

    /// Takes everything of its names away, which also shows that it answers.
    async fn answers(&self) -> Result<(), String> {
        let Target::Server { clear, .. } = self else { return Ok(()) };
        match clear.as_ref() {
            Cleaner::Redis(redis) => redis.clear().await,
            Cleaner::Postgres(postgres) => postgres.clear().await,
        }
    }

    /// What went wrong last, in its own words.
    pub(super) fn trouble(&self) -> Option<String> {
        if let Target::Server { tally, .. } = self { tally.take_trouble() } else { None }
    }

    /// What its keys are called.
    pub(super) fn name(&self) -> String {
        match self {
            Target::Memory => "of this process".to_owned(),
            Target::Sqlite(folder) => folder.display().to_string(),
            Target::Server { name, .. } => format!("{name}.."),
        }
    }

    /// Takes away what was left in the store.
    pub(super) async fn clear(self) -> Result<(), String> {
        match self {
            Target::Memory => Ok(()),
            Target::Sqlite(folder) => std::fs::remove_dir_all(folder).map_err(|error| error.to_string()),
            target @ Target::Server { .. } => target.answers().await,
        }
    }
}

/// Tables for these rules.
pub(super) fn memory(rules: &[Rule]) -> Memory {
    Memory::new(rules.iter().map(|rule| Table::new(KEYS, rule.words(), WhenFull::Share)))
}

/// A file of its own for these rules.
pub(super) fn sqlite(folder: &Path, rules: &[Rule]) -> Durable {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let file = folder.join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
    let names: Vec<String> = (0..rules.len()).map(|n| n.to_string()).collect();
    let names: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
    #[allow(clippy::expect_used, reason = "a law that cannot be tried is broken, and says why")]
    let opened = Opened::open(&file, 1).expect("a file to count in");
    opened.store(memory(rules), &names, Durability::Commit)
}

/// A part of a store that no other shares keys with.
pub(super) struct Apart {
    store: Arc<Shared>,
    mix: u128,
}

impl Apart {
    pub(super) fn new(store: Arc<Shared>) -> Self {
        Apart { store, mix: fastrand::u128(..) }
    }
}

impl Store for Apart {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        let mut own = Demand::new().to(demand.intent());
        for charge in demand.charges() {
            let key = Fingerprint(charge.key.0 ^ self.mix);
            let _as_many_as_there_were = own.push(Charge { key, ..*charge });
        }
        self.store.decide(&own, now).await
    }
}

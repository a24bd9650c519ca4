//! The shared store on Redis or Valkey: one count for a fleet, one script and one round trip a decision.
//!
//! The server's clock decides. The script (`redis.lua`, beside this file) fits and charges; a command whose outcome is unknown is
//! never sent again. Where the server is, alone, behind Sentinel or in a Cluster, is `address.rs`'s matter.
//!
//! Replication is asynchronous: a failover may forget what the replica had not seen, unless replicas are waited for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use ::redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, Script, Value, cmd, pipe};
use tokio::sync::Mutex;
use tollgate_core::{Algorithm, Fingerprint, Rule};

pub use crate::address::Address;
use crate::address::{CONNECT_WITHIN, Line};
use crate::remote::{Mode, Question, Reply, Server};
use crate::wire::{charge_arguments, pair, read, shape_of, text};

/// The largest limit of a sliding window counter here: its products must stay exact in a double.
pub const MAX_COUNTER_LIMIT: u64 = 100_000_000;

/// The largest limit of a fixed window here.
pub const MAX_WINDOW_LIMIT: u64 = 1_000_000_000_000_000;

/// The shortest window of the windowed algorithms here, in nanoseconds.
pub const MIN_WINDOW: u64 = 1_000_000;

/// The most times that a demand is asked for at once.
const MAX_TIMES: u64 = 1_000_000;

/// The most rules whose texts are kept.
const MAX_TEXTS: usize = 4_096;

/// How the count is kept on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What every key begins with.
    pub prefix: String,
    /// How long a state is kept after it has lost its meaning, so that the server's clock may step back so far.
    pub clock_slack: Duration,
    /// Replicas that must have a charge before it is admitted.
    pub wait_replicas: u32,
    /// How long a decision may take: replicas are waited for half as long, and a connection may be made in as long.
    pub deadline: Duration,
    /// A number that only the deployment's salt gives: instances with another are told so, for they would find no key of each
    /// other's.
    pub salt: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            prefix: "tollgate:".to_owned(),
            clock_slack: Duration::from_secs(10),
            wait_replicas: 0,
            deadline: Duration::from_millis(50),
            salt: None,
        }
    }
}

/// A count on a server.
pub struct Redis {
    address: Address,
    options: Options,
    line: Arc<Mutex<Option<(u64, Line)>>>,
    /// How many connections there were.
    made: Arc<AtomicU64>,
    script: Script,
    texts: RwLock<HashMap<Rule, Arc<str>>>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why a rule cannot be counted here.
///
/// # Errors
/// A message for a window or limit whose arithmetic would not be exact in the server's numbers.
pub fn fits(rule: &Rule) -> Result<(), &'static str> {
    let quota = rule.quota();
    match rule.algorithm() {
        Algorithm::SlidingCounter if quota.limit() > MAX_COUNTER_LIMIT => {
            Err("on Redis a sliding-counter's limit is at most 100000000")
        }
        Algorithm::FixedWindow if quota.limit() > MAX_WINDOW_LIMIT => {
            Err("on Redis a fixed-window's limit is at most 1000000000000000")
        }
        Algorithm::SlidingCounter | Algorithm::FixedWindow if quota.window() < MIN_WINDOW => {
            Err("on Redis a window is at least 1ms")
        }
        _ => Ok(()),
    }
}

impl Redis {
    /// A count on the server at this address. Nothing is connected before the first decision.
    pub fn new(address: Address, options: Options) -> Self {
        let script = Script::new(include_str!("redis.lua"));
        Redis {
            address,
            options,
            line: Arc::default(),
            made: Arc::default(),
            script,
            texts: RwLock::default(),
        }
    }

    /// The connection, made when there is none. Whoever comes meanwhile waits for the same one; it is made to the end also when
    /// nobody waits any longer, for that may take longer than a decision may.
    async fn line(&self) -> RedisResult<(u64, Line)> {
        let mut held = Arc::clone(&self.line).lock_owned().await;
        if let Some(line) = &*held {
            return Ok(line.clone());
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let (address, salt) = (self.address.clone(), self.options.salt);
        let name = format!("{}salt", self.options.prefix);
        let within = self.options.deadline;
        let connected = tokio::spawn(async move {
            let connect = async {
                let mut line = address.connect(within).await?;
                if let Some(salt) = salt {
                    same_salt(&mut line, &name, salt).await?;
                }
                RedisResult::Ok(line)
            };
            let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
            let line = tokio::time::timeout(within.max(CONNECT_WITHIN), connect).await;
            let line = (number, line.unwrap_or_else(|_| Err(late()))?);
            *held = Some(line.clone());
            Ok(line)
        });
        connected.await.unwrap_or_else(|_| Err(RedisError::from(std::io::Error::other("connecting failed"))))
    }

    /// Runs a command on the server of its key.
    async fn run(&self, line: &mut Line, command: &Cmd) -> RedisResult<Value> {
        let replicas = self.options.wait_replicas;
        match line {
            Line::One(connection) if replicas > 0 => {
                let mut both = pipe();
                // WAIT holds the connection up, for everybody, so it ends well before the decision does.
                let within = (self.options.deadline.as_millis() / 2).max(1);
                both.add_command(command.clone()).cmd("WAIT").arg(replicas).arg(u64::try_from(within).ok());
                let (value, seen): (Value, u32) = both.query_async(connection).await?;
                if seen < replicas {
                    return Err(trouble(format!("{seen} of {replicas} replicas have it")));
                }
                Ok(value)
            }
            Line::One(connection) => command.query_async(connection).await,
            Line::Cluster(connection) => match command.query_async::<Value>(connection).await {
                // It did not run there, so running it where it belongs cannot count twice.
                Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => {
                    let (node, _) = error.redirect_node().ok_or_else(|| error.clone())?;
                    let (host, port) = node.rsplit_once(':').ok_or_else(|| error.clone())?;
                    let port = port.parse().map_err(|_| error.clone())?;
                    let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
                    if error.code() == Some("MOVED") {
                        return connection
                            .route_command(command.clone(), RoutingInfo::SingleNode(node))
                            .await;
                    }
                    let mut asking = Pipeline::new();
                    asking.cmd("ASKING").ignore().add_command(command.clone());
                    let mut values = connection.route_pipeline(asking, 1, 1, node).await?;
                    values.pop().ok_or(error)?.extract_error()
                }
                answer => answer,
            },
        }
    }

    /// Runs the script; whole when the server does not have it.
    async fn evaluate(&self, line: &mut Line, question: &Question<'_>) -> RedisResult<Value> {
        let mut by_hash = cmd("EVALSHA");
        by_hash.arg(self.script.get_hash());
        self.arguments(&mut by_hash, question);
        match self.run(line, &by_hash).await {
            // It did not run, so running it now cannot count twice.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut whole = cmd("EVAL");
                whole.arg(include_str!("redis.lua"));
                self.arguments(&mut whole, question);
                self.run(line, &whole).await
            }
            answer => answer,
        }
    }

    /// Takes away every key of this prefix: for prefixes that nobody else uses. In a Cluster they are left to expire.
    ///
    /// # Errors
    /// What the server says.
    pub async fn clear(&self) -> Result<(), String> {
        let (_, mut line) = self.line().await.map_err(|error| error.to_string())?;
        if let Line::Cluster(_) = line {
            return line.query::<Value>(&cmd("PING")).await.map(drop).map_err(|error| error.to_string());
        }
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("{}*", self.options.prefix)).arg("COUNT").arg(1_000);
            let (next, keys): (String, Vec<String>) =
                line.query(&scan).await.map_err(|error| error.to_string())?;
            if !keys.is_empty() {
                let mut unlink = cmd("UNLINK");
                unlink.arg(keys);
                line.query::<Value>(&unlink).await.map_err(|error| error.to_string())?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// A rule's text, which is written anew for few decisions.
    fn text_of(&self, rule: &Rule) -> Arc<str> {
        if let Some(text) = self.texts.read().unwrap_or_else(PoisonError::into_inner).get(rule) {
            return Arc::clone(text);
        }
        let text: Arc<str> = Arc::from(rule.to_string());
        let mut texts = self.texts.write().unwrap_or_else(PoisonError::into_inner);
        if texts.len() >= MAX_TEXTS {
            texts.clear();
        }
        texts.insert(*rule, Arc::clone(&text));
        text
    }

    fn key(&self, key: Fingerprint) -> String {
        format!("{}{{{key}}}", self.options.prefix)
    }

    fn arguments(&self, command: &mut Cmd, question: &Question<'_>) {
        command.arg(question.charges.len());
        for charge in question.charges {
            command.arg(self.key(charge.key));
        }
        command.arg(question.times.min(MAX_TIMES)).arg(match question.mode {
            Mode::Take => "",
            Mode::Owe => "owe",
            Mode::Back(_) => "back",
            Mode::Put => "put",
        });
        match question.now {
            None => command.arg("").arg(""),
            Some(now) => pair(command, now),
        };
        command.arg(u64::try_from(self.options.clock_slack.as_millis()).unwrap_or(u64::MAX));
        match question.mode {
            Mode::Back(Some(charged)) => pair(command, charged),
            _ => command.arg("").arg(""),
        };
        for charge in question.charges {
            charge_arguments(command, charge, &self.text_of(charge.rule));
        }
        for (charge, swap) in question.charges.iter().zip(&question.swaps) {
            let shape = shape_of(&swap.found.rule, charge);
            command.arg(&swap.found.rule).arg(text(shape, &swap.found.numbers));
            command.arg(text(charge.rule.shape(), &swap.numbers));
        }
    }

    /// After these the next command needs another connection.
    fn look_at(&self, number: u64, line: &Line, error: &RedisError) {
        let elsewhere = matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "LOADING"));
        // A Cluster's connection mends itself, and most of its nodes are well.
        let alone = matches!(line, Line::One(_)) && (elsewhere || error.is_io_error());
        if (alone || error.is_unrecoverable_error())
            && let Ok(mut held) = self.line.try_lock()
            && held.as_ref().is_some_and(|(held, _)| *held == number)
        {
            *held = None;
        }
    }
}

/// Leaves the salt's number for other instances, or compares it with theirs.
async fn same_salt(line: &mut Line, name: &str, salt: u64) -> RedisResult<()> {
    let salt = salt.to_string();
    let mut set = cmd("SET");
    set.arg(name).arg(&salt).arg("NX");
    let mut get = cmd("GET");
    get.arg(name);
    let found = match line.query::<Value>(&set).await {
        Ok(_) => line.query::<Option<String>>(&get).await,
        Err(error) => Err(error),
    };
    let found = match (&line, found) {
        // In a Cluster the one node that keeps it may be down, and the others well.
        (Line::Cluster(_), Err(_)) => None,
        (_, found) => found?,
    };
    if found.is_some_and(|found| found != salt) {
        return Err(trouble(format!(
            "other instances count here under another salt; give all the same TOLLGATE_SALT, or delete the key `{name}`"
        )));
    }
    Ok(())
}

/// What is wrong with the count, and not with the connection.
fn trouble(text: String) -> RedisError {
    RedisError::from((ErrorKind::Client, "not counted", text))
}

impl Server for Redis {
    async fn ask(&self, question: &Question<'_>) -> Result<Reply, String> {
        let (number, mut line) = self.line().await.map_err(|error| error.to_string())?;
        match self.evaluate(&mut line, question).await {
            Ok(value) => read(question, &value).ok_or_else(|| "an answer that makes no sense".to_owned()),
            Err(error) => {
                self.look_at(number, &line, &error);
                Err(error.to_string())
            }
        }
    }

    async fn forget(&self, keys: &[Fingerprint]) -> Result<u64, String> {
        let (number, mut line) = self.line().await.map_err(|error| error.to_string())?;
        let mut known = 0_u64;
        for key in keys {
            let mut delete = cmd("DEL");
            delete.arg(self.key(*key));
            match self.run(&mut line, &delete).await.and_then(|value| Ok(u64::from_redis_value(value)?)) {
                Ok(gone) => known = known.saturating_add(gone),
                Err(error) => {
                    self.look_at(number, &line, &error);
                    return Err(error.to_string());
                }
            }
        }
        Ok(known)
    }

    fn hang_up(&self) {
        if let Ok(mut held) = self.line.try_lock() {
            *held = None;
        }
    }
}

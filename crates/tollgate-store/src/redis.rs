//! The shared store on Redis or Valkey: one count for a fleet, one script and one round trip a decision.
//!
//! The server's clock decides. The script (`redis.lua`, beside this file) fits and charges; what the outcome means for the
//! caller is worked out here from the state that it found, by the same code as everywhere. A command whose outcome is unknown
//! is never sent again.
//!
//! Replication is asynchronous: a failover may forget what the replica had not seen.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Script, cmd};
use tokio::sync::Mutex;
use tollgate_core::{Algorithm, Charge, Outcome, Rule, SECOND, Shape, Verdict};

use crate::{Answer, Demand, Store, Unanswered};

/// The largest limit of a sliding window counter here: its products must stay exact in a double.
pub const MAX_COUNTER_LIMIT: u64 = 100_000_000;

/// The largest limit of a fixed window here.
pub const MAX_WINDOW_LIMIT: u64 = 1_000_000_000_000_000;

/// The shortest window of the windowed algorithms here, in nanoseconds.
pub const MIN_WINDOW: u64 = 1_000_000;

/// The most times that a demand is asked for at once.
const MAX_TIMES: u64 = 1_000_000;

/// How long a state is kept after it has lost its meaning, so that a server's clock may step back so far.
pub const CLOCK_SLACK: Duration = Duration::from_secs(10);

/// Whose time decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    /// The server's.
    #[default]
    Server,
    /// The caller's, for tests.
    Caller,
}

/// A count on a server.
#[derive(Clone)]
pub struct Redis {
    client: Client,
    config: AsyncConnectionConfig,
    connection: Arc<Mutex<Option<MultiplexedConnection>>>,
    script: Arc<Script>,
    source: &'static str,
    prefix: Arc<str>,
    deadline: Duration,
    time: Time,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
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
    /// A store on the server of a `redis://` URL. Nothing is connected before the first decision. `prefix` begins every key;
    /// the deadline includes connecting.
    ///
    /// # Errors
    /// When the URL is none.
    pub fn new(url: &str, prefix: &str, deadline: Duration, time: Time) -> Result<Self, RedisError> {
        let source = include_str!("redis.lua");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline));
        Ok(Redis {
            client: Client::open(url)?,
            config,
            connection: Arc::default(),
            script: Arc::new(Script::new(source)),
            source,
            prefix: Arc::from(prefix),
            deadline,
            time,
        })
    }

    /// The connection, made when there is none. Whoever comes meanwhile waits for the same one.
    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = &*held {
            return Ok(connection.clone());
        }
        let connection = self.client.get_multiplexed_async_connection_with_config(&self.config).await?;
        Ok(held.insert(connection).clone())
    }

    async fn ask(&self, demand: &Demand<'_>, now: u64) -> RedisResult<Vec<String>> {
        let mut connection = self.connection().await?;
        let mut by_hash = cmd("EVALSHA");
        by_hash.arg(self.script.get_hash());
        self.arguments(&mut by_hash, demand, now);
        let answer = match by_hash.query_async(&mut connection).await {
            // It did not run, so running it now cannot count twice.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let mut whole = cmd("EVAL");
                whole.arg(self.source);
                self.arguments(&mut whole, demand, now);
                whole.query_async(&mut connection).await
            }
            answer => answer,
        };
        if answer
            .as_ref()
            .is_err_and(|error: &RedisError| error.is_io_error() || error.is_unrecoverable_error())
        {
            *self.connection.lock().await = None;
        }
        answer
    }

    fn arguments(&self, command: &mut Cmd, demand: &Demand<'_>, now: u64) {
        command.arg(demand.charges().len());
        for charge in demand.charges() {
            command.arg(format!("{}{{{}}}", self.prefix, charge.key));
        }
        // What costs more than there can ever be is only looked at.
        let never = demand.charges().iter().any(|charge| charge.cost > charge.rule.capacity());
        command.arg(if never { 0 } else { demand.asked().min(MAX_TIMES) });
        match self.time {
            Time::Server => command.arg("").arg(""),
            Time::Caller => pair(command, now),
        };
        command.arg(u64::try_from(CLOCK_SLACK.as_millis()).unwrap_or(u64::MAX));
        for charge in demand.charges() {
            charge_arguments(command, charge, never);
        }
    }
}

fn pair(command: &mut Cmd, nanos: u64) -> &mut Cmd {
    command.arg(nanos / SECOND).arg(nanos % SECOND)
}

fn charge_arguments(command: &mut Cmd, charge: &Charge<'_>, never: bool) {
    let rule = charge.rule;
    let (interval, capacity, anchor) = rule.terms();
    let (shape, window) = match rule.shape() {
        Shape::Cell => ("cell", anchor),
        Shape::Counter => ("counter", rule.quota().window()),
        Shape::Log => ("log", rule.quota().window()),
    };
    let cost = if never { 0 } else { charge.cost };
    command.arg(shape);
    for nanos in [cost.saturating_mul(interval), capacity, window, charge.phase()] {
        pair(command, nanos);
    }
    command.arg(rule.quota().limit()).arg(cost);
}

/// The state that the script found, as words.
fn state(rule: &Rule, text: &str) -> Option<Vec<u64>> {
    let numbers: Option<Vec<u64>> = text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    let numbers = numbers?;
    let mut words = vec![0; rule.words()];
    let nanos = |pair: &[u64]| pair[0].checked_mul(SECOND)?.checked_add(pair[1]);
    match (rule.shape(), numbers.as_slice()) {
        (_, []) => {}
        (Shape::Cell, [_, _]) => words[0] = nanos(&numbers)?,
        (Shape::Counter, [_, _, previous, current]) => {
            words.copy_from_slice(&[nanos(&numbers[..2])?, *previous, *current]);
        }
        (Shape::Log, _) => {
            let times: Option<Vec<u64>> = numbers.chunks_exact(2).map(nanos).collect();
            rule.log_of(&times?, words.as_mut_slice());
        }
        _ => return None,
    }
    Some(words)
}

/// What the script's answer means: each charge's outcome, from the state before it and what was admitted.
fn read(demand: &Demand<'_>, answer: &[String]) -> Option<Answer> {
    let [admitted, seconds, nanos, states @ ..] = answer else { return None };
    let now = seconds.parse::<u64>().ok()?.checked_mul(SECOND)?.checked_add(nanos.parse().ok()?)?;
    let admitted: u64 = admitted.parse().ok()?;
    let mut read = Answer::new(now, admitted);
    for (charge, text) in demand.charges().iter().zip(states) {
        let mut words = state(charge.rule, text)?;
        let verdict = charge.judge(words.as_slice(), now);
        if admitted > 0 {
            let all = Charge { cost: charge.cost.saturating_mul(admitted), ..*charge };
            all.apply(words.as_mut_slice(), now);
        }
        read.push(charge.outcome(verdict, words.as_slice(), now));
    }
    let all_admit =
        read.outcomes().iter().map(|outcome: &Outcome| outcome.verdict).all(|v: Verdict| v.is_admit());
    // Both decided by the same state and time; were they ever to differ, nobody is let through on it.
    let agree = (admitted > 0) == all_admit || demand.asked() == 0;
    (agree && read.outcomes().len() == demand.charges().len()).then_some(read)
}

impl Store for Redis {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        if demand.charges().is_empty() {
            return Ok(Answer::new(now, demand.asked()));
        }
        let answer = tokio::time::timeout(self.deadline, self.ask(demand, now)).await;
        let answer = answer.map_err(|_| Unanswered::Unavailable)?.map_err(|_| Unanswered::Unavailable)?;
        read(demand, &answer).ok_or(Unanswered::Unavailable)
    }
}

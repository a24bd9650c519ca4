//! Where this server counts: in its process, and perhaps in a store that instances share, chosen by its URL.

use std::sync::Arc;
use std::time::Duration;

use tollgate::postgres::{self, Postgres};
use tollgate::redis::{self, Address, Redis};
use tollgate::{
    Answer, Clock, Demand, Durable, InProcess, Limiter, Memory, PolicySet, Remote, Salt, Stacks, Store,
    Tally, Unanswered,
};

use crate::Failure;
use crate::store::{StoreSettings, StoreUrl};

/// One of the stores.
#[derive(Clone, Debug)]
pub enum Backend {
    /// In this process.
    Memory(Memory),
    /// In this process and its file.
    Durable(Durable),
}

impl Backend {
    /// A limiter over the store of these settings. One on a server is not connected to yet: it may be down.
    ///
    /// # Errors
    /// [`Failure`] when a file cannot be opened.
    pub fn limiter(
        settings: &StoreSettings,
        set: PolicySet,
        salt: Salt,
        clock: Clock,
    ) -> Result<Limiter<Backend>, Failure> {
        let durability = settings.durability;
        let path = match &settings.url {
            StoreUrl::Sqlite(path) => path,
            StoreUrl::Memory => return Ok(in_process(set, salt, clock)),
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
                let stacks = stacks(settings, salt.check())?;
                return Ok(in_process(set, salt, clock).store(stacks));
            }
        };
        let opened = Limiter::open(set, salt, path, durability);
        let (limiter, restored) =
            opened.map_err(|error| Failure::Impossible(format!("store.url: {error}")))?;
        tracing::info!(states = restored.states, file = %path.display(), "counts restored");
        if restored.ahead > Clock::MAX_AHEAD {
            tracing::error!(
                ahead = ?restored.ahead,
                "the file was written by a clock that is ahead of this one; what it says of the future counts from now"
            );
        }
        Ok(limiter.map_store(Backend::Durable))
    }
}

fn in_process(set: PolicySet, salt: Salt, clock: Clock) -> Limiter<Backend> {
    Limiter::with_store(set, salt, clock, |_, memory| Backend::Memory(memory))
}

/// What stands around the shared store of these settings.
fn stacks(settings: &StoreSettings, salt: u64) -> Result<Stacks, Failure> {
    let tally = Arc::new(Tally::default());
    let authority = settings.ca.as_ref();
    let authority = authority.map(|path| std::fs::read(path).map_err(|error| Failure::file(path, &error)));
    let (authority, wrong) = (authority.transpose()?, |error| Failure::Wrong(format!("store.url: {error}")));
    match &settings.url {
        StoreUrl::Postgres(url) => {
            let server = Postgres::new(url, postgres_options(settings, salt, authority)).map_err(wrong)?;
            let remote = Remote::new(server, settings.around.round_trip(), Arc::clone(&tally));
            Ok(Stacks::around(remote, tally, &settings.around))
        }
        StoreUrl::Redis(url) => {
            let address = Address::parse(url).map_err(wrong)?;
            let address = match authority {
                Some(pem) => address.with_authority(pem),
                None => address,
            };
            let server = Redis::new(address, redis_options(settings, salt));
            let remote = Remote::new(server, settings.around.round_trip(), Arc::clone(&tally));
            Ok(Stacks::around(remote, tally, &settings.around))
        }
        StoreUrl::Memory | StoreUrl::Sqlite(_) => Err(wrong("is not shared".to_owned())),
    }
}

fn redis_options(settings: &StoreSettings, salt: u64) -> redis::Options {
    redis::Options {
        prefix: settings.prefix.clone(),
        clock_slack: settings.clock_slack,
        wait_replicas: settings.wait_replicas,
        deadline: settings.around.deadline,
        salt: Some(salt),
    }
}

fn postgres_options(settings: &StoreSettings, salt: u64, authority: Option<Vec<u8>>) -> postgres::Options {
    postgres::Options {
        schema: settings.schema.clone(),
        logged: settings.logged,
        connections: settings.connections,
        clock_slack: settings.clock_slack,
        deadline: settings.around.deadline,
        salt: Some(salt),
        authority,
    }
}

/// How often it is looked whether the shared store is given up or found again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks between two lines about trouble that did not make it given up.
const SAY_EVERY: u32 = 50;

/// Logs when the shared store is out of reach, why, and when it is back.
pub async fn watch(tally: Arc<Tally>) {
    let (mut was_open, mut quiet) = (false, SAY_EVERY);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        quiet = quiet.saturating_add(1);
        let open = tally.is_open();
        let changed = std::mem::replace(&mut was_open, open) != open;
        let trouble = if changed || quiet >= SAY_EVERY { tally.take_trouble() } else { None };
        match (changed, open, trouble) {
            (true, true, trouble) => {
                let trouble = trouble.unwrap_or_default();
                tracing::error!(
                    trouble,
                    "the shared store is out of reach: policies answer by their direction"
                );
            }
            (true, false, _) => tracing::info!("the shared store is back"),
            (false, _, Some(trouble)) => tracing::warn!(trouble, "the shared store"),
            _ => continue,
        }
        quiet = 0;
    }
}

impl Store for Backend {
    async fn decide(&self, demand: &Demand<'_>, now: u64) -> Result<Answer, Unanswered> {
        match self {
            Backend::Memory(memory) => Ok(memory.decide(demand, now)?),
            Backend::Durable(durable) => durable.decide(demand, now).await,
        }
    }
}

impl InProcess for Backend {
    fn memory(&self) -> &Memory {
        match self {
            Backend::Memory(memory) => memory,
            Backend::Durable(durable) => durable.memory(),
        }
    }

    fn over(&self, memory: Memory, policies: &[Option<&str>]) -> Self {
        match self {
            Backend::Memory(_) => Backend::Memory(memory),
            Backend::Durable(durable) => Backend::Durable(durable.over(memory, policies)),
        }
    }
}

//! Where this server counts: one of the stores, chosen by its URL.

use std::path::PathBuf;

use tollgate::{
    Answer, Clock, Demand, Durability, Durable, InProcess, Limiter, Memory, Placement, PolicySet, Salt,
    Store, Unanswered,
};

use crate::Failure;

/// A store's URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`.
    #[default]
    Memory,
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
}

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// A message when it is none of a store that there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(StoreUrl::Sqlite(PathBuf::from(path))),
            _ => Err(format!("`{text}` is no store of this version; expected memory: or sqlite:PATH")),
        }
    }

    /// The placement of policies that name none.
    pub const fn placement(&self) -> Placement {
        match self {
            StoreUrl::Memory => Placement::Local,
            StoreUrl::Sqlite(_) => Placement::Durable,
        }
    }
}

/// One of the stores.
#[derive(Clone, Debug)]
pub enum Backend {
    /// In this process.
    Memory(Memory),
    /// In this process and its file.
    Durable(Durable),
}

impl Backend {
    /// A limiter over the store of this URL.
    ///
    /// # Errors
    /// [`Failure`] when its file cannot be opened.
    pub fn limiter(
        url: &StoreUrl,
        durability: Durability,
        set: PolicySet,
        salt: Salt,
    ) -> Result<Limiter<Backend>, Failure> {
        let path = match url {
            StoreUrl::Memory => {
                return Ok(Limiter::with_store(set, salt, Clock::system(), |_, memory| {
                    Backend::Memory(memory)
                }));
            }
            StoreUrl::Sqlite(path) => path,
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

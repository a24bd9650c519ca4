//! What every door shares: the limiter, the settings, and what is recorded of a decision.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Response};
use tollgate::{Asked, Clock, Limiter, PolicySet, Ruling, Salt, Settled};
use tollgate_tower::shed::Shed;
use tollgate_tower::{Turns, to_its_end};

use crate::Failure;
use crate::answer;
use crate::backend::Backend;
use crate::body::Body;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::settings::Settings;

/// A way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// In front of an origin.
    Gateway,
    /// `/v1/check`.
    Check,
    /// `/v1/auth`.
    Auth,
    /// Envoy's rate limit service.
    Rls,
    /// The commands of Redis clients.
    Resp,
}

impl Door {
    /// The name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Gateway => "gateway",
            Door::Check => "check",
            Door::Auth => "auth",
            Door::Rls => "rls",
            Door::Resp => "resp",
        }
    }
}

/// Where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Origins have as much to do as they are given at once.
    Origin,
    /// As many requests wait for their turn as may.
    Queue,
}

impl Crowd {
    const fn name(self) -> &'static str {
        match self {
            Crowd::Origin => "origin",
            Crowd::Queue => "queue",
        }
    }
}

/// The running server.
#[derive(Debug)]
pub struct App {
    /// Decides.
    pub limiter: Arc<Limiter<Backend>>,
    /// The requests that wait for their turn.
    pub turns: Arc<Turns>,
    /// How much each origin is given at once, if that is bounded.
    pub sheds: Vec<Arc<Shed>>,
    /// What the server was told.
    pub settings: Settings,
    /// The policy file, if there is one.
    pub file: Option<PathBuf>,
    /// What is counted.
    pub metrics: Metrics,
    record: Record,
    stopping: AtomicBool,
}

impl App {
    /// A server of these policies. The clock is for counts in this process; a file has its own.
    ///
    /// # Errors
    /// [`Failure`] when the store or the metrics cannot be set up.
    pub fn new(
        settings: Settings,
        set: PolicySet,
        salt: Salt,
        file: Option<PathBuf>,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let metrics = Metrics::new().map_err(|error| Failure::Impossible(format!("metrics: {error}")))?;
        let record = Record::new(settings.log);
        let limiter = Backend::limiter(&settings.store, set, salt, clock)?;
        metrics.generation.set(1);
        let (limiter, turns) = (Arc::new(limiter), Turns::new(settings.limits.max_waiting));
        let shed = settings.shed.iter().flat_map(|shed| settings.upstream.iter().map(move |_| shed));
        let sheds = shed.map(|shed| shed.shed(limiter.clock())).collect();
        Ok(App { limiter, turns, sheds, settings, file, metrics, record, stopping: AtomicBool::new(false) })
    }

    /// Decides what is asked, together, and records the decision.
    pub async fn decide(&self, door: Door, asked: &[Asked<'_>]) -> Ruling {
        let start = self.limiter.clock().now();
        let ruling = self.limiter.decide_all(asked).await;
        let took = self.limiter.clock().now().saturating_sub(start);
        self.metrics.decided(&ruling, took);
        if let (true, Some(policy)) = (ruling.ban_began, ruling.scope()) {
            let lasts = tollgate::show_duration(ruling.barred().unwrap_or(0));
            tracing::warn!(audit = "ban", policy = policy.name, %lasts, "a subject was refused too often");
        }
        self.record.decided(door, &ruling, took);
        ruling
    }

    /// Settles a reservation, to the end also when whoever asked for it leaves.
    pub async fn settle(&self, token: String, used: u64) -> Settled {
        let limiter = Arc::clone(&self.limiter);
        let settled = to_its_end(async move { limiter.settle(&token, used).await }).await;
        let settled = settled.unwrap_or(Settled::Unavailable);
        self.metrics.settled(&settled);
        settled
    }

    /// A request that is turned away, whoever asks. Nothing that has to do with limits says anything of it.
    pub fn shed(&self, request: &HeaderMap, class: Option<usize>, why: Crowd) -> Response<Body> {
        let name = self.settings.shed.as_ref().zip(class).map_or("", |(shed, class)| shed.name(class));
        self.metrics.shed(why.name(), name);
        self.record.shed(self.limiter.clock().now(), why.name(), name);
        answer::overloaded(&self.settings, request)
    }

    /// Whether the server was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells it.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

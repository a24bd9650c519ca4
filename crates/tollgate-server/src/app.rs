//! What every door shares: the limiter, the settings, and what is recorded of a decision.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::{Asked, Clock, Limiter, PolicySet, Ruling, Salt};

use crate::Failure;
use crate::backend::Backend;
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

/// The running server.
#[derive(Debug)]
pub struct App {
    /// Decides.
    pub limiter: Limiter<Backend>,
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
        Ok(App { limiter, settings, file, metrics, record, stopping: AtomicBool::new(false) })
    }

    /// Decides what is asked, together, and records the decision.
    pub async fn decide(&self, door: Door, asked: &[Asked<'_>]) -> Ruling {
        let start = self.limiter.clock().now();
        let ruling = self.limiter.decide_all(asked).await;
        let took = self.limiter.clock().now().saturating_sub(start);
        self.metrics.decided(&ruling, took);
        self.record.decided(door, &ruling, took);
        ruling
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

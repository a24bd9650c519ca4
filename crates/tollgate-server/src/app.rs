//! What every door shares: the limiter, the settings, and what is recorded of a decision.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::{Check, Limiter, PolicySet, Request, Ruling, Salt};

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
}

impl Door {
    /// The name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Gateway => "gateway",
            Door::Check => "check",
            Door::Auth => "auth",
        }
    }
}

/// What a door asks.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    /// A request, to be charged.
    Request(&'a Request<'a>),
    /// A request, to be looked at.
    Look(&'a Request<'a>),
    /// Checks by name.
    Checks(&'a [Check<'a>]),
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
    /// A server of these policies.
    ///
    /// # Errors
    /// [`Failure`] when the store or the metrics cannot be set up.
    pub fn new(
        settings: Settings,
        set: PolicySet,
        salt: Salt,
        file: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let metrics = Metrics::new().map_err(|error| Failure::Impossible(format!("metrics: {error}")))?;
        let record = Record::new(settings.log);
        let limiter = Backend::limiter(&settings.store, set, salt)?;
        metrics.generation.set(1);
        Ok(App { limiter, settings, file, metrics, record, stopping: AtomicBool::new(false) })
    }

    /// Decides, and records the decision.
    pub async fn decide(&self, door: Door, ask: Ask<'_>) -> Ruling {
        let start = self.limiter.clock().now();
        let ruling = match ask {
            Ask::Request(request) => self.limiter.decide(request).await,
            Ask::Look(request) => self.limiter.look(request).await,
            Ask::Checks(checks) => self.limiter.decide_checks(checks).await,
        };
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

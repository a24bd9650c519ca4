//! Ahead of a campaign: connections are opened, scripts loaded and keys looked at before anybody waits for them.

use serde::Deserialize;
use tollgate::{Check, Reason};

use crate::app::App;

/// The most subjects of one call.
pub const MAX_SUBJECTS: usize = 10_000;

/// A subject that nobody has.
const NOBODY: &str = "\0";

/// What to look at.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Warm {
    /// A policy.
    pub policy: String,
    /// Its subjects.
    pub subjects: Vec<String>,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Subjects that were looked at.
    pub warm: usize,
    /// Those whose count was out of reach, or whose policy there is not.
    pub failed: usize,
}

/// Looks at these subjects, and at one that nobody has of every policy in a shared store, which opens the connection and loads
/// the script. That something is out of reach is no error: it will be asked again when it is needed.
pub async fn warm(app: &App, wanted: &[Warm]) -> Warmed {
    let policies = app.limiter.policies();
    let shared = policies.iter().filter(|ready| ready.policy.placement.is_shared());
    let mut named: Vec<(&str, &str)> = shared.map(|ready| (ready.policy.name.as_str(), NOBODY)).collect();
    for warm in wanted {
        named.extend(warm.subjects.iter().map(|subject| (warm.policy.as_str(), subject.as_str())));
    }
    let mut warmed = Warmed::default();
    for (policy, subject) in named {
        let ruling = app.limiter.decide_checks(&[Check { policy, subject, cost: Some(0) }]).await;
        let fine = ruling.fallback.is_none() && ruling.reason == Reason::Admitted;
        warmed.warm += usize::from(fine);
        warmed.failed += usize::from(!fine);
    }
    warmed
}

use std::fmt;
use std::time::Duration;

use tollgate::{Reason, Ruling};

/// Why a call behind a [`Check`](crate::Check) gave nothing.
#[derive(Debug)]
pub enum Error<E> {
    /// It was refused, and not made.
    Refused(Refused),
    /// The service's own error.
    Inner(E),
}

/// A call that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// The policy that fired.
    pub policy: String,
    /// When the same call would be made, if nothing else is; `None` when there is no such time.
    pub retry_after: Option<Duration>,
}

impl Refused {
    pub(crate) fn by(policy: &str, ruling: &Ruling) -> Self {
        let retry_after = ruling.retry_after().map(Duration::from_nanos);
        Refused { reason: ruling.reason, policy: policy.to_owned(), retry_after }
    }
}

impl Refused {
    /// As many wait for their turn as may.
    pub(crate) fn crowded(policy: &str) -> Self {
        Refused { reason: Reason::Unavailable, policy: policy.to_owned(), retry_after: None }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy `{}` refused ({})", self.policy, self.reason.name())?;
        self.retry_after.map_or(Ok(()), |after| write!(f, "; try again in {after:?}"))
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refused) => refused.fmt(f),
            Error::Inner(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused(refused) => Some(refused),
            Error::Inner(error) => Some(error),
        }
    }
}

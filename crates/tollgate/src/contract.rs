//! What a refusal promises: status, headers and body.
//!
//! Fields follow the IETF draft `draft-ietf-httpapi-ratelimit-headers` (revision 11), bodies RFC 9457. Everything is rounded
//! once, up, so that nothing is ever promised early.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::json;
use tollgate_core::SECOND;

use crate::{Part, Reason, Ruling};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field (RFC 9651).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Which headers are sent, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    pub draft: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// Whether `X-RateLimit-Reset` is a time since the epoch instead of seconds from now.
    pub epoch_reset: bool,
    /// Up to so many nanoseconds are added to `Retry-After`, never taken off, so that clients do not return together.
    pub retry_jitter: u64,
}

impl Default for Contract {
    fn default() -> Self {
        Contract { draft: true, x_ratelimit: true, epoch_reset: false, retry_jitter: 0 }
    }
}

/// Whole seconds, rounded up.
pub const fn seconds(nanos: u64) -> u64 {
    nanos.div_ceil(SECOND)
}

impl Reason {
    /// The HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Reason::Admitted => StatusCode::OK,
            Reason::Throttled | Reason::TooCostly | Reason::Held => StatusCode::TOO_MANY_REQUESTS,
            Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Blocked | Reason::Banned => StatusCode::FORBIDDEN,
            Reason::NoSubject | Reason::BadCost | Reason::BadQuota | Reason::NoReservations => {
                StatusCode::BAD_REQUEST
            }
            Reason::UnknownPolicy => StatusCode::NOT_FOUND,
        }
    }

    /// The status as an integer that gRPC clients expect: RESOURCE_EXHAUSTED for a refusal, UNAVAILABLE for our own fault.
    pub const fn grpc_status(self) -> u8 {
        match self {
            Reason::Admitted => 0,
            Reason::Throttled | Reason::TooCostly | Reason::Held => 8,
            Reason::Unavailable => 14,
            Reason::Blocked | Reason::Banned => 7,
            Reason::NoSubject | Reason::BadCost | Reason::BadQuota | Reason::NoReservations => 3,
            Reason::UnknownPolicy => 5,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Reason::Admitted => "Admitted",
            Reason::Throttled | Reason::TooCostly | Reason::Held => "Quota Exceeded",
            Reason::Unavailable => "Temporary Reduced Capacity",
            Reason::Blocked | Reason::Banned => "Forbidden",
            Reason::NoSubject | Reason::BadCost | Reason::BadQuota | Reason::NoReservations => "Bad Request",
            Reason::UnknownPolicy => "Not Found",
        }
    }

    const fn kind(self) -> &'static str {
        match self {
            Reason::Throttled | Reason::TooCostly | Reason::Held => {
                "https://iana.org/assignments/http-problem-types#quota-exceeded"
            }
            Reason::Unavailable => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            _ => "about:blank",
        }
    }

    const fn error(self) -> &'static str {
        match self {
            Reason::Admitted => "none",
            Reason::Throttled => "rate_limited",
            Reason::TooCostly => "cost_above_limit",
            Reason::Unavailable => "limiter_unavailable",
            Reason::Blocked => "blocked",
            Reason::Banned => "banned",
            Reason::Held => "origin_limit",
            Reason::NoReservations => "no_reservations",
            Reason::NoSubject => "no_subject",
            Reason::BadCost => "bad_cost",
            Reason::BadQuota => "bad_quota",
            Reason::UnknownPolicy => "unknown_policy",
        }
    }
}

impl Contract {
    /// The seconds of `Retry-After`: at least 1, never early; `None` when no retry helps.
    pub fn retry_after(&self, ruling: &Ruling) -> Option<u64> {
        let wait = match ruling.retry_after() {
            Some(wait) => wait,
            None if ruling.reason == Reason::Unavailable => SECOND,
            None => return None,
        };
        let key = ruling.parts().map(|(_, part)| part.key.0).next().unwrap_or(0);
        let spread = u64::try_from(key & u128::from(u64::MAX)).unwrap_or(0) ^ ruling.now;
        let jitter = spread.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (self.retry_jitter.saturating_add(1));
        Some(seconds(wait.saturating_add(jitter)).max(1))
    }

    /// Adds the headers of a ruling to a response.
    pub fn write(&self, ruling: &Ruling, headers: &mut HeaderMap) {
        let retry = self.retry_after(ruling);
        if let Some(retry) = retry {
            headers.insert(header::RETRY_AFTER, retry.into());
        }
        if !ruling.is_admit() {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        if self.draft {
            self.write_draft(ruling, retry, headers);
        }
        if self.x_ratelimit {
            self.write_x(ruling, retry, headers);
        }
    }

    fn write_draft(&self, ruling: &Ruling, retry: Option<u64>, headers: &mut HeaderMap) {
        let (mut policies, mut limits) = (String::new(), String::new());
        for (policy, part) in ruling.parts() {
            let comma = if policies.is_empty() { "" } else { "," };
            let (name, quota) = (&policy.name, part.outcome.limit.min(MAX_INTEGER));
            let (window, wait) = (seconds(part.window).max(1), time(part, retry));
            let left = part.outcome.remaining.min(MAX_INTEGER);
            policies += &format!("{comma}\"{name}\";q={quota};w={window}");
            limits += &format!("{comma}\"{name}\";r={left};t={wait}");
        }
        // Names are letters, digits and a few marks, so both are always header values.
        if let (false, Ok(policies), Ok(limits)) = (policies.is_empty(), policies.parse(), limits.parse()) {
            headers.insert(RATELIMIT_POLICY, policies);
            headers.insert(RATELIMIT, limits);
        }
    }

    /// The policy that is closest to its end: the one that refused, else the one with the least left.
    fn write_x(&self, ruling: &Ruling, retry: Option<u64>, headers: &mut HeaderMap) {
        let scope = ruling.scope().map(|policy| policy.name.clone());
        let closest = ruling
            .parts()
            .min_by_key(|(policy, part)| (Some(&policy.name) != scope.as_ref(), part.outcome.remaining));
        let Some((_, part)) = closest else { return };
        let delta = time(part, retry);
        let reset = if self.epoch_reset { seconds(ruling.now).saturating_add(delta) } else { delta };
        headers.insert(X_LIMIT, part.outcome.limit.into());
        headers.insert(X_REMAINING, part.outcome.remaining.into());
        headers.insert(X_RESET, reset.into());
    }

    /// The RFC 9457 body of a refusal. It says nothing of the subject, so that nobody learns whether one exists.
    pub fn problem(&self, ruling: &Ruling) -> serde_json::Value {
        let violated: Vec<&str> = ruling.violated().map(|policy| policy.name.as_str()).collect();
        let scope = ruling.scope().map(|policy| policy.name.as_str());
        let retry = self.retry_after(ruling);
        let detail = match (ruling.reason, retry) {
            (Reason::Throttled | Reason::Held, Some(retry)) => format!("Try again in {retry} s."),
            (Reason::TooCostly, _) => "This costs more than the quota can ever give at once.".to_owned(),
            (Reason::Unavailable, _) => {
                "The request could not be counted. The fault is on this side.".to_owned()
            }
            (Reason::Blocked, _) => "This client is not served.".to_owned(),
            (Reason::Banned, _) => {
                "This client was refused too often, and is not served for a while.".to_owned()
            }
            (Reason::NoReservations, _) => "This policy takes no reservations.".to_owned(),
            (Reason::NoSubject, _) => {
                "The request does not say, once and clearly, on whose behalf it is made.".to_owned()
            }
            (Reason::BadCost, _) => "The cost header is not a whole number.".to_owned(),
            (Reason::BadQuota, _) => {
                "The quota that was asked for is none, or above the policy's.".to_owned()
            }
            (Reason::UnknownPolicy, _) => "There is no policy of this name.".to_owned(),
            _ => String::new(),
        };
        json!({
            "type": ruling.reason.kind(),
            "title": ruling.reason.title(),
            "status": ruling.reason.status().as_u16(),
            "detail": detail,
            "violated-policies": violated,
            "error": ruling.reason.error(),
            "scope": scope,
            "retry_after": retry,
        })
    }
}

/// Seconds of `t`: until all is back, or for a refusal no earlier than `Retry-After`.
fn time(part: &Part, retry: Option<u64>) -> u64 {
    match retry {
        Some(retry) if !part.outcome.verdict.is_admit() => retry,
        _ => seconds(part.outcome.reset_after),
    }
}

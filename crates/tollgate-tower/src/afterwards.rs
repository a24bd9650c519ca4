//! After the response: what it costs is charged, and what its origin asks for is done.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use tollgate::{Limiter, Response, Ruling, Store};

use crate::charged::to_its_end;

/// How long an origin wants to hear nothing, from the head of its response: the `Retry-After` of a 429 or 503, in seconds or as a date.
/// `now` is in nanoseconds since the Unix epoch.
pub fn retry_after(status: StatusCode, headers: &HeaderMap, now: u64) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let mut lines = headers.get_all(header::RETRY_AFTER).iter();
    let (Some(line), None) = (lines.next()?.to_str().ok(), lines.next()) else { return None };
    let line = line.trim();
    if !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than can be counted is for ever.
        return Some(Duration::from_secs(line.parse().unwrap_or(u64::MAX)));
    }
    let then = httpdate::parse_http_date(line).ok()?;
    let then = then.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(then.saturating_sub(Duration::from_nanos(now)))
}

/// Tells a limiter what came of a request that it was asked about with [`Asked::Exchange`](tollgate::Asked::Exchange): policies that
/// go by the response charge what it costs, and those that obey hold the subject as long as the origin asks. Goes on to its end
/// also when the client leaves.
pub async fn responded<S: Store + 'static>(
    limiter: &Arc<Limiter<S>>,
    ruling: Ruling,
    status: StatusCode,
    headers: &HeaderMap,
    size: Option<u64>,
) -> Ruling {
    if !ruling.goes_by_response() {
        return ruling;
    }
    let before = ruling.clone();
    let (limiter, headers, mut ruling) = (Arc::clone(limiter), headers.clone(), ruling);
    let told = async move {
        limiter.responded(&mut ruling, &Response { status, headers: &headers, size }).await;
        if let Some(wait) = retry_after(status, &headers, limiter.clock().now()) {
            limiter.obey(&ruling, u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)).await;
        }
        ruling
    };
    to_its_end(told).await.unwrap_or(before)
}

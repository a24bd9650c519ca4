//! A ruling, said to Envoy.

use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tollgate::contract::Contract;
use tollgate::{Part, Policy, Reason, Ruling, SECOND, Verdict};
use tonic::Status;

use crate::rls::protocol::envoy::config::core::v3::HeaderValue;
use crate::rls::protocol::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::rls::protocol::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::rls::protocol::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::rls::read::Said;

/// The answer to what was asked. Whatever a policy refuses is over the limit, for whatever reason, since an error would let it
/// through; only what was asked wrongly is an error.
pub(super) fn answer(
    contract: &Contract,
    said: &Said<'_>,
    ruling: &Ruling,
) -> Result<RateLimitResponse, Status> {
    if ruling.reason == Reason::UnknownPolicy {
        return Err(Status::not_found("there is no policy of this name"));
    }
    let mut headers = HeaderMap::new();
    contract.write(ruling, &mut headers);
    let mut response = RateLimitResponse {
        overall_code: code(ruling.is_admit()).into(),
        statuses: said.of_each().into_iter().map(|own| status(ruling, own)).collect(),
        dynamic_metadata: Some(metadata(ruling)),
        ..RateLimitResponse::default()
    };
    if !ruling.is_admit() {
        response.raw_body = contract.problem(ruling).to_string().into_bytes();
        headers
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/problem+json"));
        headers.insert("x-rl-status", ruling.reason.status().as_u16().into());
    }
    response.response_headers_to_add = headers
        .iter()
        .filter_map(|(name, value)| {
            Some(HeaderValue { key: name.to_string(), value: value.to_str().ok()?.to_owned() })
        })
        .collect();
    Ok(response)
}

fn code(admit: bool) -> Code {
    if admit { Code::Ok } else { Code::OverLimit }
}

/// What is said of one descriptor: of its policies the one that refused, else the one that is closest to its end.
fn status(ruling: &Ruling, own: std::ops::Range<usize>) -> DescriptorStatus {
    let parts = own.flat_map(|n| ruling.parts_of(n));
    let closest = parts.min_by_key(|(_, part)| (part.outcome.verdict.is_admit(), part.outcome.remaining));
    let Some((policy, part)) = closest else {
        // Without a part of its own it is refused only when nobody had one: nothing was counted at all.
        let counted = ruling.parts().next().is_some();
        return DescriptorStatus { code: code(ruling.is_admit() || counted).into(), ..Default::default() };
    };
    let until = match part.outcome.verdict {
        Verdict::Refuse { retry_after } | Verdict::Full { retry_after } => retry_after,
        _ => part.outcome.reset_after,
    };
    DescriptorStatus {
        code: code(part.outcome.verdict.is_admit()).into(),
        current_limit: Some(current_limit(policy, part)),
        limit_remaining: u32::try_from(part.outcome.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(until)),
    }
}

fn duration(nanos: u64) -> prost_types::Duration {
    let seconds = i64::try_from(nanos / SECOND).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: i32::try_from(nanos % SECOND).unwrap_or(0) }
}

/// What may be spent at once, under the unit in which that comes back. A time that is none of Envoy's units has none.
fn current_limit(policy: &Policy, part: &Part) -> RateLimit {
    let unit = match part.window / SECOND {
        _ if !part.window.is_multiple_of(SECOND) => Unit::Unknown,
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    };
    let requests_per_unit = u32::try_from(part.outcome.limit).unwrap_or(u32::MAX);
    RateLimit { requests_per_unit, unit: unit.into(), name: policy.name.clone() }
}

/// What access logs and later filters may read: why, by which policy, whether the store could not answer, and how long a leaky
/// queue would have it wait.
fn metadata(ruling: &Ruling) -> Struct {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let mut fields = std::collections::BTreeMap::new();
    fields.insert("reason".to_owned(), text(ruling.reason.name()));
    if let Some(policy) = ruling.scope() {
        fields.insert("policy".to_owned(), text(&policy.name));
    }
    fields.insert("fallback".to_owned(), Value { kind: Some(Kind::BoolValue(ruling.fallback.is_some())) });
    if ruling.wait() > 0 {
        let wait = ruling.wait().div_ceil(1_000_000) as f64;
        fields.insert("wait_ms".to_owned(), Value { kind: Some(Kind::NumberValue(wait)) });
    }
    Struct { fields }
}

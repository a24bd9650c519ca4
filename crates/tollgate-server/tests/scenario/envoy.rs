//! Envoy's rate limit service, asked by name and with the attributes of a request.

use tollgate_server::rls::protocol::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::rls::protocol::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_server::rls::protocol::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::rls::protocol::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::doors::{Answering, Door, door};
use crate::rig::Running;
use crate::{Said, Step};

type RlsClient = RateLimitServiceClient<tonic::transport::Channel>;

async fn rls_client(running: &Running) -> RlsClient {
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", running.rls)).unwrap();
    RateLimitServiceClient::new(channel.connect().await.unwrap())
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn limited(answer: Result<tonic::Response<RateLimitResponse>, tonic::Status>) -> Said {
    let answer = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound => {
            return Said { reason: "unknown_policy".to_owned(), grain: 1, ..Said::default() };
        }
        Err(status) => panic!("{status:?}"),
    };
    let told = answer.statuses.iter().filter(|status| status.current_limit.is_some());
    let told: Vec<_> = told.collect();
    let milliseconds = |duration: &Option<prost_types::Duration>| {
        let duration = duration.unwrap_or_default();
        duration.seconds.unsigned_abs() * 1_000 + u64::from(duration.nanos.unsigned_abs()).div_ceil(1_000_000)
    };
    let metadata = answer.dynamic_metadata.clone().unwrap_or_default();
    let reason = match metadata.fields.get("reason").and_then(|value| value.kind.clone()) {
        Some(prost_types::value::Kind::StringValue(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(answer.overall_code == 1, reason == "admit", "{answer:?}");
    let refused = told.iter().filter(|status| status.code == 2);
    Said {
        left: told.iter().map(|status| status.limit_remaining.into()).collect(),
        limit: told
            .iter()
            .map(|status| status.current_limit.as_ref().unwrap().requests_per_unit.into())
            .collect(),
        retry: if reason == "refuse" {
            refused.map(|status| milliseconds(&status.duration_until_reset)).max()
        } else {
            None
        },
        reset: told
            .first()
            .filter(|_| reason == "admit")
            .map(|status| milliseconds(&status.duration_until_reset)),
        reason,
        grain: 1,
    }
}

/// Envoy's service, by name: a descriptor a policy.
pub(crate) struct Rls(RlsClient);

impl Rls {
    pub(crate) async fn new(running: &Running) -> Self {
        Rls(rls_client(running).await)
    }
}

door!(Rls, "rls", requests: false, |door, step| {
    let descriptors = step.ask.iter().map(|policy| RateLimitDescriptor {
        hits_addend: Some(step.cost.unsigned_abs()),
        is_negative_hits: step.cost < 0,
        ..descriptor(&[(policy, &step.subject)])
    });
    let descriptors = descriptors.collect();
    let request = RateLimitRequest { domain: "tollgate".to_owned(), descriptors, hits_addend: 0 };
    limited(door.0.should_rate_limit(request).await)
});

/// Envoy's service, with the attributes of a request.
pub(crate) struct RlsRequests(RlsClient);

impl RlsRequests {
    pub(crate) async fn new(running: &Running) -> Self {
        RlsRequests(rls_client(running).await)
    }
}

door!(RlsRequests, "rls of a request", requests: true, |door, step| {
    let (path, cost) = (step.path(), step.cost.to_string());
    let mut entries = vec![("path", path.as_str()), ("header:x-cost", cost.as_str())];
    if !step.subject.is_empty() {
        entries.push(("header:x-user", &step.subject));
    }
    let descriptors = vec![descriptor(&entries)];
    let request = RateLimitRequest { domain: "tollgate.request".to_owned(), descriptors, hits_addend: 0 };
    let mut said = limited(door.0.should_rate_limit(request).await);
    // One descriptor is told of one policy, the closest to its end.
    if step.ask.len() > 1 {
        (said.left, said.limit, said.reset) = (Vec::new(), Vec::new(), None);
    }
    said
});

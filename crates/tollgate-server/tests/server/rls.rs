//! Envoy's rate limit service, asked by tonic and by Python's grpcio.

use std::future::Future;

use tollgate_server::rls::protocol::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::rls::protocol::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_server::rls::protocol::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::rls::protocol::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::rig::{Folder, Server, get, python, wait_for};

const POLICIES: &str = r#"
[server]
api = "127.0.0.1:0"
rls = "127.0.0.1:0"

[[policy]]
name  = "database"
match = { domain = "d", descriptor = "database" }
quota = "5/1m"

[[policy]]
name  = "users"
match = { domain = "d", descriptor = "database=users" }
quota = "2/1s"

[[policy]]
name  = "odd"
match = { domain = "d", descriptor = "odd" }
quota = "7/10s"

[[policy]]
name  = "plan"
match = { domain = "d", descriptor = "plan" }
quota = "100/1s"
client_quota = true

[[policy]]
name  = "watched"
match = { domain = "d", descriptor = "watched" }
quota = "1/1h"
shadow = true

[[policy]]
name  = "login"
match = { path = "/login" }
subject = "header:x-user"
quota = "3/1m"
"#;

type Client = RateLimitServiceClient<Channel>;

/// A server and a client of it, in a runtime.
fn with_client<F: Future<Output = Server>>(test: impl FnOnce(Server, Client) -> F) {
    let folder = Folder::new();
    let server = Server::run_file(&folder.write("p.toml", POLICIES));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel =
            Channel::from_shared(format!("http://{}", server.rls)).unwrap().connect().await.unwrap();
        // It lives as long as the test does.
        drop(test(server, RateLimitServiceClient::new(channel)).await);
    });
}

fn of(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

async fn ask(
    client: &mut Client,
    domain: &str,
    hits_addend: u32,
    descriptors: Vec<RateLimitDescriptor>,
) -> Result<RateLimitResponse, Status> {
    let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend };
    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

/// For each descriptor its code and what is left.
fn told(response: &RateLimitResponse) -> Vec<(i32, u32)> {
    response.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
}

#[test]
fn statuses_come_in_order_and_all_are_charged_or_none() {
    with_client(|server, mut client| async move {
        let both =
            || vec![of(&[("database", "users")]), of(&[("unknown", "x")]), of(&[("database", "logs")])];
        let first = ask(&mut client, "d", 0, both()).await.unwrap();
        assert_eq!((first.overall_code, told(&first)), (1, vec![(1, 1), (1, 0), (1, 4)]));
        let limit =
            |n: usize| first.statuses[n].current_limit.clone().map(|l| (l.requests_per_unit, l.unit, l.name));
        assert_eq!(limit(0), Some((2, 1, "users".to_owned())), "2 a second");
        assert_eq!((limit(1), limit(2)), (None, Some((5, 2, "database".to_owned()))));
        let headers: Vec<&str> =
            first.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
        assert!(headers.contains(&"ratelimit") && headers.contains(&"x-ratelimit-limit"), "{headers:?}");
        assert!(first.raw_body.is_empty());
        let refused = ask(&mut client, "d", 2, both()).await.unwrap();
        assert_eq!(
            (refused.overall_code, told(&refused)),
            (2, vec![(2, 1), (1, 0), (1, 4)]),
            "none is charged"
        );
        let until = refused.statuses[0].duration_until_reset.unwrap();
        assert!(until.seconds == 0 && until.nanos > 0, "{until:?}");
        let retry =
            refused.response_headers_to_add.iter().find(|header| header.key == "retry-after").unwrap();
        assert_eq!(retry.value, "1");
        assert!(String::from_utf8_lossy(&refused.raw_body).contains("\"scope\":\"users\""));
        let odd = ask(&mut client, "d", 0, vec![of(&[("odd", "x")])]).await.unwrap();
        assert_eq!(
            odd.statuses[0].current_limit.as_ref().unwrap().unit,
            0,
            "ten seconds are no unit of Envoy's"
        );
        let told = || server.decisions().iter().any(|l| l["door"] == "rls" && l["decision"] == "refuse");
        wait_for("the line", told);
        server
    });
}

#[test]
fn hits_are_taken_looked_for_and_given_back_at_both_levels() {
    with_client(|server, mut client| async move {
        let logs = |own: Option<u64>, negative| {
            let descriptor = of(&[("database", "logs")]);
            vec![RateLimitDescriptor { hits_addend: own, is_negative_hits: negative, ..descriptor }]
        };
        let mut left = async |hits, own, negative| {
            let answer = ask(&mut client, "d", hits, logs(own, negative)).await.unwrap();
            (answer.overall_code, answer.statuses[0].limit_remaining)
        };
        assert_eq!(left(3, None, false).await, (1, 2), "the request's");
        assert_eq!(left(3, Some(1), false).await, (1, 1), "the descriptor's stands above it");
        assert_eq!(left(3, Some(0), false).await, (1, 1), "0 looks");
        assert_eq!(left(0, None, false).await, (1, 0), "without any it is 1");
        assert_eq!(left(0, None, false).await, (2, 0));
        assert_eq!(left(0, Some(2), true).await, (1, 2), "given back");
        assert_eq!(left(0, None, true).await, (1, 3), "one, without a number");
        assert_eq!(left(0, Some(6), false).await, (2, 3), "above the burst");
        assert_eq!(left(0, Some(u64::MAX), false).await, (2, 3));
        assert_eq!(left(0, Some(u64::MAX), true).await, (1, 5), "full, and no fuller");
        server
    });
}

#[test]
fn domains_name_policies_describe_requests_or_are_somebody_else_s() {
    with_client(|server, mut client| async move {
        let unknown = ask(&mut client, "elsewhere", 0, vec![of(&[("database", "users")])]).await.unwrap();
        assert_eq!((unknown.overall_code, told(&unknown)), (1, vec![(1, 0)]));
        let name = |policy, subject| vec![of(&[(policy, subject)])];
        for left in [2, 1, 0] {
            let named = ask(&mut client, "tollgate", 0, name("login", "alice")).await.unwrap();
            assert_eq!(told(&named), [(1, left)]);
        }
        let request = vec![of(&[("path", "/login?x=y"), ("method", "POST"), ("header:x-user", "alice")])];
        let described = ask(&mut client, "tollgate.request", 0, request).await.unwrap();
        assert_eq!(told(&described), [(2, 0)], "the same count, however it is asked for");
        let two = ask(&mut client, "tollgate", 0, vec![of(&[("login", "bob"), ("database", "logs")])])
            .await
            .unwrap();
        assert_eq!(told(&two), [(1, 2)], "one descriptor, two policies, the closest to its end");
        let watched = vec![of(&[("watched", "x")])];
        for _ in 0..3 {
            assert_eq!(ask(&mut client, "d", 0, watched.clone()).await.unwrap().overall_code, 1);
        }
        let refused = "tollgate_decisions_total{decision=\"shadow_refuse\",policy=\"watched\"}";
        assert!(server.metric(refused) >= 2.0);
        server
    });
}

#[test]
fn a_limit_that_is_sent_along_counts_where_the_policy_lets_it_and_no_higher() {
    with_client(|server, mut client| async move {
        let plan = |key, requests_per_unit, unit| {
            let limit = RateLimitOverride { requests_per_unit, unit };
            vec![RateLimitDescriptor { limit: Some(limit), ..of(&[(key, "gold")]) }]
        };
        let limit = |response: RateLimitResponse| {
            let limit = response.statuses[0].current_limit.clone().unwrap();
            (limit.requests_per_unit, limit.unit)
        };
        assert_eq!(limit(ask(&mut client, "d", 0, plan("plan", 50, 1)).await.unwrap()), (50, 1));
        assert_eq!(limit(ask(&mut client, "d", 0, plan("database", 50, 1)).await.unwrap()), (5, 2));
        for (requests, unit) in [(101, 1), (0, 1), (5, 0), (u32::MAX, 6)] {
            let wrong = ask(&mut client, "d", 0, plan("plan", requests, unit)).await.unwrap();
            assert_eq!(
                told(&wrong),
                [(2, 0)],
                "{requests} {unit}: refused, for an error would let it through"
            );
            let elsewhere = ask(&mut client, "d", 0, plan("database", requests, unit)).await.unwrap();
            assert_eq!(elsewhere.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 5);
        }
        let twice = [plan("plan", 50, 1), plan("plan", 50, 2)].concat();
        assert_eq!(ask(&mut client, "d", 0, twice).await.unwrap().overall_code, 2, "one key by two quotas");
        server
    });
}

#[test]
fn what_is_asked_wrongly_is_an_error_and_what_is_refused_never_is() {
    with_client(|server, mut client| async move {
        let code = |answer: Result<RateLimitResponse, Status>| answer.map_or_else(|s| s.code(), |_| Code::Ok);
        let many = |n| vec![of(&[("database", "x")]); n];
        assert_eq!(code(ask(&mut client, "", 0, many(1)).await), Code::InvalidArgument);
        assert_eq!(code(ask(&mut client, "d", 0, vec![]).await), Code::InvalidArgument);
        assert_eq!(code(ask(&mut client, "d", 0, many(17)).await), Code::InvalidArgument);
        assert_eq!(code(ask(&mut client, "d", 0, many(16)).await), Code::Ok);
        assert_eq!(code(ask(&mut client, "d", 0, vec![of(&[])]).await), Code::InvalidArgument);
        assert_eq!(code(ask(&mut client, "d", 0, vec![of(&[("", "x")])]).await), Code::InvalidArgument);
        assert_eq!(code(ask(&mut client, "d", 0, vec![of(&[("a", "x"); 17])]).await), Code::InvalidArgument);
        assert_eq!(
            code(ask(&mut client, "tollgate", 0, vec![of(&[("nowhere", "x")])]).await),
            Code::NotFound
        );
        let wrong = vec![of(&[("colour", "x")])];
        assert_eq!(code(ask(&mut client, "tollgate.request", 0, wrong).await), Code::InvalidArgument);
        let wrong = vec![of(&[("remote_address", "x")])];
        assert_eq!(code(ask(&mut client, "tollgate.request", 0, wrong).await), Code::InvalidArgument);
        let huge = vec![of(&[("database", &"x".repeat(1 << 20))])];
        assert_eq!(code(ask(&mut client, "d", 0, huge).await), Code::OutOfRange);
        let nobody = ask(&mut client, "tollgate", 0, vec![of(&[("login", "")])]).await.unwrap();
        assert_eq!(told(&nobody), [(2, 0)], "a policy that wants a subject refuses nobody's");
        let status =
            nobody.response_headers_to_add.iter().find(|header| header.key == "x-rl-status").unwrap();
        assert_eq!(status.value, "400");
        let empty = ask(&mut client, "d", 0, vec![of(&[("database", "")])]).await.unwrap();
        assert_eq!(told(&empty), [(1, 4)], "an empty value is one too");
        let entry = Entry { key: "database".into(), value: vec![0xFF, 0xFE] };
        let bytes = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        assert_eq!(
            told(&ask(&mut client, "d", 0, vec![bytes]).await.unwrap()),
            [(1, 4)],
            "what is no text counts"
        );
        assert_eq!(get(&server.admin, "/healthz", &[]).status, 200);
        server
    });
}

#[test]
fn health_is_told_watched_and_ends_with_the_server() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    with_client(|mut server, _client| async move {
        let channel =
            Channel::from_shared(format!("http://{}", server.rls)).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        let of = |service: &str| HealthCheckRequest { service: service.to_owned() };
        let own = "envoy.service.ratelimit.v3.RateLimitService";
        assert_eq!(health.check(of(own)).await.unwrap().into_inner().status, 1);
        assert_eq!(health.check(of("other")).await.unwrap_err().code(), Code::NotFound);
        let mut watch = health.watch(of("")).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
        server.signal("-TERM");
        let last = watch.message().await;
        let gone = matches!(&last, Ok(Some(last)) if last.status == 2) || last.is_err();
        assert!(gone, "{last:?}");
        assert!(server.ended(), "a watcher does not keep it");
        server
    });
}

mod real {
    use super::*;

    #[test]
    fn grpcio_finds_the_service_by_reflection_and_uses_it() {
        let folder = Folder::new();
        let server = Server::run_file(&folder.write("p.toml", POLICIES));
        let said = python("rls.py", &[&server.rls]);
        assert!(said.ends_with("fine\n"), "{said}");
    }
}

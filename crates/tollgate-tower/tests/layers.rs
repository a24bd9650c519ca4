//! The layers before services of their own, on a manual clock; and each example, run.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tollgate::{Clock, Limiter, Memory, PolicySet, SECOND, Salt};
use tollgate_tower::{CheckLayer, Error, LimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

const START: u64 = 1_800_057_600 * SECOND;

fn limiter(text: &str) -> (Arc<Limiter>, Clock) {
    let clock = Clock::manual(START);
    let set = PolicySet::from_toml(text).unwrap_or_else(|problems| panic!("{problems}"));
    (Arc::new(Limiter::new(set, Salt::random(), clock.clone())), clock)
}

const POLICY: &str = "[[policy]]\nname = \"p\"\nsubject = \"header:x-user\"\nquota = \"2/1m\"\n";

type Body = Full<bytes::Bytes>;

/// A service that counts its calls.
fn counting(
    calls: &Arc<AtomicUsize>,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + use<>
{
    let calls = Arc::clone(calls);
    service_fn(move |_request| {
        calls.fetch_add(1, Ordering::SeqCst);
        async {
            Ok(Response::builder().header("x-ratelimit-limit", "stale").body(Body::from("served")).unwrap())
        }
    })
}

fn request(user: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get("http://example.com/x").header("x-user", user);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::default()).unwrap()
}

async fn call<S, R>(service: &mut S, request: Request<Body>) -> (StatusCode, HeaderMap, String)
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Error: std::fmt::Debug>,
{
    let response = service.ready().await.unwrap().call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn what_is_refused_never_reaches_the_service_and_says_when_to_come_back() {
    let (limiter, clock) = limiter(POLICY);
    let calls = Arc::default();
    let mut service = LimitLayer::new(limiter).layer(counting(&calls));
    let (status, headers, body) = call(&mut service, request("a", &[])).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "served"));
    assert_eq!(headers["ratelimit"], "\"p\";r=1;t=30");
    assert_eq!(
        headers.get_all("x-ratelimit-limit").iter().count(),
        1,
        "what stands there already is replaced"
    );
    call(&mut service, request("a", &[])).await;
    let (status, headers, body) = call(&mut service, request("a", &[])).await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"30".parse().unwrap()));
    assert!(body.contains("\"violated-policies\":[\"p\"]"), "{body}");
    assert_eq!(call(&mut service, request("b", &[])).await.0, StatusCode::OK);
    let grpc = call(&mut service, request("a", &[("content-type", "application/grpc")])).await;
    assert_eq!((grpc.0, &grpc.1["grpc-status"]), (StatusCode::OK, &"8".parse().unwrap()));
    assert_eq!(grpc.1["grpc-retry-pushback-ms"], "30000");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    clock.set(START + 30 * SECOND);
    assert_eq!(call(&mut service, request("a", &[])).await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_leaky_queue_is_waited_for_and_a_call_that_is_dropped_calls_nothing() {
    let (limiter, _) = limiter(
        "[[policy]]\nname = \"q\"\nsubject = \"header:x-user\"\nquota = \"1/1s burst 1 queue 2\"\nalgorithm = \"leaky-queue\"\n",
    );
    let calls = Arc::default();
    let mut service = LimitLayer::new(limiter).layer(counting(&calls));
    call(&mut service, request("a", &[])).await;
    let waits = service.ready().await.unwrap().call(request("a", &[]));
    let dropped = service.ready().await.unwrap().call(request("a", &[]));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(dropped);
    let start = tokio::time::Instant::now();
    assert_eq!(waits.await.unwrap().status(), StatusCode::OK);
    assert_eq!(start.elapsed().as_millis(), 1_000);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_count_out_of_reach_is_answered_by_the_policy_s_direction() {
    for (direction, status) in [("refuse", 503), ("admit", 200)] {
        let text = format!("{POLICY}placement = \"local\"\non_unavailable = \"{direction}\"\n");
        let mut set = PolicySet::from_toml(&text).unwrap();
        set.policies[0].placement = tollgate::Placement::Strict;
        let limiter: Limiter<Memory> = Limiter::new(set, Salt::random(), Clock::manual(START));
        let calls = Arc::default();
        let mut service = LimitLayer::new(limiter).layer(counting(&calls));
        assert_eq!(call(&mut service, request("a", &[])).await.0, status, "{direction}");
    }
}

#[tokio::test]
async fn preflights_are_not_charged() {
    let (limiter, _) = limiter(POLICY);
    let calls = Arc::default();
    let mut service = LimitLayer::new(limiter).layer(counting(&calls));
    for _ in 0..5 {
        let mut preflight =
            request("a", &[("origin", "https://a"), ("access-control-request-method", "PUT")]);
        *preflight.method_mut() = http::Method::OPTIONS;
        assert_eq!(call(&mut service, preflight).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_check_refuses_with_an_error_that_says_when_to_come_back() {
    let (limiter, _) = limiter(POLICY);
    let inner = service_fn(|n: u32| async move { if n < 9 { Ok(n) } else { Err("the service's own") } });
    let mut service = CheckLayer::new(limiter, "p", |n: &u32| (n % 2).to_string()).layer(inner);
    let mut ask = async |n| service.ready().await.map(drop).and(service.call(n).await);
    assert_eq!((ask(2).await.unwrap(), ask(4).await.unwrap(), ask(3).await.unwrap()), (2, 4, 3));
    let Err(Error::Refused(refused)) = ask(6).await else { panic!("the third even one") };
    assert_eq!(refused.retry_after, Some(Duration::from_secs(30)));
    assert_eq!(refused.to_string(), "policy `p` refused (refuse); try again in 30s");
    assert!(matches!(ask(9).await, Err(Error::Inner("the service's own"))));
}

#[tokio::test]
async fn what_counts_is_known_when_the_service_has_answered_and_what_it_asks_for_is_done() {
    let (limiter, clock) = limiter(
        "[[policy]]\nname = \"p\"\nsubject = \"header:x-user\"\nquota = \"2/1m\"\nobey = \"1m\"\n\
         response = { status = \"401\" }\n",
    );
    let inner = service_fn(|request: Request<Body>| async move {
        let status =
            request.headers().get("x-status").map_or("200", |status| status.to_str().unwrap()).to_owned();
        let response = Response::builder().status(status.as_str());
        let response = if status == "429" { response.header("retry-after", "20") } else { response };
        Ok::<_, Infallible>(response.body(Body::default()).unwrap())
    });
    let mut service = LimitLayer::new(limiter).layer(inner);
    for _ in 0..50 {
        let (status, headers, _) = call(&mut service, request("a", &[])).await;
        assert_eq!((status, &headers["ratelimit"]), (StatusCode::OK, &"\"p\";r=2;t=0".parse().unwrap()));
    }
    let mut statuses = Vec::new();
    for status in ["401", "401", "401"] {
        statuses.push(call(&mut service, request("a", &[("x-status", status)])).await.0.as_u16());
    }
    assert_eq!(statuses, [401, 401, 429]);
    assert_eq!(
        call(&mut service, request("b", &[("x-status", "429")])).await.0,
        StatusCode::TOO_MANY_REQUESTS
    );
    let (held, headers, body) = call(&mut service, request("b", &[])).await;
    assert_eq!((held.as_u16(), headers["retry-after"].to_str().unwrap()), (429, "20"));
    assert!(body.contains("origin_limit"), "{body}");
    assert_eq!(call(&mut service, request("c", &[])).await.0, StatusCode::OK);
    clock.set(START + 20 * SECOND);
    assert_eq!(call(&mut service, request("b", &[])).await.0, StatusCode::OK);
}

mod examples {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    struct Running(Child, String);

    impl Drop for Running {
        fn drop(&mut self) {
            let _gone = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    fn program(name: &str) -> Option<Command> {
        let tests = std::env::current_exe().unwrap();
        let path: PathBuf = tests.parent()?.parent()?.join("examples").join(name);
        path.exists().then(|| Command::new(path))
    }

    fn start(name: &str) -> Option<Running> {
        let child = program(name)?.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
        let mut running = Running(child, String::new());
        let mut line = String::new();
        BufReader::new(running.0.stdout.take()?).read_line(&mut line).unwrap();
        running.1 = line.trim().to_owned();
        Some(running)
    }

    fn status(url: &str, method: &str, path: &str) -> String {
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn axum_and_a_client_that_keeps_its_own_quota() {
        let server = start("axum").expect("cargo test builds the examples");
        let logins: Vec<String> = (0..6).map(|_| status(&server.1, "POST", "/login")).collect();
        assert_eq!(logins.iter().filter(|status| *status == "200").count(), 5);
        assert_eq!(logins[5], "429");
        let client = program("reqwest").unwrap().arg(format!("{}/", server.1)).output().unwrap();
        let said = String::from_utf8_lossy(&client.stdout).into_owned();
        assert_eq!(said.matches("200 OK").count(), 5, "{said}");
        assert!(said.contains("policy `each-host` refused"), "{said}");
        // Twenty at once are the site's limit, which the calls above have begun to use up: whoever obeys gets through all the same.
        let obeys = program("obey").unwrap().arg(format!("{}/", server.1)).output().unwrap();
        let said = String::from_utf8_lossy(&obeys.stdout).into_owned();
        assert_eq!(said.matches("200 OK").count(), 7, "{said}");
    }

    #[tokio::test]
    async fn tonic_refuses_as_grpc_clients_expect() {
        use tonic_health::pb::HealthCheckRequest;
        use tonic_health::pb::health_client::HealthClient;
        // Built with the feature `grpc` only.
        let Some(server) = start("tonic") else { return };
        let channel =
            tonic::transport::Channel::from_shared(server.1.clone()).unwrap().connect().await.unwrap();
        let mut client = HealthClient::new(channel);
        for _ in 0..3 {
            client.check(HealthCheckRequest::default()).await.unwrap();
        }
        let refused = client.check(HealthCheckRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
        assert!(!refused.details().is_empty(), "RetryInfo");
    }
}

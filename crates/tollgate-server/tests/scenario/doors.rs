//! The doors, each with a client that asks a step and reads the answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;

use http::HeaderMap;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tollgate::{Asked, Limiter, Ruling, Salt};
use tollgate_tower::LimitLayer;
use tower::{Layer, ServiceExt};

use crate::rig::{Running, policies};
use crate::{SCENARIO, Said, Step};

/// A door and its client.
pub(crate) trait Door: Send {
    fn name(&self) -> &'static str;

    /// Whether it is sent requests, which cannot look, give back or name a policy.
    fn takes_requests(&self) -> bool {
        false
    }

    fn takes_any_cost(&self) -> bool {
        !self.takes_requests()
    }

    fn ask<'a>(&'a mut self, step: &'a Step, now: u64) -> Answering<'a>;
}

pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Said> + Send + 'a>>;

impl Step {
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.ask.join("+"))
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let user = (!self.subject.is_empty()).then(|| ("x-user", self.subject.clone()));
        user.into_iter().chain([("x-cost", self.cost.to_string())]).collect()
    }

    fn header_map(&self) -> HeaderMap {
        self.headers().iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }
}

/// What the library rules.
fn ruled(ruling: &Ruling) -> Said {
    Said {
        reason: ruling.reason.name().to_owned(),
        left: ruling.parts().map(|(_, part)| part.outcome.remaining).collect(),
        limit: ruling.parts().map(|(_, part)| part.outcome.limit).collect(),
        retry: ruling.retry_after().map(|nanos| nanos.div_ceil(1_000_000)),
        reset: ruling.parts().next().map(|(_, part)| part.outcome.reset_after.div_ceil(1_000_000)),
        grain: 1,
    }
}

/// `Limiter::decide_all`.
pub(crate) struct Library(Limiter, tollgate::Clock);

impl Library {
    pub(crate) fn new() -> Self {
        let clock = tollgate::Clock::manual(0);
        Library(Limiter::new(policies(SCENARIO), Salt::random(), clock.clone()), clock)
    }
}

impl Door for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    fn ask<'a>(&'a mut self, step: &'a Step, now: u64) -> Answering<'a> {
        self.1.set(now);
        Box::pin(async move {
            let check = |policy: &'a String| {
                Asked::Check(tollgate::Check { policy, subject: &step.subject, cost: Some(step.cost) })
            };
            let checks: Vec<Asked<'_>> = step.ask.iter().map(check).collect();
            ruled(&self.0.decide_all(&checks).await)
        })
    }
}

/// An answer over HTTP.
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Value,
}

/// Asks over HTTP, on a thread that may block.
async fn http(
    method: &'static str,
    url: String,
    headers: Vec<(&'static str, String)>,
    body: Option<Value>,
) -> Answer {
    let sent = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        let agent = ureq::Agent::from(config);
        let sent = match body {
            Some(body) => agent.run(request.body(body.to_string()).unwrap()),
            None => agent.run(request.body(()).unwrap()),
        };
        let mut response = sent.unwrap_or_else(|error| panic!("{url}: {error}"));
        let text = |value: &ureq::http::HeaderValue| value.to_str().unwrap().to_owned();
        let headers =
            response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let status = response.status().as_u16();
        let body = response.body_mut().read_to_string().unwrap_or_default();
        Answer { status, headers, body: serde_json::from_str(&body).unwrap_or(Value::Null) }
    });
    sent.await.unwrap()
}

/// Reads the JSON of a check.
fn checked(answer: &Answer) -> Said {
    let body = &answer.body;
    let all = |name: &str| {
        let policies = body["policies"].as_array().cloned().unwrap_or_default();
        policies.iter().filter_map(|policy| policy[name].as_u64()).collect::<Vec<_>>()
    };
    Said {
        reason: body["reason"].as_str().unwrap_or_default().to_owned(),
        left: all("remaining"),
        limit: all("limit"),
        retry: body["retry_after_ms"].as_u64(),
        reset: all("reset_after_ms").first().copied(),
        grain: 1,
    }
}

/// Reads the headers that come with an answer, and the problem that it is.
fn headed(answer: &Answer) -> Said {
    let numbers = |field: &str, key: &str| {
        let text = answer.headers.get(field).cloned().unwrap_or_default();
        let items = text.split(',').flat_map(|item| item.split(';').map(str::to_owned).collect::<Vec<_>>());
        items.filter_map(|item| item.strip_prefix(&format!("{key}="))?.parse().ok()).collect::<Vec<u64>>()
    };
    let reason = match answer.body["error"].as_str() {
        None if answer.status == 200 => "admit",
        Some("rate_limited") => "refuse",
        Some("cost_above_limit") => "never",
        Some("limiter_unavailable") => "unavailable",
        other => other.unwrap_or("?"),
    };
    let status = match reason {
        "admit" => 200,
        "refuse" | "never" => 429,
        "unavailable" => 503,
        "blocked" => 403,
        _ => 400,
    };
    assert_eq!(answer.status, status, "{reason}");
    let refused = reason != "admit";
    Said {
        reason: reason.to_owned(),
        left: numbers("ratelimit", "r"),
        limit: numbers("ratelimit-policy", "q"),
        retry: answer.headers.get("retry-after").map(|seconds| seconds.parse::<u64>().unwrap() * 1_000),
        // On a refusal this field says the time to come back.
        reset: numbers("ratelimit", "t").first().filter(|_| !refused).map(|seconds| seconds * 1_000),
        grain: 1_000,
    }
}

macro_rules! door {
    ($name:ident, $text:literal, requests: $requests:literal, |$door:ident, $step:ident| $ask:block) => {
        impl Door for $name {
            fn name(&self) -> &'static str {
                $text
            }

            fn takes_requests(&self) -> bool {
                $requests
            }

            fn ask<'a>(&'a mut self, $step: &'a Step, _now: u64) -> Answering<'a> {
                let $door = self;
                Box::pin(async move { $ask })
            }
        }
    };
}

pub(crate) use door;

/// `POST /v1/check` by name.
pub(crate) struct Check(SocketAddr);

impl Check {
    pub(crate) fn new(running: &Running) -> Self {
        Check(running.api)
    }
}

door!(Check, "check", requests: false, |door, step| {
    let check = |policy: &String| json!({ "policy": policy, "subject": step.subject, "cost": step.cost });
    let checks: Vec<Value> = step.ask.iter().map(check).collect();
    let body = json!({ "checks": checks });
    checked(&http("POST", format!("http://{}/v1/check", door.0), Vec::new(), Some(body)).await)
});

/// `POST /v1/check` with the attributes of a request.
pub(crate) struct Requests(SocketAddr);

impl Requests {
    pub(crate) fn new(running: &Running) -> Self {
        Requests(running.api)
    }
}

door!(Requests, "check of a request", requests: true, |door, step| {
    let headers: BTreeMap<&str, String> = step.headers().into_iter().collect();
    let body = json!({ "path": step.path(), "headers": headers });
    checked(&http("POST", format!("http://{}/v1/check", door.0), Vec::new(), Some(body)).await)
});

/// The gateway.
pub(crate) struct Gateway(SocketAddr);

impl Gateway {
    pub(crate) fn new(running: &Running) -> Self {
        Gateway(running.gateway)
    }
}

door!(Gateway, "gateway", requests: true, |door, step| {
    headed(&http("GET", format!("http://{}{}", door.0, step.path()), step.headers(), None).await)
});

/// Forward-auth.
pub(crate) struct Auth(SocketAddr);

impl Auth {
    pub(crate) fn new(running: &Running) -> Self {
        Auth(running.api)
    }
}

door!(Auth, "forward-auth", requests: true, |door, step| {
    let mut headers = step.headers();
    headers.extend([("x-forwarded-method", "GET".to_owned()), ("x-forwarded-uri", step.path())]);
    headed(&http("GET", format!("http://{}/v1/auth", door.0), headers, None).await)
});

/// A look at a request, which takes nothing: asked before each step of the gateway, it changes no later answer.
pub(crate) struct Look(SocketAddr, SocketAddr);

impl Look {
    pub(crate) fn new(running: &Running) -> Self {
        Look(running.api, running.gateway)
    }
}

door!(Look, "look, then gateway", requests: true, |door, step| {
    let headers: BTreeMap<&str, String> = step.headers().into_iter().collect();
    let body = json!({ "path": step.path(), "headers": headers, "peek": true });
    http("POST", format!("http://{}/v1/check", door.0), Vec::new(), Some(body)).await;
    headed(&http("GET", format!("http://{}{}", door.1, step.path()), step.headers(), None).await)
});

/// `TOLLGATE` and `TOLLGATE.ALL`.
pub(crate) struct Resp(BufReader<TcpStream>);

impl Resp {
    pub(crate) async fn new(running: &Running) -> Self {
        Resp(BufReader::new(TcpStream::connect(running.resp).await.unwrap()))
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    async fn value(&mut self) -> Value {
        let line = self.line().await;
        let (sign, rest) = line.split_at(1);
        match sign {
            ":" => rest.parse::<i64>().unwrap().into(),
            "$" => self.line().await.into(),
            "*" => {
                let mut items = Vec::new();
                for _ in 0..rest.parse::<usize>().unwrap() {
                    items.push(Box::pin(self.value()).await);
                }
                items.into()
            }
            _ => line.into(),
        }
    }
}

door!(Resp, "resp", requests: false, |door, step| {
    let mut words = vec!["TOLLGATE".to_owned()];
    if step.ask.len() > 1 {
        words[0] += ".ALL";
    }
    for policy in &step.ask {
        words.extend([policy.clone(), step.subject.clone(), step.cost.to_string()]);
    }
    let bulk = |word: &String| format!("${}\r\n{word}\r\n", word.len());
    let command = format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>());
    door.0.get_mut().write_all(command.as_bytes()).await.unwrap();
    let told = door.value().await;
    if let Some(error) = told.as_str() {
        let reason = match error.split(' ').next().unwrap() {
            "-NOPOLICY" => "unknown_policy",
            "-NOSUBJECT" => "no_subject",
            _ => error,
        };
        return Said { reason: reason.to_owned(), grain: 1, ..Said::default() };
    }
    let number = |value: &Value| value.as_i64().and_then(|number| u64::try_from(number).ok());
    if step.ask.len() == 1 {
        return Said {
            reason: told[5].as_str().unwrap().to_owned(),
            left: number(&told[2]).into_iter().collect(),
            limit: number(&told[1]).into_iter().collect(),
            retry: number(&told[3]),
            reset: number(&told[4]),
            grain: 1,
        };
    }
    let parts = told[4].as_array().unwrap();
    let all = |at: usize| parts.iter().filter_map(|part| number(&part[at])).collect::<Vec<_>>();
    Said {
        reason: told[1].as_str().unwrap().to_owned(),
        left: all(3),
        limit: all(2),
        retry: all(4).into_iter().max(),
        reset: all(5).first().copied(),
        grain: 1,
    }
});

/// The tower layer.
pub(crate) struct Tower(LimitLayer, tollgate::Clock);

impl Tower {
    pub(crate) fn new() -> Self {
        let clock = tollgate::Clock::manual(0);
        Tower(LimitLayer::new(Limiter::new(policies(SCENARIO), Salt::random(), clock.clone())), clock)
    }
}

impl Door for Tower {
    fn name(&self) -> &'static str {
        "tower"
    }

    fn takes_requests(&self) -> bool {
        true
    }

    fn ask<'a>(&'a mut self, step: &'a Step, now: u64) -> Answering<'a> {
        self.1.set(now);
        Box::pin(async move {
            let inner = tower::service_fn(|_: http::Request<String>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            });
            let mut request = http::Request::get(step.path()).body(String::new()).unwrap();
            *request.headers_mut() = step.header_map();
            let response = self.0.layer(inner).oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
            headed(&Answer {
                status: parts.status.as_u16(),
                headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            })
        })
    }
}

//! The HTTP check: `POST /v1/check` and `GET /v1/check`, for any program that can speak HTTP.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{Asked, Check, MAX_CHARGES, MAX_SUBJECT_BYTES, Part, Policy, Ruling, Verdict};

use crate::answer::{self, problem};
use crate::app::{App, Door};
use crate::auth;
use crate::body::{self, Body};
use crate::http::Handler;
use crate::listen::Peer;
use crate::reserve;

/// The largest body of a check, in bytes.
pub const MAX_CHECK_BYTES: usize = 64 << 10;

/// The door that answers checks and forward-auth.
#[derive(Debug)]
pub struct Api {
    app: Arc<App>,
}

impl Api {
    /// The API over an app.
    pub fn new(app: Arc<App>) -> Self {
        Api { app }
    }

    async fn route(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        match (request.uri().path(), request.method()) {
            ("/v1/check", &Method::POST | &Method::GET) => self.check(request).await,
            ("/v1/check", _) => problem(StatusCode::METHOD_NOT_ALLOWED, "Expected GET or POST."),
            ("/v1/reserve", &Method::POST) => reserve::reserve(&self.app, request).await,
            ("/v1/settle", &Method::POST) => reserve::settle(&self.app, request).await,
            ("/v1/reserve" | "/v1/settle", _) => problem(StatusCode::METHOD_NOT_ALLOWED, "Expected POST."),
            ("/v1/auth", _) => auth::answer(&self.app, &request, peer).await,
            _ => problem(StatusCode::NOT_FOUND, "Expected /v1/check, /v1/reserve, /v1/settle or /v1/auth."),
        }
    }

    async fn check(&self, request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let status = form_pairs(&query).find(|(name, _)| name == "status");
        let always_200 = match &status {
            None => false,
            Some((_, value)) if value == "always200" => true,
            Some(_) => return problem(StatusCode::BAD_REQUEST, "status: expected always200"),
        };
        let asked = if request.method() == Method::GET {
            Said::from_query(&query)
        } else {
            let pause = self.app.settings.limits.body_timeout;
            match body::read(request.into_body(), MAX_CHECK_BYTES, pause).await {
                Ok(body) => serde_json::from_slice(&body).map_err(|error| error.to_string()),
                Err(cut) => return problem(cut.status(), &format!("{cut} At most {MAX_CHECK_BYTES} bytes.")),
            }
        };
        let ruling = match asked {
            Ok(asked) => self.decide(&asked).await,
            Err(error) => Err(error),
        };
        let ruling = match ruling {
            Ok(ruling) => ruling,
            Err(error) => return problem(StatusCode::BAD_REQUEST, &error),
        };
        let status = if always_200 { StatusCode::OK } else { ruling.reason.status() };
        let mut response = answer::json(status, &standings(&ruling));
        self.app.settings.contract.write(&ruling, response.headers_mut());
        response
    }

    async fn decide(&self, asked: &Said) -> Result<Ruling, String> {
        let checks = asked.checks()?;
        let headers = asked.header_map()?;
        let target = asked.path.as_deref().unwrap_or("/");
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let request = tollgate::Request {
            method: asked.method.as_deref().unwrap_or("GET"),
            host: asked.host.as_deref().unwrap_or_default(),
            path,
            query,
            headers: &headers,
            address: asked.address,
            size: asked.size,
        };
        let all: Vec<Asked<'_>> = match checks.as_slice() {
            [] if asked.peek || asked.cost == Some(0) => vec![Asked::Look(&request)],
            [] => vec![Asked::Request(&request)],
            checks => checks.iter().map(|check| Asked::Check(*check)).collect(),
        };
        Ok(self.app.decide(Door::Check, &all).await)
    }
}

impl Handler for Api {
    async fn answer(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let door = if request.uri().path() == "/v1/auth" { "auth" } else { "check" };
        let response = self.route(request, peer).await;
        self.app.metrics.responses.with_label_values(&[door, response.status().as_str()]).inc();
        response
    }
}

/// What a check's body may hold: one check, several, or the attributes of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    policy: Option<String>,
    subject: Option<String>,
    cost: Option<i64>,
    #[serde(default)]
    peek: bool,
    #[serde(default)]
    checks: Vec<One>,
    method: Option<String>,
    host: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    address: Option<IpAddr>,
    size: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    policy: String,
    #[serde(default)]
    subject: String,
    cost: Option<i64>,
}

impl Said {
    fn from_query(query: &str) -> Result<Self, String> {
        let mut asked = Said::default();
        let mut seen = Vec::new();
        for (name, value) in form_pairs(query) {
            if value.contains(char::REPLACEMENT_CHARACTER) {
                return Err(format!("{name}: not UTF-8"));
            }
            if seen.contains(&name) {
                return Err(format!("{name}: stands twice"));
            }
            seen.push(name.clone());
            let number = || value.parse().map_err(|_| format!("cost: `{value}` is not a whole number"));
            match name.as_str() {
                "policy" => asked.policy = Some(value),
                "subject" => asked.subject = Some(value),
                "cost" => asked.cost = Some(number()?),
                "peek" => match value.as_str() {
                    "true" | "1" | "" => asked.peek = true,
                    "false" | "0" => {}
                    _ => return Err(format!("peek: `{value}` is neither true nor false")),
                },
                "status" => {}
                _ => {
                    return Err(format!(
                        "unknown parameter `{name}`; expected policy, subject, cost, peek or status"
                    ));
                }
            }
        }
        if asked.policy.is_none() { Err("policy: missing".to_owned()) } else { Ok(asked) }
    }

    /// The checks by name; none when the body describes a request.
    fn checks(&self) -> Result<Vec<Check<'_>>, String> {
        let described =
            self.method.is_some() || self.host.is_some() || self.path.is_some() || self.address.is_some();
        let described = described || !self.headers.is_empty() || self.size.is_some();
        let kinds = [self.policy.is_some(), !self.checks.is_empty(), described];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err(
                "expected either policy and subject, or checks, or the attributes of a request".to_owned()
            );
        }
        if described && (self.subject.is_some() || self.cost.is_some_and(|cost| cost != 0)) {
            return Err(
                "subject and cost go with policy; a request's are made out by its policies".to_owned()
            );
        }
        if !self.checks.is_empty() && (self.subject.is_some() || self.cost.is_some()) {
            return Err("subject and cost stand in each of checks".to_owned());
        }
        let cost = |cost: Option<i64>| if self.peek { Some(0) } else { cost };
        let mut checks = Vec::new();
        if let Some(policy) = &self.policy {
            let subject = self.subject.as_deref().unwrap_or_default();
            checks.push(Check { policy, subject, cost: cost(self.cost) });
        }
        for one in &self.checks {
            checks.push(Check { policy: &one.policy, subject: &one.subject, cost: cost(one.cost) });
        }
        if checks.len() > MAX_CHARGES {
            return Err(format!("checks: at most {MAX_CHARGES}, found {}", checks.len()));
        }
        if checks.iter().any(|check| check.subject.len() > MAX_SUBJECT_BYTES) {
            return Err(format!("subject: at most {MAX_SUBJECT_BYTES} bytes"));
        }
        Ok(checks)
    }

    fn header_map(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let wrong = || format!("headers: `{name}` is not a header field");
            let value = HeaderValue::from_str(value).map_err(|_| wrong())?;
            headers.append(name.parse::<HeaderName>().map_err(|_| wrong())?, value);
        }
        Ok(headers)
    }
}

/// Pairs of a query, decoded: `+` and `%20` are spaces.
pub(crate) fn form_pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let decode = |text: &str| {
        let request = tollgate::Request {
            method: "GET",
            host: "",
            path: "/",
            query: Some(&format!("v={text}")),
            headers: &HeaderMap::new(),
            address: None,
            size: None,
        };
        request.query_value("v").once().map(|v| String::from_utf8_lossy(&v).into_owned()).unwrap_or_default()
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

/// The body of an answer: the decision, and every policy's standing.
pub fn standings(ruling: &Ruling) -> Value {
    let policies: Vec<Value> = ruling.parts().map(standing).collect();
    let mut body = json!({
        "decision": if ruling.is_admit() { "admit" } else { "refuse" },
        "reason": ruling.reason.name(),
        "scope": ruling.scope().map(|policy| &policy.name),
        "retry_after_ms": ruling.retry_after().map(milliseconds),
        "fallback": ruling.fallback.is_some(),
        "policies": policies,
    });
    if ruling.wait() > 0 {
        body["wait_ms"] = milliseconds(ruling.wait()).into();
    }
    let watching: Vec<Value> = ruling.shadows().map(standing).collect();
    if !watching.is_empty() {
        body["shadow"] = watching.into();
    }
    body
}

fn standing((policy, part): (&Policy, &Part)) -> Value {
    let outcome = &part.outcome;
    let mut standing = json!({
        "policy": policy.name,
        "limit": outcome.limit,
        "remaining": outcome.remaining,
        "reset_after_ms": milliseconds(outcome.reset_after),
    });
    let retry = match outcome.verdict {
        Verdict::Refuse { retry_after } | Verdict::Full { retry_after } => {
            Value::from(milliseconds(retry_after))
        }
        _ => Value::Null,
    };
    standing["decision"] = if outcome.verdict.is_admit() { "admit" } else { "refuse" }.into();
    standing["retry_after_ms"] = retry;
    standing
}

pub(crate) fn milliseconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000)
}

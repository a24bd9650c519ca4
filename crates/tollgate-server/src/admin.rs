//! Administration: metrics, health, the policies in force, one subject's standing, and its reset.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{Check, Ready};

use crate::answer::{json as json_answer, problem};
use crate::app::App;
use crate::body::{self, Body, full};
use crate::check::{self, form_pairs};
use crate::explain;
use crate::http::Handler;
use crate::listen::Peer;
use crate::settings::shown;
use crate::warm::{self, Warm};

/// The largest body of an administrative request, in bytes.
pub const MAX_ADMIN_BYTES: usize = 1 << 20;

/// The admin listener.
#[derive(Debug)]
pub struct Admin {
    app: Arc<App>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    policy: String,
    subject: String,
}

impl Admin {
    /// Administration of an app.
    pub fn new(app: Arc<App>) -> Self {
        Admin { app }
    }

    async fn route(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => {
                let mut response = Response::new(full(self.app.metrics.text(&self.app)));
                let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response
            }
            (&Method::GET | &Method::HEAD, "/healthz") => {
                json_answer(StatusCode::OK, &json!({ "status": "ok" }))
            }
            (&Method::GET | &Method::HEAD, "/readyz") if self.app.is_stopping() => {
                json_answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" }))
            }
            // A shared store that is out of reach is answered for by the policies' directions.
            (&Method::GET | &Method::HEAD, "/readyz") => json_answer(
                StatusCode::OK,
                &json!({
                    "status": "ready",
                    "generation": self.app.limiter.policies().generation,
                    "store": self.app.limiter.stacks().map(|s| if s.strict.tally().is_open() { "unavailable" } else { "ok" }),
                }),
            ),
            _ if !self.may(&request) => {
                tracing::warn!(audit = "denied", path = request.uri().path(), by = %peer.address, "administration");
                let mut response = problem(StatusCode::UNAUTHORIZED, "Administration asks for its token.");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                response
            }
            (&Method::GET, "/v1/policies") => json_answer(StatusCode::OK, &self.policies()),
            (&Method::GET, "/v1/standing") => self.standing(request.uri().query().unwrap_or_default()).await,
            (&Method::POST, "/v1/reset") => self.reset(request, peer).await,
            (&Method::POST, "/v1/unban") => self.unban(request, peer).await,
            (&Method::POST, "/v1/warm") => self.warm(request, peer).await,
            _ => problem(
                StatusCode::NOT_FOUND,
                "Expected GET /metrics, /healthz, /readyz, /v1/policies, /v1/standing, or POST /v1/reset, /v1/unban, /v1/warm.",
            ),
        }
    }

    fn may(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.app.settings.admin_token else { return is_own_name(request) };
        let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let given = given.and_then(|value| value.split_at_checked(7));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && same(given.trim_ascii(), token.as_bytes())
        })
    }

    fn policies(&self) -> Value {
        let policies = self.app.limiter.policies();
        let list: Vec<Value> = policies.iter().map(describe).collect();
        json!({ "generation": policies.generation, "policies": list })
    }

    async fn standing(&self, query: &str) -> Response<Body> {
        let (mut policy, mut subject) = (None, None);
        for (name, value) in form_pairs(query) {
            match name.as_str() {
                "policy" => policy = Some(value),
                "subject" => subject = Some(value),
                _ => return problem(StatusCode::BAD_REQUEST, "Expected policy and subject."),
            }
        }
        let (Some(policy), Some(subject)) = (policy, subject) else {
            return problem(StatusCode::BAD_REQUEST, "Expected policy and subject.");
        };
        let ruling = self
            .app
            .limiter
            .decide_checks(&[Check { policy: &policy, subject: &subject, cost: Some(0) }])
            .await;
        let Some(ready) = ruling.policies().named(&policy) else {
            return problem(StatusCode::NOT_FOUND, "There is no policy of this name.");
        };
        let mut body = check::standings(&ruling);
        body["key"] = shown(ready.key(subject.as_bytes()).0).into();
        json_answer(StatusCode::OK, &body)
    }

    /// The body of a request that changes something.
    async fn command<T: serde::de::DeserializeOwned>(
        &self,
        request: Request<Incoming>,
    ) -> Result<T, Response<Body>> {
        // A page of another site can send a form, but not this type without being asked first.
        let is_json = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().split(|b| *b == b';').next().unwrap_or_default().trim_ascii()
                == b"application/json"
        });
        if !is_json {
            let expected = "Expected Content-Type: application/json.";
            return Err(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, expected));
        }
        let pause = self.app.settings.limits.body_timeout;
        let body = body::read(request.into_body(), MAX_ADMIN_BYTES, pause).await;
        let body =
            body.map_err(|cut| problem(cut.status(), &format!("{cut} At most {MAX_ADMIN_BYTES} bytes.")))?;
        serde_json::from_slice(&body).map_err(|error| problem(StatusCode::BAD_REQUEST, &error.to_string()))
    }

    async fn warm(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let wanted: Vec<Warm> = match self.command(request).await {
            Ok(wanted) => wanted,
            Err(answer) => return answer,
        };
        if wanted.iter().map(|warm| warm.subjects.len()).sum::<usize>() > warm::MAX_SUBJECTS {
            let most = format!("At most {} subjects.", warm::MAX_SUBJECTS);
            return problem(StatusCode::BAD_REQUEST, &most);
        }
        let warmed = warm::warm(&self.app, &wanted).await;
        tracing::info!(audit = "warm", warm = warmed.warm, failed = warmed.failed, by = %peer.address, "administration");
        json_answer(StatusCode::OK, &json!({ "warm": warmed.warm, "failed": warmed.failed }))
    }

    async fn unban(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let Reset { policy, subject } = match self.command(request).await {
            Ok(unban) => unban,
            Err(answer) => return answer,
        };
        let key =
            self.app.limiter.policies().named(&policy).map(|ready| shown(ready.key(subject.as_bytes()).0));
        let was_banned = match self.app.limiter.unban(&policy, &subject).await {
            Ok(Some(was)) => was,
            Ok(None) => return problem(StatusCode::NOT_FOUND, "There is no policy of this name that bans."),
            Err(error) => return unanswered(error),
        };
        tracing::info!(audit = "unban", policy, key, was_banned, by = %peer.address, "administration");
        json_answer(StatusCode::OK, &json!({ "policy": policy, "key": key, "was_banned": was_banned }))
    }

    async fn reset(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let reset: Reset = match self.command(request).await {
            Ok(reset) => reset,
            Err(answer) => return answer,
        };
        let policies = self.app.limiter.policies();
        let Some(ready) = policies.named(&reset.policy) else {
            return problem(StatusCode::NOT_FOUND, "There is no policy of this name.");
        };
        let key = shown(ready.key(reset.subject.as_bytes()).0);
        let known = match self.app.limiter.reset(&reset.policy, &reset.subject).await {
            Ok(known) => known.unwrap_or(false),
            Err(error) => return unanswered(error),
        };
        tracing::info!(audit = "reset", policy = reset.policy, key, known, by = %peer.address, "administration");
        json_answer(StatusCode::OK, &json!({ "policy": reset.policy, "key": key, "was_known": known }))
    }
}

/// What an error on the way to a count is answered with.
fn unanswered(error: tollgate::Unanswered) -> Response<Body> {
    problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
}

impl Handler for Admin {
    async fn answer(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        self.route(request, peer).await
    }
}

/// A policy as administration shows it.
fn describe(ready: &Ready) -> Value {
    let policy = &ready.policy;
    let subjects: Vec<String> = policy.subjects.iter().map(ToString::to_string).collect();
    json!({
        "policy": policy.name,
        "quota": policy.rule.quota().to_string(),
        "algorithm": policy.rule.algorithm().name(),
        "subject": subjects,
        "placement": policy.placement.to_string(),
        "on_unavailable": policy.on_unavailable.to_string(),
        "shadow": policy.shadow,
        "manners": explain::manners(policy),
        "bound": explain::bound(policy),
        "keys": policy.keys,
        "when_full": policy.when_full.to_string(),
    })
}

/// Whether a request without a token names this machine as it is: a page of another site whose name was made to lead here
/// cannot.
fn is_own_name(request: &Request<Incoming>) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let Some(host) = authority.or(host) else { return true };
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(host, |(n, _)| n);
    name == "localhost" || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}

/// Compares in a time that does not tell where they differ.
pub(crate) fn same(given: &[u8], token: &[u8]) -> bool {
    let differ = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differ == 0
}

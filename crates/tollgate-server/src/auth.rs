//! Forward-auth: `/v1/auth`, for proxies that ask before they pass on (nginx `auth_request`, Caddy, Traefik).
//!
//! The request's attributes come from what the proxy sends: `X-Forwarded-Method`, `-Uri` and `-Host` (Caddy, Traefik), or
//! `X-Original-Method`, `-URI` and `-Host` (nginx). A proxy sets those of its own family and may let a client's of the other
//! through, so a request with both is refused: nobody describes it but the proxy. With `?deny_status=403` every refusal
//! has that status, which is all that nginx passes on, and the true one stands in `X-RL-Status`.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tollgate::Asked;
use tollgate::client::Trust;
use tollgate_tower::{Charged, Full};

use crate::answer::{problem, refusal};
use crate::app::{App, Crowd, Door};
use crate::body::{Body, empty};
use crate::check::form_pairs;
use crate::listen::Peer;

/// Answers one question.
pub async fn answer(app: &App, request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
    let headers = request.headers();
    // Caddy adds its client's query to ours, so where it describes the request there are no parameters.
    let ours = ["x-original-method", "x-original-uri", "x-original-url"];
    let ours =
        ours.iter().any(|name| headers.contains_key(*name)) || !headers.contains_key("x-forwarded-uri");
    let query = if ours { request.uri().query().unwrap_or_default() } else { "" };
    let deny = match deny_status(query) {
        Ok(deny) => deny,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
    };
    let described = match Described::read(headers) {
        Ok(described) => described,
        Err(detail) => return denied(deny, problem(StatusCode::BAD_REQUEST, detail)),
    };
    let (path, query) =
        described.uri.split_once('?').map_or((described.uri, None), |(path, query)| (path, Some(query)));
    let length = only(headers, "content-length").ok().flatten().and_then(|length| length.parse().ok());
    let bodiless = matches!(described.method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
    let asked = tollgate::Request {
        method: described.method,
        host: described.host,
        path,
        query,
        headers,
        address: Some(asker(&app.settings.trust, peer).client(peer.address.ip(), headers)),
        size: if bodiless { length.or(Some(0)) } else { length },
    };
    if asked.is_preflight() {
        return Response::new(empty());
    }
    let ruling = app.decide(Door::Auth, &[Asked::Request(&asked)]).await;
    if !ruling.is_admit() {
        // The proxy reads the status, whatever its client speaks.
        return denied(deny, refusal(&app.settings, &ruling, headers, false));
    }
    let turn = ruling.turn();
    let charged = Charged::new(Arc::clone(&app.limiter), ruling);
    if let Some(turn) = turn {
        match app.turns.join(&turn) {
            Ok(waiting) => tokio::select! {
                () = waiting.turn() => {}
                () = peer.gone() => return problem(StatusCode::BAD_REQUEST, "The client has gone."),
            },
            Err(Full) => return denied(deny, app.shed(headers, None, Crowd::Queue)),
        }
    }
    let Some(ruling) = charged.passed_on().answered() else { return Response::new(empty()) };
    let mut response = Response::new(empty());
    app.settings.contract.write(&ruling, response.headers_mut());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A refusal under the status that the proxy passes on.
fn denied(deny: Option<StatusCode>, mut response: Response<Body>) -> Response<Body> {
    if let Some(deny) = deny {
        let status = response.status().as_u16();
        response.headers_mut().insert("x-rl-status", status.into());
        *response.status_mut() = deny;
    }
    response
}

/// A request in its proxy's words.
struct Described<'h> {
    method: &'h str,
    host: &'h str,
    uri: &'h str,
}

impl<'h> Described<'h> {
    fn read(headers: &'h HeaderMap) -> Result<Self, &'static str> {
        const TWICE: &str =
            "A header that describes the request stands twice; the proxy must set it, not add it.";
        let said = |name: &str| only(headers, name).map_err(|Twice| TWICE);
        let original = (said("x-original-method")?, said("x-original-uri")?.or(said("x-original-url")?));
        let forwarded = (said("x-forwarded-method")?, said("x-forwarded-uri")?);
        let (method, uri, host) = match (original, forwarded) {
            // nginx passes a client's X-Forwarded-Host on, so the host is the one of the question.
            ((Some(method), Some(uri)), (None, None)) => (method, uri, said("host")?),
            ((None, None), (Some(method), Some(uri))) => {
                (method, uri, said("x-forwarded-host")?.or(said("host")?))
            }
            ((None, None), (None, None)) => {
                return Err(
                    "Nothing describes the request: set X-Original-Method and -URI, or X-Forwarded-Method and -Uri.",
                );
            }
            ((None, None), _) => return Err("Expected X-Forwarded-Method and X-Forwarded-Uri both."),
            (_, (None, None)) => return Err("Expected X-Original-Method and X-Original-URI both."),
            _ => {
                return Err(
                    "Both X-Original- and X-Forwarded- headers describe the request; clear one kind.",
                );
            }
        };
        // A whole URL, and not a path with one in its query.
        let uri = match uri.split_once("://") {
            Some((_, rest)) if !uri.starts_with('/') => rest.find('/').map_or("/", |at| &rest[at..]),
            _ => uri,
        };
        Ok(Described { method, host: host.unwrap_or_default(), uri })
    }
}

/// Whoever asks here is a proxy by trade: one on this machine is believed as the configured ones are.
fn asker(trust: &Trust, peer: &Peer) -> Trust {
    let mut trust = trust.clone();
    let address = tollgate::fold(peer.address.ip());
    if address.is_loopback() {
        trust.proxies.push(ipnet::IpNet::from(address));
    }
    trust
}

fn deny_status(query: &str) -> Result<Option<StatusCode>, String> {
    let mut deny = None;
    for (name, value) in form_pairs(query) {
        match (name.as_str(), value.as_str()) {
            ("deny_status", "401") => deny = Some(StatusCode::UNAUTHORIZED),
            ("deny_status", "403") => deny = Some(StatusCode::FORBIDDEN),
            ("deny_status", "429") => deny = None,
            _ => {
                return Err(format!(
                    "unknown parameter `{name}={value}`; expected deny_status=401, 403 or 429"
                ));
            }
        }
    }
    Ok(deny)
}

/// A header stands there more than once.
struct Twice;

/// A header that is there at most once; empty counts as absent.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Twice> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().and_then(|line| line.to_str().ok()).filter(|line| !line.is_empty());
    if lines.next().is_some() { Err(Twice) } else { Ok(line) }
}

//! Forward-auth: `/v1/auth`, for proxies that ask before they pass on (nginx `auth_request`, Caddy, Traefik).
//!
//! The request's attributes come from what the proxy sends: `X-Forwarded-Method`, `-Uri`, `-Host` and `-For`, or
//! `X-Original-Method` and `X-Original-URI`. With `?deny_status=403` every refusal has that status, which is all that
//! nginx passes on, and the true one stands in `X-RL-Status`.

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tollgate::client::Trust;

use crate::answer::{problem, refusal};
use crate::app::{App, Ask, Door};
use crate::body::{Body, empty};
use crate::check::form_pairs;
use crate::listen::Peer;

/// Answers one question.
pub async fn answer(app: &App, request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
    let deny = match deny_status(request.uri().query().unwrap_or_default()) {
        Ok(deny) => deny,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
    };
    let headers = request.headers();
    let uri = first(headers, &["x-forwarded-uri", "x-original-uri", "x-original-url"]).unwrap_or("/");
    let uri = uri.split_once("://").map_or(uri, |(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
    let asked = tollgate::Request {
        method: first(headers, &["x-forwarded-method", "x-original-method"])
            .unwrap_or(request.method().as_str()),
        host: first(headers, &["x-forwarded-host", "x-original-host", "host"]).unwrap_or_default(),
        path,
        query,
        headers,
        address: Some(asker(&app.settings.trust, peer).client(peer.address.ip(), headers)),
        size: None,
    };
    if asked.is_preflight() {
        return Response::new(empty());
    }
    let ruling = app.decide(Door::Auth, Ask::Request(&asked)).await;
    if !ruling.is_admit() {
        let mut response = refusal(&app.settings, &ruling, headers);
        if let Some(deny) = deny {
            response.headers_mut().insert("x-rl-status", ruling.reason.status().as_u16().into());
            *response.status_mut() = deny;
        }
        return response;
    }
    let mut response = Response::new(empty());
    app.settings.contract.write(&ruling, response.headers_mut());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whoever asks here is a proxy by trade: one on this machine is believed as the configured ones are.
fn asker(trust: &Trust, peer: &Peer) -> Trust {
    let mut trust = trust.clone();
    if peer.address.ip().is_loopback() {
        trust.proxies.push(ipnet::IpNet::from(peer.address.ip()));
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

fn first<'h>(headers: &'h HeaderMap, names: &[&str]) -> Option<&'h str> {
    names.iter().find_map(|name| headers.get(*name)?.to_str().ok()).filter(|value| !value.is_empty())
}

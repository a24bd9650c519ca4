//! Forward-auth: `/v1/auth`, for proxies that ask before they pass on (nginx `auth_request`, Caddy, Traefik).
//!
//! The request's attributes come from what the proxy sends: `X-Forwarded-Method`, `-Uri` and `-Host` (Caddy, Traefik), or
//! `X-Original-Method`, `-URI` and `-Host` (nginx). A proxy sets those of its own family and may let a client's of the other
//! through, so a request with both is refused: nobody describes it but the proxy. With `?deny_status=403` every refusal
//! has that status, which is all that nginx passes on, and the true one stands in `X-RL-Status`.

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
    let original = ["x-original-method", "x-original-uri", "x-original-url"];
    let forwarded = ["x-forwarded-method", "x-forwarded-uri"];
    let [by_original, by_forwarded] =
        [&original[..], &forwarded[..]].map(|names| names.iter().any(|name| headers.contains_key(*name)));
    if by_original && by_forwarded {
        return problem(
            StatusCode::BAD_REQUEST,
            "Both X-Original- and X-Forwarded- headers describe the request.",
        );
    }
    let family = if by_original { "x-original-" } else { "x-forwarded-" };
    let said = |name: &str| only(headers, &format!("{family}{name}"));
    let uri = said("uri").or_else(|| said("url")).unwrap_or("/");
    // A whole URL, and not a path with one in its query.
    let uri = match uri.split_once("://") {
        Some((_, rest)) if !uri.starts_with('/') => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => uri,
    };
    let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
    let method = said("method").unwrap_or(request.method().as_str());
    let length = only(headers, "content-length").and_then(|length| length.parse().ok());
    let bodiless = matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
    let asked = tollgate::Request {
        method,
        host: said("host").or_else(|| only(headers, "host")).unwrap_or_default(),
        path,
        query,
        headers,
        address: Some(asker(&app.settings.trust, peer).client(peer.address.ip(), headers)),
        size: if bodiless { length.or(Some(0)) } else { length },
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

/// A header that stands there once.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?.to_str().ok().filter(|line| !line.is_empty());
    if lines.next().is_some() { None } else { line }
}

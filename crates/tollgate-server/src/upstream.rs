//! The origins behind the gateway: pooled connections, and what proxies owe the next hop.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::{self, HeaderMap, HeaderName};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::crypto::ring;

use crate::body::Body;
use crate::settings::Settings;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Why an origin gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It could not be reached, or what it said is no HTTP: 502.
    Bad,
    /// It took too long: 504.
    Late,
}

/// The origins, which take turns.
#[derive(Debug)]
pub struct Upstreams {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    origins: Vec<(Scheme, Authority)>,
    next: AtomicUsize,
    patience: std::time::Duration,
}

impl Upstreams {
    /// The origins of the settings.
    ///
    /// # Errors
    /// A message when TLS cannot be set up.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.limits.connect_timeout));
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(ring::default_provider())
            .map_err(|error| format!("TLS: {error}"))?;
        let connector = tls.https_or_http().enable_all_versions().wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http2_only(settings.upstream_http2)
            .build(connector);
        let origin = |uri: &Uri| Some((uri.scheme()?.clone(), uri.authority()?.clone()));
        let origins = settings.upstream.iter().filter_map(origin).collect();
        Ok(Upstreams {
            client,
            origins,
            next: AtomicUsize::new(0),
            patience: settings.limits.response_timeout,
        })
    }

    /// Sends a request to the next origin, and waits for the head of its answer.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, NoAnswer> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let Some((scheme, authority)) = self.origins.get(turn % self.origins.len().max(1)) else {
            return Err(NoAnswer::Bad);
        };
        let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let target = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query(path);
        *request.uri_mut() = target.build().map_err(|_| NoAnswer::Bad)?;
        match tokio::time::timeout(self.patience, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if timed_out(&error) => Err(NoAnswer::Late),
            Ok(Err(error)) => {
                tracing::warn!(origin = %authority, %error, cause = ?std::error::Error::source(&error), "no answer");
                Err(NoAnswer::Bad)
            }
            Err(_) => Err(NoAnswer::Late),
        }
    }
}

/// HTTP/2 may send a cookie in pieces; HTTP/1 knows one line (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let Some(first) = lines.next() else { return };
    let mut joined = first.as_bytes().to_vec();
    let before = joined.len();
    for line in lines {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    if joined.len() > before
        && let Ok(joined) = HeaderValue::from_bytes(&joined)
    {
        headers.insert(header::COOKIE, joined);
    }
}

fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Takes out what is meant for this hop only: the listed fields, and those that `Connection` names. Gives the protocol that
/// an upgrade was asked for.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = if named.contains(&header::UPGRADE) { headers.get(header::UPGRADE).cloned() } else { None };
    let trailers =
        headers.get_all(header::TE).iter().any(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in named {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_this_hop_end_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Secret"),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic x"),
            ("x-kept", "1"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        assert_eq!(strip_hop_by_hop(&mut headers), Some(HeaderValue::from_static("websocket")));
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["te", "x-kept"]);
    }
}

//! The origins behind the gateway: pooled connections, and what proxies owe the next hop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use tollgate_tower::shed::{Shed, Slot};

use crate::body::{Body, Progress};
use crate::settings::Settings;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// How often a silent connection is asked whether it is still there.
pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(60);

/// Why an origin gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It could not be reached, or what it said is no HTTP: 502.
    Bad,
    /// It took too long: 504.
    Late,
}

/// Where a request is sent.
#[derive(Debug)]
pub struct Place {
    /// The origin's number.
    pub origin: usize,
    /// The slot that it takes there, if those are bounded.
    pub slot: Option<Slot>,
}

/// The origins, which take turns.
#[derive(Debug)]
pub struct Upstreams {
    sheds: Vec<Arc<Shed>>,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    origins: Vec<(Scheme, Authority)>,
    next: AtomicUsize,
    patience: Duration,
    http2: bool,
}

impl Upstreams {
    /// The origins of the settings.
    ///
    /// # Errors
    /// A message when TLS cannot be set up.
    pub fn new(settings: &Settings, sheds: Vec<Arc<Shed>>) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEP_ALIVE_EVERY));
        connector.set_connect_timeout(Some(settings.limits.connect_timeout));
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls_config(settings.upstream_ca.as_deref())?);
        let tls = tls.https_or_http();
        // HTTP/2 only where it is asked for: such an origin sees its own authority, not the client's.
        let connector = match settings.upstream_http2 {
            true => tls.enable_http2().wrap_connector(connector),
            false => tls.enable_http1().wrap_connector(connector),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_only(settings.upstream_http2)
            .http2_keep_alive_interval(Some(KEEP_ALIVE_EVERY))
            .build(connector);
        let origin = |uri: &Uri| Some((uri.scheme()?.clone(), uri.authority()?.clone()));
        let origins = settings.upstream.iter().filter_map(origin).collect();
        let (patience, http2) = (settings.limits.response_timeout, settings.upstream_http2);
        Ok(Upstreams { sheds, client, origins, next: AtomicUsize::new(0), patience, http2 })
    }

    /// Whether some origin has room for a request of this class.
    pub fn has_room(&self, class: usize) -> bool {
        self.sheds.is_empty() || self.sheds.iter().any(|shed| shed.has_room(class))
    }

    /// The next origin that has room for a request of this class, and the slot that it takes there. `None` when none has.
    pub fn enter(&self, class: usize) -> Option<Place> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.origins.len().max(1);
        if self.sheds.is_empty() {
            return Some(Place { origin: turn % count, slot: None });
        }
        let turns = (0..count).map(|n| turn.wrapping_add(n) % count);
        turns
            .filter_map(|origin| Some(Place { origin, slot: Some(self.sheds.get(origin)?.enter(class)?) }))
            .next()
    }

    /// Sends a request to an origin, and waits for the head of its answer: as long as its body moves on, and then
    /// `response_timeout`.
    pub async fn send(
        &self,
        mut request: Request<Body>,
        origin: usize,
        progress: &Progress,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let Some((scheme, authority)) = self.origins.get(origin) else { return Err(NoAnswer::Bad) };
        let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let target = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query(path);
        *request.uri_mut() = target.build().map_err(|_| NoAnswer::Bad)?;
        if self.http2 {
            request.headers_mut().remove(header::HOST);
        }
        let answer = tokio::select! {
            answer = self.client.request(request) => answer,
            () = progress.stalled(self.patience) => return Err(NoAnswer::Late),
        };
        match answer {
            Ok(response) => Ok(response),
            Err(error) if timed_out(&error) => Err(NoAnswer::Late),
            // The client's fault is not the origin's.
            Err(_) if progress.cut().is_some() => Err(NoAnswer::Bad),
            Err(error) => {
                tracing::warn!(origin = %authority, %error, cause = ?std::error::Error::source(&error), "no answer");
                Err(NoAnswer::Bad)
            }
        }
    }
}

/// Whom https origins are verified by: the certificates of a file, or those of the web.
fn tls_config(file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let (added, _) = roots.add_parsable_certificates(found.map_err(|error| wrong(&error))?);
            if added == 0 {
                return Err(wrong(&"no certificate in it"));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| format!("TLS: {error}"))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
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

/// Takes out what is meant for this hop only: the listed fields, and those that `Connection` names. Gives `websocket` when an
/// upgrade to it was asked for. No other protocol is passed through: an origin that took `h2c` would serve requests that
/// nobody counts.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = if named.contains(&header::UPGRADE) { headers.get(header::UPGRADE).cloned() } else { None };
    let upgrade = upgrade.filter(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
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
        HTTP2_SETTINGS,
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

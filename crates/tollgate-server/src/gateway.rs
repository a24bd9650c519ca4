//! The gateway: a streaming reverse proxy that asks before it passes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use crate::answer::{problem, readable, refusal};
use crate::app::{App, Ask, Door};
use crate::body::{Body, Guarded, empty};
use crate::listen::{Handler, Peer};
use crate::upstream::{NoAnswer, Upstreams, join_cookies, strip_hop_by_hop};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The door in front of an origin.
#[derive(Debug)]
pub struct Gateway {
    app: Arc<App>,
    upstreams: Upstreams,
}

impl Gateway {
    /// The gateway of these settings.
    ///
    /// # Errors
    /// A message when TLS to the origins cannot be set up.
    pub fn new(app: Arc<App>) -> Result<Self, String> {
        let upstreams = Upstreams::new(&app.settings)?;
        Ok(Gateway { app, upstreams })
    }

    async fn pass(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let limits = &self.app.settings.limits;
        let size = request.body().size_hint();
        if size.lower() > limits.max_body {
            return too_large(limits.max_body);
        }
        if request.method() == Method::CONNECT || !request.uri().path().starts_with('/') {
            return problem(StatusCode::BAD_REQUEST, "The request target is not a path of an origin.");
        }
        let host = host(&request);
        let asked = tollgate::Request {
            method: request.method().as_str(),
            host: &host,
            path: request.uri().path(),
            query: request.uri().query(),
            headers: request.headers(),
            address: Some(self.app.settings.trust.client(peer.address.ip(), request.headers())),
            size: size.exact(),
        };
        if asked.is_preflight() {
            return self.forward(request, &host, peer).await;
        }
        let ruling = self.app.decide(Door::Gateway, Ask::Request(&asked)).await;
        if !ruling.is_admit() {
            return refusal(&self.app.settings, &ruling, request.headers());
        }
        if ruling.wait() > 0 {
            tokio::time::sleep(Duration::from_nanos(ruling.wait())).await;
        }
        let origin = request.headers().get(header::ORIGIN).cloned();
        let mut response = self.forward(request, &host, peer).await;
        self.app.settings.contract.write(&ruling, response.headers_mut());
        if let Some(origin) = origin {
            let asked: HeaderMap = [(header::ORIGIN, origin)].into_iter().collect();
            readable(&self.app.settings, &asked, response.headers_mut(), false);
        }
        response
    }

    async fn forward(&self, mut request: Request<Incoming>, host: &str, peer: &Peer) -> Response<Body> {
        let limits = self.app.settings.limits;
        let client = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let upgrade = strip_hop_by_hop(&mut parts.headers);
        join_cookies(&mut parts.headers);
        self.tell_origin(&mut parts.headers, host, peer);
        if let Some(protocol) = &upgrade {
            mark_upgrade(&mut parts.headers, protocol.clone());
        }
        let (body, too_big) = guard(body, limits.max_body, limits.body_timeout);
        // The origin's protocol is the connection's, not the client's.
        parts.version = http::Version::HTTP_11;
        let start = self.app.limiter.clock().now();
        let sent = self.upstreams.send(Request::from_parts(parts, body)).await;
        let took = self.app.limiter.clock().now().saturating_sub(start);
        self.app.metrics.upstream_seconds.observe(took as f64 / tollgate::SECOND as f64);
        let mut response = match sent {
            Ok(response) => response,
            Err(_) if too_big.load(Ordering::Relaxed) => return too_large(limits.max_body),
            Err(NoAnswer::Bad) => {
                return problem(StatusCode::BAD_GATEWAY, "The origin gave no usable answer.");
            }
            Err(NoAnswer::Late) => {
                return problem(StatusCode::GATEWAY_TIMEOUT, "The origin did not answer in time.");
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let origin = hyper::upgrade::on(&mut response);
            tokio::spawn(tunnel(client, origin));
            let (mut parts, _) = response.into_parts();
            let protocol = strip_hop_by_hop(&mut parts.headers).or(upgrade);
            protocol.into_iter().for_each(|protocol| mark_upgrade(&mut parts.headers, protocol));
            return Response::from_parts(parts, empty());
        }
        let (mut parts, body) = response.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        Response::from_parts(parts, guard(body, u64::MAX, limits.body_timeout).0)
    }

    /// What the origin is told of the client: what a trusted proxy said, and this hop; what anybody else said is dropped.
    fn tell_origin(&self, headers: &mut HeaderMap, host: &str, peer: &Peer) {
        let believed = self.app.settings.trust.is_proxy(peer.address.ip());
        if !believed {
            for name in [X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST, header::FORWARDED] {
                headers.remove(name);
            }
        }
        let hop = HeaderValue::from_str(&tollgate::fold(peer.address.ip()).to_string());
        if let Ok(hop) = hop {
            headers.append(X_FORWARDED_FOR, hop);
        }
        let scheme = HeaderValue::from_static(if peer.tls { "https" } else { "http" });
        headers.entry(X_FORWARDED_PROTO).or_insert(scheme);
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.entry(X_FORWARDED_HOST).or_insert(host.clone());
            headers.insert(header::HOST, host);
        }
        headers.remove(header::EXPECT);
    }
}

impl Handler for Gateway {
    async fn answer(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let response = self.pass(request, peer).await;
        self.app.metrics.responses.with_label_values(&["gateway", response.status().as_str()]).inc();
        response
    }
}

fn host(request: &Request<Incoming>) -> String {
    let named = request.uri().authority().map(|authority| authority.as_str());
    let field = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    named.or_else(field).unwrap_or_default().to_owned()
}

fn guard(body: Incoming, most: u64, pause: Duration) -> (Body, Arc<AtomicBool>) {
    if body.is_end_stream() {
        return (empty(), Arc::default());
    }
    let (body, too_large) = Guarded::new(body, most, pause);
    (body.boxed_unsync(), too_large)
}

fn mark_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// Carries bytes both ways until either side ends.
async fn tunnel(client: hyper::upgrade::OnUpgrade, origin: hyper::upgrade::OnUpgrade) {
    let (Ok(client), Ok(origin)) = tokio::join!(client, origin) else { return };
    let (mut client, mut origin) = (TokioIo::new(client), TokioIo::new(origin));
    let _ended = tokio::io::copy_bidirectional(&mut client, &mut origin).await;
}

fn too_large(most: u64) -> Response<Body> {
    problem(StatusCode::PAYLOAD_TOO_LARGE, &format!("The body is larger than limits.max_body, {most} bytes."))
}

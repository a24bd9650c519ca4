//! The gateway: a streaming reverse proxy that asks before it passes on.

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tollgate::client::Forwarding;
use tollgate::{Asked, Ruling};
use tollgate_tower::answer::is_grpc;
use tollgate_tower::shed::{Slot, SlotBody};
use tollgate_tower::{Charged, Full, in_background, responded};

use crate::answer::{problem, readable, refusal};
use crate::app::{App, Crowd, Door};
use crate::body::{Body, Cut, Guarded, Measured, Progress, empty};
use crate::http::Handler;
use crate::listen::{Held, Peer};
use crate::upstream::{NoAnswer, Place, Upstreams, join_cookies, strip_hop_by_hop};

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
        let upstreams = Upstreams::new(&app.settings, app.sheds.clone())?;
        Ok(Gateway { app, upstreams })
    }

    async fn pass(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let limits = &self.app.settings.limits;
        let size = request.body().size_hint();
        if size.lower() > limits.max_body {
            return cut_short(Cut::TooLarge, limits.max_body);
        }
        let host = match well_formed(&request) {
            Ok(host) => host,
            Err((status, detail)) => return problem(status, detail),
        };
        let asked = tollgate::Request {
            method: request.method().as_str(),
            host: &host,
            path: request.uri().path(),
            query: request.uri().query(),
            headers: request.headers(),
            address: Some(self.app.settings.trust.client(peer.address.ip(), request.headers())),
            size: size.exact(),
        };
        // Before anything is charged: whoever is turned away costs nobody anything.
        let class = self.app.settings.shed.as_ref().map_or(0, |shed| shed.class(&asked));
        if !self.upstreams.has_room(class) {
            return self.app.shed(request.headers(), Some(class), Crowd::Origin);
        }
        if asked.is_preflight() {
            return match self.upstreams.enter(class) {
                Some(place) => self.forward(request, &host, peer, place).await,
                None => self.app.shed(request.headers(), Some(class), Crowd::Origin),
            };
        }
        let ruling = self.app.decide(Door::Gateway, &[Asked::Exchange(&asked)]).await;
        if !ruling.is_admit() {
            return refusal(&self.app.settings, &ruling, request.headers(), is_grpc(request.headers()));
        }
        let turn = ruling.turn();
        // Until it is passed on, whatever ends this gives back what was charged.
        let charged = Charged::new(Arc::clone(&self.app.limiter), ruling);
        if let Some(turn) = turn {
            match self.app.turns.join(&turn) {
                Ok(waiting) => tokio::select! {
                    () = waiting.turn() => {}
                    () = peer.gone() => return problem(StatusCode::BAD_REQUEST, "The client has gone."),
                },
                Err(Full) => return self.app.shed(request.headers(), Some(class), Crowd::Queue),
            }
        }
        let Some(place) = self.upstreams.enter(class) else {
            return self.app.shed(request.headers(), Some(class), Crowd::Origin);
        };
        let origin = request.headers().get(header::ORIGIN).cloned();
        let passed_on = charged.passed_on();
        let mut response = self.forward(request, &host, peer, place).await;
        if let Some(ruling) = passed_on.answered() {
            response = self.told(ruling, response).await;
        }
        if let Some(origin) = origin {
            let asked: HeaderMap = [(header::ORIGIN, origin)].into_iter().collect();
            readable(&self.app.settings, &asked, response.headers_mut(), false);
        }
        response
    }

    /// Tells the policies what came of a request, and the client what they say.
    async fn told(&self, ruling: Ruling, response: Response<Body>) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        let size = body.size_hint().exact();
        let ruling = responded(&self.app.limiter, ruling, parts.status, &parts.headers, size).await;
        self.app.settings.contract.write(&ruling, &mut parts.headers);
        if !ruling.goes_by_size() {
            return Response::from_parts(parts, body);
        }
        let (limiter, mut ruling) = (Arc::clone(&self.app.limiter), ruling);
        let through = move |bytes| in_background(async move { limiter.streamed(&mut ruling, bytes).await });
        Response::from_parts(parts, Measured::new(body, through).boxed_unsync())
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        host: &str,
        peer: &Peer,
        place: Place,
    ) -> Response<Body> {
        let limits = self.app.settings.limits;
        let client = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let upgrade = strip_hop_by_hop(&mut parts.headers);
        join_cookies(&mut parts.headers);
        self.tell_origin(&mut parts.headers, host, peer);
        if let Some(protocol) = &upgrade {
            mark_upgrade(&mut parts.headers, protocol.clone());
        }
        let bodiless = body.is_end_stream();
        let (mut body, progress) = guard(body, limits.max_body, limits.body_timeout);
        if let (false, Some(slot)) = (bodiless, &place.slot) {
            let sent = slot.sending();
            body = Measured::new(body, move |_| sent()).boxed_unsync();
        }
        // The origin's protocol is the connection's, not the client's.
        parts.version = http::Version::HTTP_11;
        let start = self.app.limiter.clock().now();
        let sent = self.upstreams.send(Request::from_parts(parts, body), place.origin, &progress).await;
        let took = self.app.limiter.clock().now().saturating_sub(start);
        self.app.metrics.upstream_seconds.observe(took as f64 / tollgate::SECOND as f64);
        if let Some(slot) = &place.slot {
            match &sent {
                // An error says nothing of how much there is to do, but for one that nobody waited for any longer.
                Ok(response) if Slot::tells(response.status()) => slot.answered(),
                Err(NoAnswer::Late) => slot.answered(),
                Ok(_) | Err(NoAnswer::Bad) => {}
            }
        }
        let mut response = match (sent, progress.cut()) {
            (Ok(response), _) => response,
            (Err(_), Some(cut)) => return cut_short(cut, limits.max_body),
            (Err(NoAnswer::Bad), _) => {
                return problem(StatusCode::BAD_GATEWAY, "The origin gave no usable answer.");
            }
            (Err(NoAnswer::Late), _) => {
                return problem(StatusCode::GATEWAY_TIMEOUT, "The origin did not answer in time.");
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let origin = hyper::upgrade::on(&mut response);
            tokio::spawn(tunnel(client, origin, Arc::clone(&peer.held)));
            let (mut parts, _) = response.into_parts();
            let protocol = strip_hop_by_hop(&mut parts.headers).or(upgrade);
            protocol.into_iter().for_each(|protocol| mark_upgrade(&mut parts.headers, protocol));
            return Response::from_parts(parts, empty());
        }
        let (mut parts, body) = response.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        let body = guard(body, u64::MAX, limits.body_timeout).0;
        let body = if place.slot.is_some() { SlotBody::new(body, place.slot).boxed_unsync() } else { body };
        Response::from_parts(parts, body)
    }

    /// What the origin is told of the client: what a trusted proxy said in the configured header, and this hop; what anybody
    /// else said is dropped.
    fn tell_origin(&self, headers: &mut HeaderMap, host: &str, peer: &Peer) {
        let trust = &self.app.settings.trust;
        if !trust.is_proxy(peer.address.ip()) {
            for name in [X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST, header::FORWARDED] {
                headers.remove(name);
            }
            for name in ["x-real-ip", "x-forwarded-port", "x-forwarded-server"] {
                headers.remove(name);
            }
        }
        let scheme = if peer.tls { "https" } else { "http" };
        let hop = tollgate::fold(peer.address.ip());
        let (name, other, hop) = match trust.forwarding {
            Forwarding::Forwarded if hop.is_ipv6() => {
                (header::FORWARDED, X_FORWARDED_FOR, format!("for=\"[{hop}]\";proto={scheme}"))
            }
            Forwarding::Forwarded => {
                (header::FORWARDED, X_FORWARDED_FOR, format!("for={hop};proto={scheme}"))
            }
            _ => (X_FORWARDED_FOR, header::FORWARDED, hop.to_string()),
        };
        headers.remove(other);
        if let Ok(hop) = HeaderValue::from_str(&hop) {
            headers.append(name, hop);
        }
        headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
        match HeaderValue::from_str(host) {
            Ok(host) if !host.is_empty() => {
                headers.entry(X_FORWARDED_HOST).or_insert(host.clone());
                headers.insert(header::HOST, host);
            }
            // A client of HTTP/1.0 names no host: the origin is told its own.
            _ => drop(headers.remove(header::HOST)),
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

/// The host of a request that a proxy may pass on.
fn well_formed(request: &Request<Incoming>) -> Result<String, (StatusCode, &'static str)> {
    let bad = |detail| Err((StatusCode::BAD_REQUEST, detail));
    if request.method() == Method::CONNECT || !request.uri().path().starts_with('/') {
        return bad("The request target is not a path of an origin.");
    }
    let mut coding = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    if coding.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err((StatusCode::NOT_IMPLEMENTED, "The only transfer coding is chunked."));
    }
    if let Some(authority) = request.uri().authority() {
        let port = authority.port().map_or(String::new(), |port| format!(":{port}"));
        return Ok(format!("{}{port}", authority.host()));
    }
    let mut fields = request.headers().get_all(header::HOST).iter();
    match (fields.next().map(|field| field.to_str()), fields.next()) {
        (Some(Ok(host)), None) if !host.is_empty() || request.version() < http::Version::HTTP_11 => {
            Ok(host.to_owned())
        }
        (None, None) if request.version() < http::Version::HTTP_11 => Ok(String::new()),
        _ => bad("Expected one Host."),
    }
}

fn guard(body: Incoming, most: u64, pause: Duration) -> (Body, Arc<Progress>) {
    if body.is_end_stream() {
        return (empty(), Arc::default());
    }
    let (body, progress) = Guarded::new(body, most, pause);
    (body.boxed_unsync(), progress)
}

fn mark_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// Carries bytes both ways until either side ends; the connection's place is held meanwhile.
async fn tunnel(client: hyper::upgrade::OnUpgrade, origin: hyper::upgrade::OnUpgrade, held: Arc<Held>) {
    let (Ok(client), Ok(origin)) = tokio::join!(client, origin) else { return };
    let (mut client, mut origin) = (TokioIo::new(client), TokioIo::new(origin));
    let _ended = tokio::io::copy_bidirectional(&mut client, &mut origin).await;
    drop(held);
}

fn cut_short(cut: Cut, most: u64) -> Response<Body> {
    let limit =
        if cut == Cut::TooLarge { format!(" limits.max_body is {most} bytes.") } else { String::new() };
    problem(cut.status(), &format!("{cut}{limit}"))
}

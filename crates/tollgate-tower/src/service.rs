use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, header};
use http_body::Body;
use http_body_util::{Either, Full};
use tollgate::{Asked, InProcess, Ruling, Store};
use tower_service::Service;

use crate::answer;
use crate::future::{Next, ResponseFuture};
use crate::layer::Shared;

/// An HTTP service behind a limiter.
#[derive(Debug)]
pub struct Limit<T, S> {
    pub(crate) inner: T,
    pub(crate) shared: Arc<Shared<S>>,
}

impl<T: Clone, S> Clone for Limit<T, S> {
    fn clone(&self) -> Self {
        Limit { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<T, S, B, R> Service<Request<B>> for Limit<T, S>
where
    T: Service<Request<B>, Response = Response<R>> + Clone,
    S: Store + InProcess + Send + Sync + 'static,
    B: Body + Send + 'static,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = T::Error;
    type Future = ResponseFuture<T, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<T, B> {
        let size = request.body().size_hint().exact();
        let (parts, body) = request.into_parts();
        let described = self.shared.describe(&parts, size);
        if described.is_preflight() {
            let answer = self.inner.call(Request::from_parts(parts, body));
            return ResponseFuture::passing(answer, HeaderMap::new());
        }
        match self.shared.limiter.decide_now(&[Asked::Request(&described)]) {
            Some(ruling) => match self.shared.next(&ruling, &parts.headers) {
                Next::Pass { limits, wait } if wait.is_zero() => {
                    let answer = self.inner.call(Request::from_parts(parts, body));
                    ResponseFuture::passing(answer, limits)
                }
                next => ResponseFuture::after(next, self.ready_inner(), Request::from_parts(parts, body)),
            },
            None => {
                let shared = Arc::clone(&self.shared);
                let deciding = async move {
                    let described = shared.describe(&parts, size);
                    let ruling = shared.limiter.decide(&described).await;
                    (shared.next(&ruling, &parts.headers), Request::from_parts(parts, body))
                };
                ResponseFuture::deciding(Box::pin(deciding), self.ready_inner())
            }
        }
    }
}

impl<T: Clone, S> Limit<T, S> {
    /// The service that was made ready; its clone stays here to be made ready next.
    fn ready_inner(&mut self) -> T {
        let next = self.inner.clone();
        std::mem::replace(&mut self.inner, next)
    }
}

impl<S: Store> Shared<S> {
    /// What policies see of a request.
    fn describe<'p>(&self, parts: &'p Parts, size: Option<u64>) -> tollgate::Request<'p> {
        let host = parts.uri.authority().map(http::uri::Authority::as_str);
        let host = host.or_else(|| parts.headers.get(header::HOST)?.to_str().ok());
        let peer = (self.peer)(&parts.extensions);
        tollgate::Request {
            method: parts.method.as_str(),
            host: host.unwrap_or_default(),
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            address: peer.map(|peer| self.trust.client(peer, &parts.headers)),
            size,
        }
    }

    /// What follows from a ruling.
    fn next(&self, ruling: &Ruling, headers: &HeaderMap) -> Next {
        if !ruling.is_admit() {
            return Next::Refuse(answer::refusal(&self.contract, ruling, answer::is_grpc(headers)));
        }
        let mut limits = HeaderMap::new();
        self.contract.write(ruling, &mut limits);
        Next::Pass { limits, wait: Duration::from_nanos(ruling.wait()) }
    }
}

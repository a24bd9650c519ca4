use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, header};
use http_body::Body;
use http_body_util::{Either, Full};
use tollgate::{Asked, InProcess, Ruling, Store};
use tower_service::Service;

use crate::afterwards::responded;
use crate::answer;
use crate::charged::Charged;
use crate::future::{Answer, ResponseFuture};
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
    T: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    S: Store + InProcess + Send + Sync + 'static,
    B: Body + Send + 'static,
    R: Body + Send + 'static,
{
    type Response = Answer<R>;
    type Error = T::Error;
    type Future = ResponseFuture<T, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<T, B, R> {
        let size = request.body().size_hint().exact();
        let (parts, body) = request.into_parts();
        let described = self.shared.describe(&parts, size);
        if described.is_preflight() {
            let answer = self.inner.call(Request::from_parts(parts, body));
            return ResponseFuture::passing(answer, HeaderMap::new());
        }
        let decided = self.shared.limiter.decide_now(&[Asked::Exchange(&described)]);
        match decided {
            Some(ruling) if !ruling.is_admit() => {
                ResponseFuture::refused(self.shared.refusal(&ruling, &parts.headers))
            }
            Some(ruling) if ruling.wait() == 0 && !ruling.goes_by_response() => {
                let answer = self.inner.call(Request::from_parts(parts, body));
                ResponseFuture::passing(answer, self.shared.limits(&ruling))
            }
            decided => {
                let (shared, inner) = (Arc::clone(&self.shared), self.ready_inner());
                ResponseFuture::stepping(Box::pin(shared.steps(decided, inner, parts, body)))
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

impl<S: Store + 'static> Shared<S> {
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

    fn refusal(&self, ruling: &Ruling, headers: &HeaderMap) -> Response<Full<Bytes>> {
        answer::refusal(&self.contract, ruling, answer::is_grpc(headers))
    }

    fn limits(&self, ruling: &Ruling) -> HeaderMap {
        let mut limits = HeaderMap::new();
        self.contract.write(ruling, &mut limits);
        limits
    }

    /// What takes more than one step: a count that is elsewhere, a turn to wait for, a response to go by.
    async fn steps<T, B, R>(
        self: Arc<Self>,
        decided: Option<Ruling>,
        mut inner: T,
        parts: Parts,
        body: B,
    ) -> Result<Answer<R>, T::Error>
    where
        T: Service<Request<B>, Response = Response<R>>,
        B: Body,
        R: Body,
    {
        let ruling = match decided {
            Some(ruling) => ruling,
            None => {
                let described = self.describe(&parts, body.size_hint().exact());
                self.limiter.decide_all(&[Asked::Exchange(&described)]).await
            }
        };
        if !ruling.is_admit() {
            return Ok(self.refusal(&ruling, &parts.headers).map(Either::Right));
        }
        let turn = ruling.turn();
        let charged = Charged::new(Arc::clone(&self.limiter), ruling);
        if let Some(turn) = turn {
            match self.turns.join(&turn) {
                Ok(waiting) => waiting.turn().await,
                Err(_) => return Ok(answer::shed(answer::is_grpc(&parts.headers)).map(Either::Right)),
            }
        }
        let passed_on = charged.passed_on();
        let mut response = inner.call(Request::from_parts(parts, body)).await?;
        if let Some(ruling) = passed_on.answered() {
            let size = response.body().size_hint().exact();
            let mut ruling =
                responded(&self.limiter, ruling, response.status(), response.headers(), size).await;
            if ruling.goes_by_size() {
                // Nobody counts the bytes here, so it is the most that they may cost.
                self.limiter.streamed(&mut ruling, u64::MAX).await;
            }
            response.headers_mut().extend(self.limits(&ruling));
        }
        Ok(response.map(Either::Left))
    }
}

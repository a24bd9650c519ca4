use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{Shed, Slot};
use crate::answer;

/// Puts a [`Shedding`] before HTTP services: what is too much is answered 503 at once.
#[derive(Clone, Debug)]
pub struct ShedLayer<F> {
    shed: Arc<Shed>,
    class: F,
}

impl ShedLayer<fn(&http::request::Parts) -> usize> {
    /// A layer of one class.
    pub fn new(shed: Arc<Shed>) -> Self {
        ShedLayer { shed, class: |_| 0 }
    }
}

impl<F> ShedLayer<F> {
    /// The same with classes: 0 is the first, and shed last.
    pub fn classes<G: Fn(&http::request::Parts) -> usize>(self, class: G) -> ShedLayer<G> {
        ShedLayer { shed: self.shed, class }
    }
}

impl<F: Clone, T> Layer<T> for ShedLayer<F> {
    type Service = Shedding<T, F>;

    fn layer(&self, inner: T) -> Shedding<T, F> {
        Shedding { inner, shed: Arc::clone(&self.shed), class: self.class.clone() }
    }
}

/// A service of which no more is asked at once than its [`Shed`] allows.
#[derive(Clone, Debug)]
pub struct Shedding<T, F> {
    inner: T,
    shed: Arc<Shed>,
    class: F,
}

impl<T, F, B, R> Service<Request<B>> for Shedding<T, F>
where
    T: Service<Request<B>, Response = Response<R>>,
    F: Fn(&http::request::Parts) -> usize,
{
    type Response = Response<Either<SlotBody<R>, Full<Bytes>>>;
    type Error = T::Error;
    type Future = ShedFuture<T::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ShedFuture<T::Future> {
        let (parts, body) = request.into_parts();
        let grpc = answer::is_grpc(&parts.headers);
        match self.shed.enter((self.class)(&parts)) {
            None => ShedFuture { answer: None, slot: None, grpc },
            Some(slot) => {
                let answer = self.inner.call(Request::from_parts(parts, body));
                ShedFuture { answer: Some(answer), slot: Some(slot), grpc }
            }
        }
    }
}

pin_project! {
    /// The answer of a [`Shedding`].
    pub struct ShedFuture<A> {
        #[pin]
        answer: Option<A>,
        slot: Option<Slot>,
        grpc: bool,
    }
}

impl<A, R, E> Future for ShedFuture<A>
where
    A: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Either<SlotBody<R>, Full<Bytes>>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(answer) = this.answer.as_pin_mut() else {
            return Poll::Ready(Ok(answer::shed(*this.grpc).map(Either::Right)));
        };
        let answer = ready!(answer.poll(context))?;
        let slot = this.slot.take();
        if let Some(slot) = &slot
            && Slot::tells(answer.status())
        {
            slot.answered();
        }
        Poll::Ready(Ok(answer.map(|body| Either::Left(SlotBody { body, slot }))))
    }
}

pin_project! {
    /// A response's body, which holds the slot of its request until it is through.
    #[derive(Debug)]
    pub struct SlotBody<R> {
        #[pin]
        body: R,
        slot: Option<Slot>,
    }
}

impl<R> SlotBody<R> {
    /// A body that holds this slot, if there is one.
    pub const fn new(body: R, slot: Option<Slot>) -> Self {
        SlotBody { body, slot }
    }
}

impl<R: Body<Data: Buf>> Body for SlotBody<R> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            *this.slot = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

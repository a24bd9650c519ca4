use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

/// What follows from a ruling.
pub(crate) enum Next {
    /// The request goes on after a wait, and its answer gets these headers.
    Pass { limits: HeaderMap, wait: Duration },
    /// It is answered with this.
    Refuse(Response<Full<Bytes>>),
}

type Deciding<B> = Pin<Box<dyn Future<Output = (Next, Request<B>)> + Send>>;

pin_project! {
    /// The answer of a [`Limit`](crate::Limit): the service's, or a refusal.
    pub struct ResponseFuture<T, B> where T: Service<Request<B>> {
        #[pin]
        state: State<T, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<T, B> where T: Service<Request<B>> {
        Deciding { decision: Deciding<B>, inner: Option<T> },
        Waiting { #[pin] sleep: Sleep, inner: T, request: Option<Request<B>>, limits: HeaderMap },
        Passing { #[pin] answer: T::Future, limits: HeaderMap },
        Refused { answer: Option<Response<Full<Bytes>>> },
    }
}

impl<T: Service<Request<B>>, B> ResponseFuture<T, B> {
    pub(crate) const fn passing(answer: T::Future, limits: HeaderMap) -> Self {
        ResponseFuture { state: State::Passing { answer, limits } }
    }

    pub(crate) const fn deciding(decision: Deciding<B>, inner: T) -> Self {
        ResponseFuture { state: State::Deciding { decision, inner: Some(inner) } }
    }

    pub(crate) fn after(next: Next, inner: T, request: Request<B>) -> Self {
        ResponseFuture { state: State::after(next, inner, request) }
    }
}

impl<T: Service<Request<B>>, B> State<T, B> {
    fn after(next: Next, mut inner: T, request: Request<B>) -> Self {
        match next {
            Next::Refuse(answer) => State::Refused { answer: Some(answer) },
            Next::Pass { limits, wait } if wait.is_zero() => {
                State::Passing { answer: inner.call(request), limits }
            }
            Next::Pass { limits, wait } => {
                State::Waiting { sleep: tokio::time::sleep(wait), inner, request: Some(request), limits }
            }
        }
    }
}

impl<T, B, R> Future for ResponseFuture<T, B>
where
    T: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<Either<R, Full<Bytes>>>, T::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { decision, inner } => {
                    let (next, request) = ready!(decision.as_mut().poll(context));
                    let Some(inner) = inner.take() else { return Poll::Pending };
                    State::after(next, inner, request)
                }
                StateProj::Waiting { sleep, inner, request, limits } => {
                    ready!(sleep.poll(context));
                    let Some(request) = request.take() else { return Poll::Pending };
                    State::Passing { answer: inner.call(request), limits: std::mem::take(limits) }
                }
                StateProj::Passing { answer, limits } => {
                    let mut answer = ready!(answer.poll(context))?;
                    answer.headers_mut().extend(std::mem::take(limits));
                    return Poll::Ready(Ok(answer.map(Either::Left)));
                }
                StateProj::Refused { answer } => {
                    let Some(answer) = answer.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(answer.map(Either::Right)));
                }
            };
            state.set(next);
        }
    }
}

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use tower_service::Service;

/// The service's answer, or one in its place.
pub(crate) type Answer<R> = Response<Either<R, Full<Bytes>>>;

/// An answer that takes more than one step.
pub(crate) type Steps<R, E> = Pin<Box<dyn Future<Output = Result<Answer<R>, E>> + Send>>;

pin_project! {
    /// The answer of a [`Limit`](crate::Limit): the service's, or a refusal.
    pub struct ResponseFuture<T, B, R> where T: Service<Request<B>> {
        #[pin]
        state: State<T, B, R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<T, B, R> where T: Service<Request<B>> {
        Passing { #[pin] answer: T::Future, limits: HeaderMap },
        Stepping { steps: Steps<R, T::Error> },
        Refused { answer: Option<Response<Full<Bytes>>> },
    }
}

impl<T: Service<Request<B>>, B, R> ResponseFuture<T, B, R> {
    pub(crate) const fn passing(answer: T::Future, limits: HeaderMap) -> Self {
        ResponseFuture { state: State::Passing { answer, limits } }
    }

    pub(crate) fn stepping(steps: Steps<R, T::Error>) -> Self {
        ResponseFuture { state: State::Stepping { steps } }
    }

    pub(crate) const fn refused(answer: Response<Full<Bytes>>) -> Self {
        ResponseFuture { state: State::Refused { answer: Some(answer) } }
    }
}

impl<T, B, R> Future for ResponseFuture<T, B, R>
where
    T: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Answer<R>, T::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passing { answer, limits } => {
                let mut answer = ready!(answer.poll(context))?;
                answer.headers_mut().extend(std::mem::take(limits));
                Poll::Ready(Ok(answer.map(Either::Left)))
            }
            StateProj::Stepping { steps } => steps.as_mut().poll(context),
            StateProj::Refused { answer } => match answer.take() {
                Some(answer) => Poll::Ready(Ok(answer.map(Either::Right))),
                None => Poll::Pending,
            },
        }
    }
}

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tollgate::{Asked, InProcess, Limiter, Memory, Ruling, Store};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::{Error, Refused};

/// Puts a [`Check`] before services of any kind: each call is charged to one subject of one policy, by its name.
#[derive(Debug)]
pub struct CheckLayer<F, S = Memory> {
    limiter: Arc<Limiter<S>>,
    policy: Arc<str>,
    subject: F,
}

impl<F, S> CheckLayer<F, S> {
    /// Charges the subject that `subject` finds in a request under this policy.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>, policy: impl Into<Arc<str>>, subject: F) -> Self {
        CheckLayer { limiter: limiter.into(), policy: policy.into(), subject }
    }
}

impl<F: Clone, S> Clone for CheckLayer<F, S> {
    fn clone(&self) -> Self {
        CheckLayer::new(Arc::clone(&self.limiter), Arc::clone(&self.policy), self.subject.clone())
    }
}

impl<F: Clone, S, T> Layer<T> for CheckLayer<F, S> {
    type Service = Check<T, F, S>;

    fn layer(&self, inner: T) -> Check<T, F, S> {
        Check { inner, check: self.clone() }
    }
}

/// A service behind one policy.
#[derive(Debug)]
pub struct Check<T, F, S> {
    inner: T,
    check: CheckLayer<F, S>,
}

impl<T: Clone, F: Clone, S> Clone for Check<T, F, S> {
    fn clone(&self) -> Self {
        Check { inner: self.inner.clone(), check: self.check.clone() }
    }
}

impl<T, F, S, Q, K> Service<Q> for Check<T, F, S>
where
    T: Service<Q> + Clone,
    F: Fn(&Q) -> K,
    K: AsRef<str>,
    S: Store + InProcess + Send + Sync + 'static,
{
    type Response = T::Response;
    type Error = Error<T::Error>;
    type Future = CheckFuture<T, Q>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Error::Inner)
    }

    fn call(&mut self, request: Q) -> CheckFuture<T, Q> {
        let CheckLayer { limiter, policy, subject } = &self.check;
        let subject = subject(&request);
        let check = tollgate::Check { policy, subject: subject.as_ref(), cost: None };
        let decided = limiter.decide_now(&[Asked::Check(check)]);
        if let Some(ruling) = &decided
            && ruling.is_admit()
            && ruling.wait() == 0
        {
            return CheckFuture { state: State::Passing { answer: self.inner.call(request) } };
        }
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        if let Some(ruling) = &decided {
            return CheckFuture { state: State::after(policy, ruling, inner, request) };
        }
        let (limiter, name, subject) = (Arc::clone(limiter), Arc::clone(policy), subject.as_ref().to_owned());
        let decision: Deciding = Box::pin(async move {
            limiter.decide_checks(&[tollgate::Check { policy: &name, subject: &subject, cost: None }]).await
        });
        let policy = Arc::clone(policy);
        CheckFuture { state: State::Deciding { decision, call: Some((inner, request)), policy } }
    }
}

type Deciding = Pin<Box<dyn Future<Output = Ruling> + Send>>;

pin_project! {
    /// What comes of a call behind a [`Check`].
    pub struct CheckFuture<T, Q> where T: Service<Q> {
        #[pin]
        state: State<T, Q>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<T, Q> where T: Service<Q> {
        Deciding { decision: Deciding, call: Option<(T, Q)>, policy: Arc<str> },
        Waiting { #[pin] sleep: Sleep, call: Option<(T, Q)> },
        Passing { #[pin] answer: T::Future },
        Refused { refused: Option<Refused> },
    }
}

impl<T: Service<Q>, Q> State<T, Q> {
    fn after(policy: &str, ruling: &Ruling, mut inner: T, request: Q) -> Self {
        if !ruling.is_admit() {
            return State::Refused { refused: Some(Refused::by(policy, ruling)) };
        }
        match Duration::from_nanos(ruling.wait()) {
            Duration::ZERO => State::Passing { answer: inner.call(request) },
            wait => State::Waiting { sleep: tokio::time::sleep(wait), call: Some((inner, request)) },
        }
    }
}

impl<T: Service<Q>, Q> Future for CheckFuture<T, Q> {
    type Output = Result<T::Response, Error<T::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { decision, call, policy } => {
                    let ruling = ready!(decision.as_mut().poll(context));
                    let Some((inner, request)) = call.take() else { return Poll::Pending };
                    State::after(policy, &ruling, inner, request)
                }
                StateProj::Waiting { sleep, call } => {
                    ready!(sleep.poll(context));
                    let Some((mut inner, request)) = call.take() else { return Poll::Pending };
                    State::Passing { answer: inner.call(request) }
                }
                StateProj::Passing { answer } => return answer.poll(context).map_err(Error::Inner),
                StateProj::Refused { refused } => {
                    let Some(refused) = refused.take() else { return Poll::Pending };
                    return Poll::Ready(Err(Error::Refused(refused)));
                }
            };
            state.set(next);
        }
    }
}

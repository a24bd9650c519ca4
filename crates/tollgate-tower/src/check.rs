use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tollgate::{Asked, InProcess, Limiter, Memory, Ruling, Store};
use tower_layer::Layer;
use tower_service::Service;

use crate::charged::Charged;
use crate::error::{Error, Refused};
use crate::turns::{MAX_WAITING, Turns};

/// Puts a [`Check`] before services of any kind: each call is charged to one subject of one policy, by its name.
#[derive(Debug)]
pub struct CheckLayer<F, S = Memory> {
    limiter: Arc<Limiter<S>>,
    policy: Arc<str>,
    subject: F,
    turns: Arc<Turns>,
}

impl<F, S> CheckLayer<F, S> {
    /// Charges the subject that `subject` finds in a request under this policy.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>, policy: impl Into<Arc<str>>, subject: F) -> Self {
        CheckLayer { limiter: limiter.into(), policy: policy.into(), subject, turns: Turns::new(MAX_WAITING) }
    }

    fn place(&self) -> Place<S> {
        let (limiter, policy, turns) = (&self.limiter, &self.policy, &self.turns);
        Place { limiter: Arc::clone(limiter), policy: Arc::clone(policy), turns: Arc::clone(turns) }
    }
}

impl<F: Clone, S> Clone for CheckLayer<F, S> {
    fn clone(&self) -> Self {
        let Place { limiter, policy, turns } = self.place();
        CheckLayer { limiter, policy, subject: self.subject.clone(), turns }
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
    T: Service<Q, Future: Send> + Clone + Send + 'static,
    Q: Send + 'static,
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
        let CheckLayer { limiter, policy, subject, .. } = &self.check;
        let subject = subject(&request);
        let check = tollgate::Check { policy, subject: subject.as_ref(), cost: None };
        let decided = limiter.decide_now(&[Asked::Check(check)]);
        match decided {
            Some(ruling) if !ruling.is_admit() => {
                CheckFuture { state: State::Refused { refused: Some(Refused::by(policy, &ruling)) } }
            }
            Some(ruling) if ruling.wait() == 0 => {
                CheckFuture { state: State::Passing { answer: self.inner.call(request) } }
            }
            decided => {
                let next = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, next);
                let subject = subject.as_ref().to_owned();
                let steps = steps(self.check.place(), decided, subject, inner, request);
                CheckFuture { state: State::Stepping { steps: Box::pin(steps) } }
            }
        }
    }
}

/// What a call needs of its layer that takes more than one step.
struct Place<S> {
    limiter: Arc<Limiter<S>>,
    policy: Arc<str>,
    turns: Arc<Turns>,
}

/// A count that is elsewhere, and a turn to wait for.
async fn steps<T, Q, S>(
    place: Place<S>,
    decided: Option<Ruling>,
    subject: String,
    mut inner: T,
    request: Q,
) -> Result<T::Response, Error<T::Error>>
where
    T: Service<Q>,
    S: Store + 'static,
{
    let Place { limiter, policy, turns } = place;
    let ruling = match decided {
        Some(ruling) => ruling,
        None => {
            let check = tollgate::Check { policy: &policy, subject: &subject, cost: None };
            limiter.decide_checks(&[check]).await
        }
    };
    if !ruling.is_admit() {
        return Err(Error::Refused(Refused::by(&policy, &ruling)));
    }
    let turn = ruling.turn();
    let charged = Charged::new(limiter, ruling);
    if let Some(turn) = turn {
        match turns.join(&turn) {
            Ok(waiting) => waiting.turn().await,
            Err(_) => return Err(Error::Refused(Refused::crowded(&policy))),
        }
    }
    let _nobody_goes_by_the_response = charged.passed_on().answered();
    inner.call(request).await.map_err(Error::Inner)
}

type Steps<R, E> = Pin<Box<dyn Future<Output = Result<R, Error<E>>> + Send>>;

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
        Passing { #[pin] answer: T::Future },
        Stepping { steps: Steps<T::Response, T::Error> },
        Refused { refused: Option<Refused> },
    }
}

impl<T: Service<Q>, Q> Future for CheckFuture<T, Q> {
    type Output = Result<T::Response, Error<T::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passing { answer } => answer.poll(context).map_err(Error::Inner),
            StateProj::Stepping { steps } => steps.as_mut().poll(context),
            StateProj::Refused { refused } => match refused.take() {
                Some(refused) => Poll::Ready(Err(Error::Refused(refused))),
                None => Poll::Pending,
            },
        }
    }
}

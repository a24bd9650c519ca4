use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{Clock, Reason};
use tower_layer::Layer;
use tower_service::Service;

use crate::afterwards::retry_after;
use crate::error::{Error, Refused};
use crate::fields::pause;

/// The most callers that are held at once; what others ask for beyond them is tried, and refused by the origin.
const MAX_HELD: usize = 10_000;

/// How much later than it was asked to each that waits comes back, at most: a tenth of the time, but no more than this.
const MAX_JITTER: Duration = Duration::from_secs(5);

/// The shortest wait after a refusal; each further one of the same request waits twice as long, whatever the origin says.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// Puts an [`Obey`] before clients: what an origin asks for is done, by all clones together.
///
/// A 429, and a 503 to a request that may be sent twice, is sent again when its `Retry-After` is over, or when by the `RateLimit` fields
/// something is left. Until then nothing else is sent on behalf of the same caller; other callers' requests go on.
/// Whoever would have to wait beyond the deadline is answered at once: with the response, or with [`Error::Refused`] if there is
/// none.
///
/// For other clients, such as reqwest's, [`ObeyLayer::new`] is told how to read them (`examples/obey.rs`).
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::ObeyLayer;
/// use tower::{Layer, Service, ServiceExt};
///
/// # async fn example<C>(hyper_client: C) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
/// # where
/// #     C: Service<http::Request<String>, Response = http::Response<String>, Future: Send> + Clone + Send + 'static,
/// #     C::Error: std::error::Error + Send + Sync,
/// # {
/// let mut client = ObeyLayer::http(Duration::from_secs(30)).layer(hyper_client);
/// let request = http::Request::get("https://api.example.com/").body(String::new())?;
/// let response = client.ready().await?.call(request).await?;
/// # Ok(())
/// # }
/// ```
pub struct ObeyLayer<Q, R> {
    shared: Arc<Shared<Q, R>>,
}

struct Shared<Q, R> {
    deadline: Duration,
    caller: Box<dyn Fn(&Q) -> String + Send + Sync>,
    again: fn(&Q) -> Option<Q>,
    method: fn(&Q) -> Method,
    told: for<'r> fn(&'r R) -> (StatusCode, &'r HeaderMap),
    held: Mutex<HashMap<u64, (Instant, Duration)>>,
    hasher: RandomState,
    clock: Clock,
}

impl<Q, R> ObeyLayer<Q, R> {
    /// A layer that waits until `deadline` at most, from when a request comes. `caller` says on whose behalf a request is made, such
    /// as its host and credential; `again` gives one like it, if it can be sent twice; the others read what they are named for.
    pub fn new(
        deadline: Duration,
        caller: impl Fn(&Q) -> String + Send + Sync + 'static,
        again: fn(&Q) -> Option<Q>,
        method: fn(&Q) -> Method,
        told: for<'r> fn(&'r R) -> (StatusCode, &'r HeaderMap),
    ) -> Self {
        let (caller, held, hasher) = (Box::new(caller), Mutex::default(), RandomState::new());
        let clock = Clock::system();
        ObeyLayer { shared: Arc::new(Shared { deadline, caller, again, method, told, held, hasher, clock }) }
    }
}

impl<B: Clone, R> ObeyLayer<http::Request<B>, http::Response<R>> {
    /// The same for clients such as hyper's, for each authority and `Authorization` apart.
    pub fn http(deadline: Duration) -> Self {
        let caller = |request: &http::Request<B>| {
            let authority = request.uri().authority().map_or("", |authority| authority.as_str());
            let credential = request.headers().get(http::header::AUTHORIZATION);
            format!("{authority} {:?}", credential.map(http::HeaderValue::as_bytes))
        };
        let again = |request: &http::Request<B>| Some(request.clone());
        let method = |request: &http::Request<B>| request.method().clone();
        ObeyLayer::new(deadline, caller, again, method, |response| (response.status(), response.headers()))
    }
}

impl<Q, R> Clone for ObeyLayer<Q, R> {
    fn clone(&self) -> Self {
        ObeyLayer { shared: Arc::clone(&self.shared) }
    }
}

impl<Q, R> std::fmt::Debug for ObeyLayer<Q, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObeyLayer").field("deadline", &self.shared.deadline).finish_non_exhaustive()
    }
}

impl<Q, R, T> Layer<T> for ObeyLayer<Q, R> {
    type Service = Obey<T, Q, R>;

    fn layer(&self, inner: T) -> Obey<T, Q, R> {
        Obey { inner, layer: self.clone() }
    }
}

/// A client that does what origins ask for.
#[derive(Debug)]
pub struct Obey<T, Q, R> {
    inner: T,
    layer: ObeyLayer<Q, R>,
}

impl<T: Clone, Q, R> Clone for Obey<T, Q, R> {
    fn clone(&self) -> Self {
        Obey { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<T, Q, R> Service<Q> for Obey<T, Q, R>
where
    T: Service<Q, Response = R, Future: Send, Error: Send> + Clone + Send + 'static,
    Q: Send + 'static,
    R: Send + 'static,
{
    type Response = R;
    type Error = Error<T::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<R, Error<T::Error>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Error::Inner)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.layer.shared);
        let (caller, again) = (shared.hasher.hash_one((shared.caller)(&request)), (shared.again)(&request));
        Box::pin(shared.send(inner, caller, request, again))
    }
}

/// The time so far from now.
fn after(wait: Duration) -> Instant {
    sleep(wait).deadline()
}

impl<Q, R> Shared<Q, R> {
    async fn send<T: Service<Q, Response = R>>(
        self: Arc<Self>,
        mut inner: T,
        caller: u64,
        mut request: Q,
        mut again: Option<Q>,
    ) -> Result<R, Error<T::Error>> {
        let deadline = after(self.deadline);
        // What comes again has been made ready once; whoever comes first was by its caller.
        let mut ready = true;
        let mut least = LEAST_WAIT;
        loop {
            while let Some((until, wait)) = self.held(caller) {
                if until > deadline {
                    return Err(Error::Refused(held(until)));
                }
                // Not all that wait come back together.
                let jitter = (wait / 10).min(MAX_JITTER).mul_f64(fastrand::f64());
                sleep_until((until + jitter).min(deadline.max(until))).await;
            }
            if !std::mem::replace(&mut ready, false) {
                poll_fn(|context| inner.poll_ready(context)).await.map_err(Error::Inner)?;
            }
            let twice = (self.method)(&request).is_idempotent();
            let response = inner.call(request).await.map_err(Error::Inner)?;
            let (status, headers) = (self.told)(&response);
            let refused = status == StatusCode::TOO_MANY_REQUESTS
                || (status == StatusCode::SERVICE_UNAVAILABLE && twice);
            let wait = retry_after(status, headers, self.clock.now()).or_else(|| pause(headers));
            let Some(wait) = wait else { return Ok(response) };
            let wait = if refused { wait.max(least) } else { wait };
            let until = self.hold(caller, wait);
            least = least.saturating_mul(2);
            match again.take().filter(|_| refused && until <= deadline) {
                None => return Ok(response),
                Some(next) => {
                    again = (self.again)(&next);
                    request = next;
                }
            }
        }
    }

    /// Until when nothing is sent on behalf of this caller, and for how long that was asked, if it is not over.
    fn held(&self, caller: u64) -> Option<(Instant, Duration)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, wait) = *held.get(&caller)?;
        if until <= after(Duration::ZERO) {
            held.remove(&caller);
            return None;
        }
        Some((until, wait))
    }

    /// Holds a caller for a while.
    fn hold(&self, caller: u64, wait: Duration) -> Instant {
        let until = after(wait);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MAX_HELD && !held.contains_key(&caller) {
            let now = after(Duration::ZERO);
            held.retain(|_, (until, _)| *until > now);
        }
        if held.len() < MAX_HELD || held.contains_key(&caller) {
            let known = held.entry(caller).or_insert((until, wait));
            *known = (*known).max((until, wait));
        }
        until
    }
}

fn held(until: Instant) -> Refused {
    let left = until.checked_duration_since(after(Duration::ZERO));
    Refused { reason: Reason::Held, policy: "origin".to_owned(), retry_after: left }
}

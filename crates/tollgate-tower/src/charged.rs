//! What a request was charged, and what is done about that when its client has gone.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tollgate::{Limiter, Ruling, Store};

/// A request that was charged and is not passed on yet. Dropped before that, all that it was charged is given back.
#[derive(Debug)]
pub struct Charged<S: Store + 'static> {
    limiter: Arc<Limiter<S>>,
    ruling: Option<Ruling>,
}

impl<S: Store + 'static> Charged<S> {
    /// What this ruling charged.
    pub const fn new(limiter: Arc<Limiter<S>>, ruling: Ruling) -> Self {
        Charged { limiter, ruling: Some(ruling) }
    }

    /// It is passed on: it stays charged.
    pub fn passed_on(mut self) -> PassedOn<S> {
        PassedOn { limiter: Arc::clone(&self.limiter), ruling: self.ruling.take() }
    }
}

/// A request that was passed on, and of which nothing has come yet. Dropped before something has, it is charged what is charged after a
/// response: nobody gets out of that by leaving early.
#[derive(Debug)]
pub struct PassedOn<S: Store + 'static> {
    limiter: Arc<Limiter<S>>,
    ruling: Option<Ruling>,
}

impl<S: Store + 'static> PassedOn<S> {
    /// A response has come, or nobody goes by one.
    pub fn answered(mut self) -> Option<Ruling> {
        self.ruling.take()
    }
}

impl<S: Store + 'static> Drop for PassedOn<S> {
    fn drop(&mut self) {
        let Some(mut ruling) = self.ruling.take().filter(Ruling::goes_by_response) else { return };
        let limiter = Arc::clone(&self.limiter);
        in_background(async move { limiter.unanswered(&mut ruling).await });
    }
}

impl<S: Store + 'static> Drop for Charged<S> {
    fn drop(&mut self) {
        let Some(mut ruling) = self.ruling.take() else { return };
        let limiter = Arc::clone(&self.limiter);
        in_background(async move { limiter.give_back(&mut ruling).await });
    }
}

/// Does something that nobody waits for: at once if it needs no waiting, as where counts are in this process, else in a task of
/// its own.
pub fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(work));
    }
}

/// Does something that goes on to its end when whoever waits for it leaves. `None` when it could not.
pub async fn to_its_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let mut work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    let first = std::future::poll_fn(|context| Poll::Ready(pin!(&mut work).poll(context))).await;
    if let Poll::Ready(done) = first {
        return Some(done);
    }
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(work).await.ok(),
        Err(_) => Some(work.await),
    }
}

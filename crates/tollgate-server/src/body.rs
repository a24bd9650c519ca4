//! Bodies: boxed, and guarded in size and time while they stream through.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Collected, Empty, Full};
use hyper::body::Incoming;
use tokio::time::Sleep;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of every answer, and of every request to an origin.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// No body.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is all there.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    from_full(Full::new(bytes.into()))
}

/// The same, made already.
pub fn from_full(full: Full<Bytes>) -> Body {
    full.map_err(|never| match never {}).boxed_unsync()
}

/// Why a body ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is larger than allowed: 413.
    TooLarge,
    /// Nothing came for too long: 408.
    TooSlow,
    /// It broke off: 400.
    Broken,
}

impl Cut {
    /// The status that says so.
    pub const fn status(self) -> StatusCode {
        match self {
            Cut::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Cut::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Cut::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::TooLarge => "The body is larger than allowed.",
            Cut::TooSlow => "The body stopped coming.",
            Cut::Broken => "The body broke off.",
        })
    }
}

impl Error for Cut {}

/// What others may know of a guarded body.
#[derive(Debug, Default)]
pub struct Progress {
    frames: AtomicU64,
    cut: OnceLock<Cut>,
}

impl Progress {
    /// Why it ended early, if it did.
    pub fn cut(&self) -> Option<Cut> {
        self.cut.get().copied()
    }

    /// Returns when for `patience` nothing of the body has moved on: it has all gone out, or nobody takes it.
    pub async fn stalled(&self, patience: Duration) {
        let mut seen = self.frames.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(patience).await;
            let now = self.frames.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, now) == now {
                return;
            }
        }
    }
}

/// A body that may not be larger than `left` more bytes, nor pause longer than `pause`.
#[derive(Debug)]
pub struct Guarded<B> {
    inner: B,
    left: u64,
    pause: Duration,
    timer: Pin<Box<Sleep>>,
    progress: Arc<Progress>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> Guarded<B> {
    /// Guards a body.
    pub fn new(inner: B, most: u64, pause: Duration) -> (Self, Arc<Progress>) {
        let progress = Arc::<Progress>::default();
        let timer = Box::pin(tokio::time::sleep(pause));
        (Guarded { inner, left: most, pause, timer, progress: Arc::clone(&progress) }, progress)
    }

    fn cut(&self, why: Cut) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let _first = self.progress.cut.set(why);
        Poll::Ready(Some(Err(why.into())))
    }
}

impl<B> HttpBody for Guarded<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            let late = self.timer.as_mut().poll(context).is_ready();
            return if late { self.cut(Cut::TooSlow) } else { Poll::Pending };
        };
        let pause = self.pause;
        self.timer.set(tokio::time::sleep(pause));
        self.progress.frames.fetch_add(1, Ordering::Relaxed);
        let size = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        match self.left.checked_sub(size as u64) {
            Some(left) => self.left = left,
            None => return self.cut(Cut::TooLarge),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body whose bytes are counted. When it is through, or nobody takes any more of it, somebody is told how many there were.
pub struct Measured<B> {
    inner: B,
    bytes: u64,
    through: Option<Box<dyn FnOnce(u64) + Send>>,
}

impl<B> Measured<B> {
    /// Counts the bytes of `inner`, and tells `through`.
    pub fn new(inner: B, through: impl FnOnce(u64) + Send + 'static) -> Self {
        Measured { inner, bytes: 0, through: Some(Box::new(through)) }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Measured<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let size = frame.data_ref().map_or(0, Bytes::len);
            self.bytes = self.bytes.saturating_add(size as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for Measured<B> {
    fn drop(&mut self) {
        if let Some(through) = self.through.take() {
            through(self.bytes);
        }
    }
}

/// Reads a small body whole.
///
/// # Errors
/// [`Cut`] when it is larger than `most`, stops coming, or breaks off.
pub async fn read(body: Incoming, most: usize, pause: Duration) -> Result<Bytes, Cut> {
    let (body, progress) = Guarded::new(body, most as u64, pause);
    let whole = body.collect().await.map(Collected::to_bytes);
    whole.map_err(|_| progress.cut().unwrap_or(Cut::Broken))
}

//! Bodies: boxed, and guarded in size and time while they stream through.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
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
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Why a guarded body ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is larger than allowed.
    TooLarge,
    /// Nothing came for too long.
    TooSlow,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::TooLarge => "the body is larger than allowed",
            Cut::TooSlow => "the body stopped coming",
        })
    }
}

impl Error for Cut {}

/// A body that may not be larger than `left` more bytes, nor pause longer than `pause`.
#[derive(Debug)]
pub struct Guarded<B> {
    inner: B,
    left: u64,
    pause: Duration,
    timer: Pin<Box<Sleep>>,
    too_large: Arc<AtomicBool>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> Guarded<B> {
    /// Guards a body. The flag tells later whether it was too large.
    pub fn new(inner: B, most: u64, pause: Duration) -> (Self, Arc<AtomicBool>) {
        let too_large = Arc::new(AtomicBool::new(false));
        let timer = Box::pin(tokio::time::sleep(pause));
        (Guarded { inner, left: most, pause, timer, too_large: Arc::clone(&too_large) }, too_large)
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
            return if late { Poll::Ready(Some(Err(Cut::TooSlow.into()))) } else { Poll::Pending };
        };
        let pause = self.pause;
        self.timer.set(tokio::time::sleep(pause));
        let size = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        match self.left.checked_sub(size as u64) {
            Some(left) => self.left = left,
            None => {
                self.too_large.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err(Cut::TooLarge.into())));
            }
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

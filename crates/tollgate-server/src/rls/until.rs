//! A body that ends when the server is told to stop.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::listen::Stop;

/// Passes frames on until the server is told to stop.
pub(super) struct Until {
    body: tonic::body::Body,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_stopped: bool,
}

impl Until {
    pub(super) fn new(body: tonic::body::Body, mut stop: Stop) -> Self {
        Until { body, stopped: Box::pin(async move { stop.told().await }), is_stopped: false }
    }
}

impl Body for Until {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => {}
            ready => return ready,
        }
        if !self.is_stopped && self.stopped.as_mut().poll(context).is_ready() {
            self.is_stopped = true;
            let status = Status::unavailable("the server is stopping");
            let mut trailers = http::HeaderMap::new();
            if status.add_header(&mut trailers).is_ok() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        if self.is_stopped { Poll::Ready(None) } else { Poll::Pending }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! Bodies on their way: counted, slowed down, or cut short.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Method;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::plan::Fault;
use crate::serve::Core;
use crate::stats::Way;
use crate::wire::WireState;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A small body of our own.
pub(crate) fn full(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Reads a body to its end and keeps nothing.
pub(crate) async fn drain<B: Body + Unpin>(mut body: B) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Counts a body's bytes and lets them through at the speed of the profile.
pub(crate) struct Metered<B> {
    inner: B,
    core: Arc<Core>,
    wire: Arc<WireState>,
    method: Method,
    way: Way,
    held: Option<Frame<Bytes>>,
    wait: Option<Pin<Box<Sleep>>>,
}

impl<B> Metered<B> {
    pub(crate) fn new(inner: B, core: Arc<Core>, wire: Arc<WireState>, method: Method, way: Way) -> Self {
        Self { inner, core, wire, method, way, held: None, wait: None }
    }
    fn passing(&self, frame: &Frame<Bytes>) -> Duration {
        let bytes = held_bytes(Some(frame));
        self.core.stats.bytes(&self.method, self.way, bytes);
        self.core.passing(&self.wire, self.way, bytes)
    }
}

fn held_bytes(frame: Option<&Frame<Bytes>>) -> u64 {
    frame.and_then(Frame::data_ref).map_or(0, |d| d.len() as u64)
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            if let Some(frame) = self.held.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
            let wait = self.passing(&frame);
            if wait.is_zero() {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.held = Some(frame);
            self.wait = Some(Box::pin(tokio::time::sleep(wait)));
        }
    }
    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.inner.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.inner.size_hint(), held_bytes(self.held.as_ref()));
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(inner.lower() + held);
        hint
    }
}

/// Lets the first bytes of a body through, waits until they are sent, and ends the connection in the way of the fault.
pub(crate) struct Cut {
    inner: AnyBody,
    left: u64,
    /// Bytes of the connection at which all that may pass has been sent.
    mark: u64,
    fault: Fault,
    core: Arc<Core>,
    wire: Arc<WireState>,
}

impl Cut {
    pub(crate) fn new(inner: AnyBody, bytes: u64, fault: Fault, core: Arc<Core>, wire: Arc<WireState>) -> Self {
        // The answer's head is sent before the body, so that the mark is always beyond some of it.
        let mark = wire.written() + bytes;
        Self { inner, left: bytes, mark: mark + 1, fault, core, wire }
    }
}

impl Body for Cut {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            let (wire, mark) = (self.wire.clone(), self.mark);
            ready!(wire.poll_written(cx, mark));
            if self.fault == Fault::ResetDuring {
                self.wire.doom();
            }
            self.core.stats.fault(self.fault);
            return Poll::Ready(Some(Err("cut on purpose".into())));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let Ok(mut data) = frame.into_data() else { return Poll::Ready(None) };
        data.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= data.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

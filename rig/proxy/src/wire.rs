//! The connection to a client, so that it can be reset (RST) rather than closed, and so that a body knows what was really sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::shape::Lane;

/// What is known of one connection.
#[derive(Default)]
pub(crate) struct WireState {
    doomed: AtomicBool,
    written: AtomicU64,
    waiting: Mutex<Option<Waker>>,
    pub(crate) up: Lane,
    pub(crate) down: Lane,
}

impl WireState {
    /// From now on the end of this connection is a reset.
    pub(crate) fn doom(&self) {
        self.doomed.store(true, Ordering::SeqCst);
    }
    /// Bytes handed to the kernel.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }
    /// Ready once `mark` bytes were handed to the kernel.
    pub(crate) fn poll_written(&self, cx: &mut Context<'_>, mark: u64) -> Poll<()> {
        *self.waiting.lock() = Some(cx.waker().clone());
        if self.written() >= mark { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A TCP stream with its state.
pub(crate) struct Wire {
    stream: TcpStream,
    state: Arc<WireState>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> (Self, Arc<WireState>) {
        let state = Arc::new(WireState::default());
        (Self { stream, state: state.clone() }, state)
    }
    fn wrote(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(n)) = result {
            self.state.written.fetch_add(*n as u64, Ordering::SeqCst);
            if let Some(waker) = self.state.waiting.lock().take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.state.doomed.load(Ordering::SeqCst) {
            // Closing with a linger of zero sends RST; where it cannot be set the peer is gone already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(&result);
        result
    }
    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(&result);
        result
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A FIN before the RST would look like an orderly end.
        if self.state.doomed.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

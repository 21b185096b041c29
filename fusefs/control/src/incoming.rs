//! Connections of a socket: root only, a bounded number, and none that says nothing.
//!
//! Whoever says nothing is put out after a while, and at once, the oldest first, where another wants in and there is no room.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// Time for a client to say hello.
const HELLO: Duration = Duration::from_secs(10);
/// The preface of HTTP/2 and the head of its first frame: who got that far can be pinged.
const HELLO_BYTES: usize = 24 + 9;
/// Pause after a failed accept (out of descriptors): others must close first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Room = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>;

/// A stream of connections that never ends.
pub struct Incoming {
    listener: UnixListener,
    semaphore: Arc<Semaphore>,
    /// Room for the next connection, or the wait for it.
    room: Option<Room>,
    permit: Option<OwnedSemaphorePermit>,
    /// Accepted, and waiting for room; true once somebody was put out for it.
    next: Option<(UnixStream, bool)>,
    /// Those that have said nothing yet, oldest first, and some that have gone or said hello since.
    silent: VecDeque<oneshot::Sender<()>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    /// Accepts from `listener`.
    pub fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            semaphore: Arc::new(Semaphore::new(CONNECTIONS)),
            room: None,
            permit: None,
            next: None,
            silent: VecDeque::new(),
            pause: None,
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.permit.is_some() {
            return Poll::Ready(());
        }
        let semaphore = &self.semaphore;
        let room = self.room.get_or_insert_with(|| {
            let semaphore = semaphore.clone();
            Box::pin(async move {
                match semaphore.acquire_owned().await {
                    Ok(permit) => permit,
                    // Never closed.
                    Err(_) => std::future::pending().await,
                }
            })
        });
        self.permit = Some(ready!(room.as_mut().poll(cx)));
        self.room = None;
        Poll::Ready(())
    }

    /// Puts the oldest out that has said nothing; false where all have.
    fn put_one_out(&mut self) -> bool {
        while let Some(silent) = self.silent.pop_front() {
            if silent.send(()).is_ok() {
                return true;
            }
        }
        false
    }

    fn hello(&mut self) -> Hello {
        if self.silent.len() >= CONNECTIONS {
            self.silent.retain(|s| !s.is_closed());
        }
        let (put_out, no_room) = oneshot::channel();
        self.silent.push_back(put_out);
        Hello { time: Box::pin(tokio::time::sleep(HELLO)), no_room }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            if let Some((stream, asked)) = self.next.take() {
                if self.poll_room(cx).is_pending() {
                    let asked = asked || self.put_one_out();
                    self.next = Some((stream, asked));
                    return Poll::Pending;
                }
                let hello = Some(self.hello());
                return Poll::Ready(Some(Ok(Connection { stream, _permit: self.permit.take(), hello, said: 0 })));
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, _)) if is_root(&stream) => self.next = Some((stream, false)),
                Ok(_) => {}
                Err(e) => {
                    tracing::warn!(error = %e, "a connection could not be accepted");
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

fn is_root(stream: &UnixStream) -> bool {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => true,
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), "a connection was refused: only root may speak on this socket");
            false
        }
        Err(e) => {
            tracing::warn!(error = %e, "a connection was refused: its peer is not known");
            false
        }
    }
}

/// What a client that has said nothing waits for.
struct Hello {
    time: Pin<Box<Sleep>>,
    no_room: oneshot::Receiver<()>,
}

impl Hello {
    /// True once it waited too long, or another wants its place.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let put_out = matches!(Pin::new(&mut self.no_room).poll(cx), Poll::Ready(Ok(())));
        put_out || self.time.as_mut().poll(cx).is_ready()
    }
}

/// A connection, and its place among those that are served.
pub struct Connection {
    stream: UnixStream,
    _permit: Option<OwnedSemaphorePermit>,
    /// Until the client has said hello.
    hello: Option<Hello>,
    said: usize,
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.said += buf.filled().len() - before;
        if self.said >= HELLO_BYTES {
            self.hello = None;
        }
        if let Some(hello) = &mut self.hello
            && hello.is_over(cx)
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client said nothing")));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

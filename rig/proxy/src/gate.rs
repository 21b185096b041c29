//! The listening socket: open, or closed so that the kernel refuses connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::serve::Core;
use crate::stats::Stats;
use crate::wire::Wire;

/// Connections that wait to be taken.
const QUEUE: u32 = 1024;

pub(crate) struct Gate {
    address: SocketAddr,
    /// Bound and never listening: keeps the port for this process while the gate is closed.
    _holder: TcpSocket,
    open: Mutex<Option<(watch::Sender<bool>, JoinHandle<()>)>>,
}

impl Gate {
    /// Takes the port; nothing listens yet.
    pub(crate) fn reserve(address: SocketAddr) -> io::Result<Self> {
        let holder = socket(address)?;
        let address = holder.local_addr()?;
        Ok(Self { address, _holder: holder, open: Mutex::default() })
    }
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens, if it does not yet.
    pub(crate) fn open(&self, core: &Arc<Core>) -> io::Result<()> {
        let mut open = self.open.lock();
        if open.is_none() {
            let listener = socket(self.address)?.listen(QUEUE)?;
            let (stop, stopped) = watch::channel(false);
            // The core owns this gate: its tasks must not keep it alive.
            *open = Some((stop, tokio::spawn(accept(listener, Arc::downgrade(core), stopped))));
        }
        Ok(())
    }

    /// Refuses connections and resets the open ones; false where it was closed already.
    pub(crate) async fn close(&self) -> bool {
        let taken = self.open.lock().take();
        let Some((stop, task)) = taken else { return false };
        stop.send_replace(true);
        // The task does nothing that could panic or be cancelled but by `stop`.
        let _ = task.await;
        true
    }

    /// Ends without waiting.
    pub(crate) fn stop(&self) {
        if let Some((_, task)) = self.open.lock().take() {
            task.abort();
        }
    }
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(listener: TcpListener, core: std::sync::Weak<Core>, mut stopped: watch::Receiver<bool>) {
    // Ends its connections with itself.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            taken = listener.accept() => {
                // A connection that is gone before it was taken, or no descriptor left: the next one may do better.
                let Ok((stream, _)) = taken else { tokio::task::yield_now().await; continue };
                let Some(core) = core.upgrade() else { return };
                Stats::add(&core.stats.connections);
                connections.spawn(connection(stream, core, stopped.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, core: Arc<Core>, mut stopped: watch::Receiver<bool>) {
    // Small answers must not wait for more.
    let _ = stream.set_nodelay(true);
    let (wire, state) = Wire::new(stream);
    let (owner, wire_of) = (core.clone(), state.clone());
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(wire), service_fn(move |request| owner.clone().handle(wire_of.clone(), request)));
    // Within the branch: the connection is gone before a handler of `select!` runs.
    let doomed = async {
        let _ = stopped.changed().await;
        state.doom();
    };
    tokio::select! {
        biased;
        () = doomed => Stats::add(&core.stats.outage_resets),
        // How a connection ends is the client's business or ours on purpose.
        _ = served => {}
    }
}

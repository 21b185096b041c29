//! Serving calls: one task per connection, so that a slow client holds up nobody.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hiloop_types::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::Daemon;
use super::protocol::{Body, Call, Fault, Hello, LINE_MAX, Progress, Reply, Request};
use super::socket::check_peer;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// Time for a request to arrive, and for one line of an answer to be taken.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept (out of descriptors): others must close first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts for ever.
pub(super) async fn serve(daemon: Arc<Daemon>, listener: UnixListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let daemon = daemon.clone();
                tokio::spawn(async move {
                    converse(daemon, stream).await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::warn!(error = %e, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The writing end of a connection.
pub(super) struct Talk {
    write: Option<OwnedWriteHalf>,
}

impl Talk {
    /// To nobody: for callers that take no progress.
    pub(super) fn quiet() -> Self {
        Self { write: None }
    }

    async fn say(&mut self, body: Body) {
        let Some(write) = &mut self.write else { return };
        let line = Reply::new(body).line();
        let said = tokio::time::timeout(CLIENT_PATIENCE, write.write_all(&line)).await;
        if !matches!(said, Ok(Ok(()))) {
            self.write = None;
        }
    }

    /// Waits for `work`, telling the client each second what `progress` says.
    pub(super) async fn during<T>(&mut self, mut work: BoxFuture<'_, T>, progress: impl Fn() -> Progress + Send) -> T {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.tick().await;
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => self.say(Body::Progress(progress())).await,
            }
        }
    }
}

async fn converse(daemon: Arc<Daemon>, stream: UnixStream) {
    if let Err(e) = check_peer(&stream) {
        tracing::warn!(error = %e, "a connection was refused");
        return;
    }
    let (read, write) = stream.into_split();
    let mut talk = Talk { write: Some(write) };
    let request = match tokio::time::timeout(CLIENT_PATIENCE, read_line(read)).await {
        Err(_) => return,
        Ok(Ok(None)) => return,
        Ok(Ok(Some(line))) => Request::parse(&line),
        Ok(Err(e)) => Err(e),
    };
    // No answer at all tells the client that nothing was done: it starts the next daemon.
    if daemon.begin_call().is_ok() {
        let result = match request {
            Ok(request) => {
                talk.say(Body::Progress(Progress { doing: "asked the daemon".into(), left_bytes: None })).await;
                // The call goes on where its client went away: a mount that is half made helps nobody.
                answer(&daemon, request.call, &mut talk).await
            }
            Err(e) => Err(e),
        };
        let body = match result {
            Ok(value) => Body::Result(value),
            Err(e) => Body::Error(Fault::of(&e)),
        };
        talk.say(body).await;
        daemon.end_call();
    }
}

async fn answer(daemon: &Arc<Daemon>, call: Call, talk: &mut Talk) -> Result<serde_json::Value> {
    match call {
        Call::Hello => encode(Hello {
            pid: std::process::id(),
            program: env!("CARGO_PKG_VERSION").into(),
            cache_dir: daemon.options.cache_dir.clone(),
        }),
        Call::Mount(call) => encode(Box::pin(daemon.mount(call, talk)).await?),
        Call::Find(of) => encode(daemon.find(&of)),
        Call::Snapshot { of, name, wait } => encode(Box::pin(daemon.snapshot(of, name, wait, talk)).await?),
        Call::Flush(of) => encode(Box::pin(daemon.flush(of, talk)).await?),
        Call::Status(None) => daemon.status(),
        Call::Status(Some(of)) => {
            let daemon = daemon.clone();
            super::mounts::blocking(move || daemon.workspace_status(&of)).await
        }
        Call::Metrics => encode(crate::telemetry::prometheus::render(daemon.samples())?),
        Call::Unmount { of, timeout_ms } => encode(Box::pin(daemon.unmount(of, Duration::from_millis(timeout_ms), talk)).await?),
        Call::Wait(of) => encode(Box::pin(daemon.wait(of, talk)).await?),
        Call::Recover { store } => encode(Box::pin(daemon.recover(&store, talk)).await?),
    }
}

fn encode(value: impl serde::Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| Error::internal(format!("an answer cannot be encoded: {e}")))
}

/// One line without its end; `None` where the client went away.
async fn read_line(mut read: OwnedReadHalf) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let mut part = [0; 4096];
        match read.read(&mut part).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(n) => line.extend_from_slice(&part[..n]),
        }
        if let Some(end) = line.iter().position(|b| *b == b'\n') {
            line.truncate(end);
            return Ok(Some(line));
        }
        if line.len() > LINE_MAX {
            return Err(Error::invalid(format!("the request is longer than {LINE_MAX} bytes")));
        }
    }
}

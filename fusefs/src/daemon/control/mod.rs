//! The control socket: gRPC for privileged agents of the node (CSI driver, checkpointing), over `hiloop-control`'s protocol.
//!
//! It is a second door to the same operations that the line protocol serves, for one store, that of the configuration. Only root comes
//! in: the socket has mode 0600 in a directory of mode 0700, and every peer's credentials are checked. Connections, streams, message
//! sizes and the time to say hello are bounded ([`Incoming`]), so that a hostile client costs a bounded amount and holds up nobody.
//! Operations outlive the call that asked for them ([`operations`]).

mod operations;
mod paths;
mod service;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hiloop_control::v1::control_server::ControlServer;
use hiloop_control::{ANSWER_MAX, Directory, Incoming, REQUEST_MAX, bind};
use hiloop_types::{Error, Result};
pub use paths::check as check_paths;

use super::Daemon;

/// Calls served at once on one connection; more wait.
const STREAMS: u32 = 128;
/// A connection whose peer does not answer a ping for so long is cut.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWERED: Duration = Duration::from_secs(10);
/// Longest deadline of a call, whatever its client asks for. `wait`ing snapshots and drains may need it.
const LONGEST_CALL: Duration = Duration::from_secs(3600);

/// How the control socket is served.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// Where it listens.
    pub socket: PathBuf,
    /// State directory of the kubelet, which may hold neither the socket nor the cache.
    pub kubelet_root: PathBuf,
    /// Store that all calls are about, canonical.
    pub store: String,
}

/// The socket, bound and not yet served.
pub(super) struct Listening {
    listener: tokio::net::UnixListener,
    options: ControlOptions,
}

/// Binds the socket; what a dead daemon left there is replaced.
///
/// # Errors
/// `Conflict` where something listens there already; `Invalid` for a path that cannot be; those of the file system.
pub(super) async fn listen(options: &ControlOptions) -> Result<Listening> {
    Ok(Listening { listener: bind(&options.socket, Directory::Own).await?, options: options.clone() })
}

impl Listening {
    /// Serves until the future is dropped.
    pub(super) async fn serve(self, daemon: Arc<Daemon>) -> Result<()> {
        let socket = self.options.socket.clone();
        let service = service::Service::new(daemon, self.options);
        let server = ControlServer::new(service).max_decoding_message_size(REQUEST_MAX).max_encoding_message_size(ANSWER_MAX);
        tonic::transport::Server::builder()
            .timeout(LONGEST_CALL)
            .max_concurrent_streams(STREAMS)
            .concurrency_limit_per_connection(STREAMS as usize)
            .http2_keepalive_interval(Some(PING_EVERY))
            .http2_keepalive_timeout(Some(PING_ANSWERED))
            .http2_max_header_list_size(64 * 1024)
            .add_service(server)
            .serve_with_incoming(Incoming::new(self.listener))
            .await
            .map_err(|e| Error::internal(format!("the control socket ended: {e}")).at(socket.display()))
    }
}

/// Takes the socket away.
pub(super) fn remove(options: &ControlOptions) {
    if let Err(e) = std::fs::remove_file(&options.socket) {
        tracing::debug!(error = %e, "the control socket was gone already");
    }
}

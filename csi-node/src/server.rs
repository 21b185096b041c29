//! Serving the endpoint.

use std::sync::Arc;
use std::time::Duration;

use hiloop_control::{Client, Directory, Incoming, bind};
use hiloop_types::{Error, Result, ResultExt};
use tokio::signal::unix::{SignalKind, signal};

use crate::controller::ControllerService;
use crate::identity::IdentityService;
use crate::locks::Locks;
use crate::node::NodeService;
use crate::options::Options;
use crate::sealed::Sealed;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;

/// Longest a call is served, whatever its caller's patience.
const LONGEST_CALL: Duration = Duration::from_secs(120);
/// Calls at once on one connection: a node starts up to a hundred pods together.
const STREAMS: usize = 256;

/// Serves until SIGTERM or SIGINT. Mounts stay.
///
/// # Errors
/// Why it could not start.
pub async fn serve(options: Options) -> Result<()> {
    options.check()?;
    let daemon = Client::new(&options.control_socket)?;
    let sealed = Arc::new(Sealed::open(&options.state_dir)?);
    let swept = sealed.sweep()?;
    if !swept.cleared.is_empty() || !swept.failed.is_empty() {
        tracing::info!(cleared = ?swept.cleared, failed = ?swept.failed, "targets that nothing is mounted on any more");
    }
    let socket = options.socket()?.to_owned();
    let listener = bind(&socket, Directory::Given).await?;
    let (options, locks) = (Arc::new(options), Locks::default());
    let identity = IdentityService { name: options.driver_name.clone(), daemon: daemon.clone() };
    let controller = ControllerService { options: options.clone(), daemon: daemon.clone(), locks: locks.clone() };
    let node = NodeService { options: options.clone(), daemon, locks, sealed };
    let (mut term, mut int) = (signal(SignalKind::terminate()).at("SIGTERM")?, signal(SignalKind::interrupt()).at("SIGINT")?);
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    tracing::info!(endpoint = %socket.display(), node = %options.node_id, control = %options.control_socket.display(), "serving");
    let served = tonic::transport::Server::builder()
        .timeout(LONGEST_CALL)
        .max_concurrent_streams(STREAMS as u32)
        .concurrency_limit_per_connection(STREAMS)
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .add_service(NodeServer::new(node))
        .serve_with_incoming_shutdown(Incoming::new(listener), stop)
        .await;
    if let Err(e) = std::fs::remove_file(&socket) {
        tracing::debug!(error = %e, "the socket was gone already");
    }
    served.map_err(|e| Error::internal(format!("the endpoint is not served any more: {e}")).at(socket.display()))
}

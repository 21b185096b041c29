//! The client: one lazy connection that comes back by itself, a deadline on every call, errors in our words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_types::{Error, Result};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::status::is_told;
use crate::v1::control_client::ControlClient;
use crate::v1::{
    AttachRequest, AttachResponse, CreateRequest, CreateResponse, DeleteRequest, DeleteResponse, DescribeRequest, DescribeResponse,
    DetachRequest, DetachResponse, DrainRequest, DrainResponse, Event, EvictRequest, EvictResponse, FlushRequest, FlushResponse,
    ForkRequest, ForkResponse, InfoRequest, InfoResponse, ListRequest, ListResponse, SnapshotRequest, SnapshotResponse,
    SnapshotStatusRequest, StatusRequest, StatusResponse, WatchRequest,
};
use crate::{ANSWER_MAX, check_path, into_error};

/// Time for the daemon to take a connection.
const CONNECTS: Duration = Duration::from_secs(5);
/// The daemon keeps the same deadline; a little later the client stops waiting for its word about it.
const SLACK: Duration = Duration::from_millis(500);

/// How long a call may take. The operation behind it goes on when the time is up.
pub type Deadline = Duration;

/// A client of the daemon's control socket. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    inner: ControlClient<Channel>,
    socket: PathBuf,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// The daemon's, or `Unavailable` where it does not answer in time.
        pub async fn $name(&self, request: $request, within: Deadline) -> Result<$response> {
            let mut inner = self.inner.clone();
            self.bounded(within, request, |r| async move { inner.$name(r).await }).await
        }
    )*};
}

impl Client {
    /// A client of the daemon that listens at `socket`, now or later. Needs a tokio runtime.
    ///
    /// # Errors
    /// `Invalid` for a path that cannot be a socket's.
    pub fn new(socket: &Path) -> Result<Self> {
        let text = check_path(socket)?;
        let endpoint = Endpoint::try_from(format!("unix:{text}"))
            .map_err(|e| Error::invalid(format!("the path of the socket cannot be used: {e}")).at(socket.display()))?
            .connect_timeout(CONNECTS);
        let inner = ControlClient::new(endpoint.connect_lazy()).max_decoding_message_size(ANSWER_MAX);
        Ok(Self { inner, socket: socket.to_owned() })
    }
    /// Where the daemon listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    async fn bounded<Q, R, F>(&self, within: Deadline, message: Q, call: impl FnOnce(Request<Q>) -> F) -> Result<R>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(within);
        let hint = "is the daemon running? it listens once it has recovered its directory";
        match tokio::time::timeout(within + SLACK, call(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if !is_told(&status) => Err(into_error(&status).at(self.socket.display()).hint(hint)),
            Ok(Err(status)) => Err(into_error(&status)),
            Err(_) => Err(Error::unavailable("the daemon did not answer in time").at(self.socket.display()).hint(hint)),
        }
    }

    calls! {
        /// Who answers.
        info(InfoRequest) -> InfoResponse;
        /// Makes a workspace for a claim, or adopts one.
        create(CreateRequest) -> CreateResponse;
        /// Puts a tombstone over a workspace.
        delete(DeleteRequest) -> DeleteResponse;
        /// What the store knows about a workspace or base.
        describe(DescribeRequest) -> DescribeResponse;
        /// Opens a workspace and mounts it.
        attach(AttachRequest) -> AttachResponse;
        /// Ends a mount, or one that is being made.
        detach(DetachRequest) -> DetachResponse;
        /// The mounts of the daemon.
        list(ListRequest) -> ListResponse;
        /// State of a mount or of the daemon.
        status(StatusRequest) -> StatusResponse;
        /// Cuts a snapshot.
        snapshot(SnapshotRequest) -> SnapshotResponse;
        /// Whether a snapshot is replicated.
        snapshot_status(SnapshotStatusRequest) -> SnapshotResponse;
        /// Makes workspaces from a source.
        fork(ForkRequest) -> ForkResponse;
        /// Publishes all accepted writes of a mounted workspace.
        flush(FlushRequest) -> FlushResponse;
        /// Empties the disk cache.
        evict(EvictRequest) -> EvictResponse;
        /// Refuses new attaches and publishes everything.
        drain(DrainRequest) -> DrainResponse;
    }

    /// Calls `each` for everything that happens to mounts from now on, until it says no or the daemon ends.
    ///
    /// # Errors
    /// The daemon's; that it ended is none.
    pub async fn watch(&self, mut each: impl FnMut(Event) -> bool) -> Result<()> {
        let mut inner = self.inner.clone();
        let mut events = inner.watch(WatchRequest {}).await.map_err(|s| into_error(&s).at(self.socket.display()))?.into_inner();
        while let Some(event) = events.message().await.map_err(|s| into_error(&s))? {
            if !each(event) {
                break;
            }
        }
        Ok(())
    }
}

//! What outlives the daemon: the descriptors of a mount and what a successor needs to know, in the hands of the keeper.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use hiloop_engine::workspace::Workspace;
use hiloop_keeper::{Client, Held};
use hiloop_transport::InitState;
use hiloop_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Version of [`About`]. What a daemon of another version wrote it does not take over.
const VERSION: u32 = 1;

/// The keeper of a mount, and how the mount was asked for, in words that only the daemon reads.
#[derive(Clone)]
pub struct Keep {
    /// The keeper.
    pub keeper: Arc<Client>,
    /// The call that made the mount.
    pub call: serde_json::Value,
}

/// What the keeper is told of a mount.
#[derive(Serialize, Deserialize)]
struct About {
    version: u32,
    /// The opening that serves the mount, and no other can: what the kernel remembers is that one's.
    session: u64,
    epoch: u64,
    /// [`InitState::to_bytes`].
    init: Vec<u8>,
    call: serde_json::Value,
}

/// A mount whose daemon is gone.
pub struct Left {
    /// Number of the FUSE connection.
    pub connection: u32,
    /// The call that made the mount.
    pub call: serde_json::Value,
    opening: (u64, u64),
    pub(super) init: InitState,
    pub(super) devices: Vec<OwnedFd>,
}

impl Keep {
    pub(super) fn hold(&self, connection: Option<u32>, at: &Path, ws: &Workspace, init: &InitState, devices: &[OwnedFd]) -> io::Result<()> {
        let connection = connection.ok_or_else(|| io::Error::other("the connection of the mount is not known"))?;
        let (session, epoch) = (ws.session().0, ws.epoch().0);
        let about = About { version: VERSION, session, epoch, init: init.to_bytes().to_vec(), call: self.call.clone() };
        let devices: Vec<_> = devices.iter().map(AsFd::as_fd).collect();
        let held = self.keeper.hold(connection, &at.display().to_string(), serde_json::to_string(&about)?, &devices);
        held.map_err(|e| io::Error::new(e.kind(), format!("the keeper does not take the mount: {e}")))
    }

    pub(super) fn release(&self, connection: Option<u32>) {
        if let Some(Err(e)) = connection.map(|c| self.keeper.release(c)) {
            tracing::warn!(error = %e, "the keeper was not told of the end of a mount");
        }
    }
}

impl Left {
    /// Reads what the daemon before wrote down.
    ///
    /// # Errors
    /// Corrupt, or of another version of this program: then nobody can take the mount over.
    pub fn read(held: Held) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(what).at(format!("FUSE connection {}", held.connection));
        let about: About =
            serde_json::from_str(&held.about).map_err(|e| corrupt(format!("what the keeper was told cannot be read: {e}")))?;
        if about.version != VERSION {
            let (theirs, held) = (about.version, held.connection);
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("the mount was made by a daemon that writes version {theirs} of its state; this one reads {VERSION}"),
            )
            .at(format!("FUSE connection {held}"))
            .hint("run the version that made it; the keeper holds the mount meanwhile"));
        }
        let init = InitState::from_bytes(&about.init).map_err(|e| corrupt(e.to_string()))?;
        Ok(Self { connection: held.connection, call: about.call, opening: (about.session, about.epoch), init, devices: held.devices })
    }

    /// True where `ws` is the opening that made the mount.
    pub fn is_of(&self, ws: &Workspace) -> bool {
        self.opening == (ws.session().0, ws.epoch().0)
    }
}

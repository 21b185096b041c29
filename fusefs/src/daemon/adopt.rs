//! Mounts that a daemon before left with the keeper: found at the start, taken over one beside the other.
//!
//! Their users wait in the kernel meanwhile and see no error. A mount goes on only with the very opening that made it, since the kernel
//! remembers that one's answers; where that is gone (taken over elsewhere, or its journal lost) the mount is cut off, which its users
//! notice at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hiloop_keeper::Client;
use hiloop_types::{Error, ErrorKind, Result, ResultExt};

use super::Daemon;
use super::events::What;
use super::mounts::{LET_GO, RESUME_PAUSE, blocking, on_thread};
use super::protocol::{MountCall, Opening, Wanted};
use crate::fuse::{self, Left};

/// A mount to be taken over.
pub(super) struct Orphan {
    left: Left,
    call: MountCall,
    opening: Opening,
}

/// Becomes the daemon of the keeper's mounts. What cannot be read is cut off; what another version wrote stays with the keeper.
///
/// # Errors
/// Those of the keeper; Invalid where another version of this program must take the mounts over.
pub(super) fn claim(keeper: &Client) -> Result<Vec<Orphan>> {
    let said = |e: std::io::Error| Error::io("keeper", &e);
    keeper.claim().map_err(said)?;
    let (mut orphans, mut after) = (Vec::new(), 0);
    while let Some(held) = keeper.take(after).map_err(said)? {
        after = held.connection;
        match Left::read(held).and_then(orphan) {
            Ok(orphan) => orphans.push(orphan),
            Err(e) if e.kind() == ErrorKind::Invalid => return Err(e),
            Err(e) => lost(keeper, after, &e),
        }
    }
    Ok(orphans)
}

fn orphan(left: Left) -> Result<Orphan> {
    let corrupt = |what: String| Error::corrupt(what).at(format!("FUSE connection {}", left.connection));
    let call: MountCall =
        serde_json::from_value(left.call.clone()).map_err(|e| corrupt(format!("the call that made it cannot be read: {e}")))?;
    match call.what.clone() {
        Wanted::Workspace(opening) => Ok(Orphan { left, call, opening }),
        Wanted::ReadOnly(_) => Err(corrupt("a read-only mount is never kept".into())),
    }
}

/// Nobody can serve it any more.
fn lost(keeper: &Client, connection: u32, why: &Error) {
    tracing::error!(connection, error = %why, "a mount is lost: its users get errors, and it must be mounted again");
    if let Err(e) = keeper.abort(connection) {
        tracing::warn!(connection, error = %e, "the keeper did not cut it off");
    }
}

impl Daemon {
    /// Takes the mounts over in the background; until then they count as being made.
    pub(super) fn adopt(self: &Arc<Self>, orphans: Vec<Orphan>) -> Result<()> {
        for orphan in orphans {
            self.announce(&orphan.call)?;
            let daemon = self.clone();
            tokio::spawn(async move {
                let at = orphan.call.mountpoint.clone();
                let (connection, store) = (orphan.left.connection, orphan.call.store.clone());
                let ended = daemon.take_over(orphan).await;
                daemon.arrived(&at);
                if let Err(e) = ended
                    && !daemon.is_closing()
                    && let Some(keeper) = &daemon.keeper
                {
                    lost(keeper, connection, &e);
                    // What this node had alone becomes a workspace of its own, as with other openings that are left.
                    if e.kind() == ErrorKind::Conflict {
                        daemon.recover_taken(&store).await;
                    }
                }
            });
        }
        Ok(())
    }

    async fn take_over(self: &Arc<Self>, orphan: Orphan) -> Result<()> {
        let Orphan { left, call, opening } = orphan;
        let opening = Opening { origin: None, quota: None, take_over: false, domain: None, existing: true, ..opening };
        let workspace = loop {
            let request = Self::attach_request(&call.store, &opening, Arc::new(AtomicBool::new(false)))?;
            let engine = self.engine.clone();
            match on_thread(move || async move { engine.attach(request).await }).await {
                Ok((workspace, _)) => break workspace,
                // A store that is away ends no mount: its users wait.
                Err(e) if e.kind() == ErrorKind::Unavailable && !self.is_closing() => tokio::time::sleep(RESUME_PAUSE).await,
                Err(e) => return Err(e),
            }
        };
        let options = self.mount_options(&workspace, &call)?;
        let ws = workspace.clone();
        match blocking(move || fuse::take_over(ws, left, options)).await {
            Ok(mount) => {
                tracing::info!(workspace = %workspace.name(), mountpoint = %call.mountpoint.display(), "a mount of the daemon before is taken over");
                self.tell(What::Attached, workspace.name(), &call.mountpoint, "");
                self.live(call.mountpoint, mount, workspace, call.store);
                Ok(())
            }
            Err(e) => {
                if let Err(left) = self.let_go(&workspace, false, LET_GO).await {
                    tracing::warn!(workspace = %workspace.name(), error = %left, "a workspace that could not be taken over stays attached");
                }
                Err(e)
            }
        }
    }

    /// What a mount is served with.
    pub(super) fn mount_options(&self, workspace: &hiloop_engine::workspace::Workspace, call: &MountCall) -> Result<fuse::MountOptions> {
        // A read-only mount shows a tree that may have another name by then: it ends with its daemon.
        let keep = match (&self.keeper, &call.what) {
            (Some(keeper), Wanted::Workspace(_)) => {
                let call = serde_json::to_value(call).map_err(|e| Error::internal(format!("a call cannot be encoded: {e}")))?;
                Some(fuse::Keep { keeper: keeper.clone(), call })
            }
            _ => None,
        };
        Ok(fuse::MountOptions {
            mountpoint: call.mountpoint.clone(),
            read_only: workspace.is_read_only(),
            allow_other: nix::unistd::geteuid().is_root(),
            nosuid: call.nosuid,
            profile: fuse::Profile::Standard,
            env: self.env.clone(),
            workers: self.workers.clone(),
            spinners: self.spinners.clone(),
            keep,
        })
    }

    /// At the end of a daemon whose mounts go on: requests wait from now on, what was accepted is published as far as the time goes.
    pub(super) async fn hand_over(&self, grace: std::time::Duration) {
        let kept: Vec<_> = self.mounts.lock().all().into_iter().filter(|(m, _)| m.is_kept()).collect();
        for (mount, _) in kept.clone() {
            let stop = move || {
                mount.stop(LET_FINISH);
                Ok(())
            };
            if let Err(e) = blocking(stop).await {
                tracing::warn!(error = %e, "a mount was not stopped");
            }
        }
        let flushes = kept.iter().map(|(_, w)| async move {
            if !matches!(tokio::time::timeout(grace, w.flush()).await, Ok(Ok(_))) {
                let left = w.status().backlog_bytes;
                tracing::warn!(workspace = %w.name(), left_bytes = left, "ends with writes that are only on this node");
            }
        });
        futures::future::join_all(flushes).await;
    }
}

/// How long requests in hand may take to be answered before the end; what waits longer comes again to the successor.
const LET_FINISH: std::time::Duration = std::time::Duration::from_secs(1);

/// Connects to the keeper.
pub(super) fn keeper(path: &std::path::Path) -> Result<Arc<Client>> {
    let client = Client::connect(path).at(path.display());
    client.map(Arc::new).map_err(|e| e.hint("start it first: hiloop-keeper --socket PATH"))
}

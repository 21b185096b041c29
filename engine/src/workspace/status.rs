//! What an operator sees of a workspace.

use std::fmt;

use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, Name, Result, Session, WriterEpoch};
use serde::Serialize;

use super::{Durability, ReadAhead, Workspace};

/// Whether a workspace may be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "standing")]
pub enum Standing {
    /// It may.
    Live,
    /// Another session owns the head.
    Fenced {
        /// Who, as far as the head says.
        by: String,
    },
    /// The node's journal failed.
    ReadOnly {
        /// Why.
        reason: String,
    },
    /// The head is missing or unreadable: accepted to the bound, not published (`protocols.md` 3.1).
    HeadLost {
        /// Why.
        reason: String,
    },
    /// It was released.
    Closed,
}

impl Standing {
    /// # Errors
    /// Why the workspace may not be written.
    pub fn check(&self, name: &Name) -> Result<()> {
        match self {
            Self::Live | Self::HeadLost { .. } => Ok(()),
            Self::Fenced { by } => Err(Error::fenced(format!("workspace {name} was taken over by {by}"))
                .hint("`recover` turns what was not replicated into a fork")),
            Self::ReadOnly { reason } => Err(Error::closed(format!("workspace {name} is read-only: {reason}"))),
            Self::Closed => Err(Error::closed(format!("workspace {name} is closed"))),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Fenced { by } => write!(f, "fenced by {by}"),
            Self::ReadOnly { reason } => write!(f, "read-only: {reason}"),
            Self::HeadLost { reason } => write!(f, "head lost: {reason}"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// The durability ladder's four cursors and what is behind.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceStatus {
    /// The workspace.
    pub name: Name,
    /// Whether it may be written.
    #[serde(flatten)]
    pub standing: Standing,
    /// Epoch of this opening.
    pub epoch: WriterEpoch,
    /// Session of this opening.
    pub session: Session,
    /// What `fsync` waits for.
    pub durability: Durability,
    /// The published tree.
    pub root: Option<RootRef>,
    /// Last accepted record.
    pub accepted: u64,
    /// Last record on the node's disk.
    pub journaled: u64,
    /// Last record whose data is in the store.
    pub shipped: u64,
    /// Last record in a confirmed head.
    pub published: u64,
    /// Unpublished bytes.
    pub backlog_bytes: u64,
    /// Unpublished operations.
    pub backlog_operations: u64,
    /// Seconds since the oldest unpublished change was sealed or made; 0 without one.
    pub lag_seconds: f64,
    /// Bytes at which writers wait.
    pub backlog_limit: u64,
    /// Measured store throughput, bytes per second; 0 until measured.
    pub throughput: u64,
    /// The last error of the replicator, while it stands.
    pub replication_error: Option<String>,
    /// Inodes.
    pub inodes: u64,
    /// Bytes that are not holes.
    pub bytes: u64,
    /// Quota, bytes.
    pub quota: Option<u64>,
    /// Inode numbers handed out so far end below this.
    pub next_ino: u64,
    /// What was fetched of small files before they were asked for.
    pub read_ahead: ReadAhead,
}

impl Workspace {
    /// The status now.
    pub fn status(&self) -> WorkspaceStatus {
        let shared = &self.0;
        let (root, accepted, totals, next_ino) = {
            let s = shared.state.read();
            (s.root, s.accepted, s.totals, s.next_ino)
        };
        let r = shared.replicator.report(shared.node.env.monotonic());
        let (bytes, operations) = shared.admission.backlog();
        WorkspaceStatus {
            name: shared.name.clone(),
            standing: shared.standing.read().clone(),
            epoch: shared.epoch,
            session: shared.session,
            durability: shared.durability,
            root,
            accepted: accepted.0,
            journaled: shared.node.journal.flushed().min(accepted).0,
            shipped: r.shipped.0,
            published: r.published.0,
            backlog_bytes: bytes,
            backlog_operations: operations,
            lag_seconds: r.lag.as_secs_f64(),
            backlog_limit: shared.admission.hard(),
            throughput: shared.admission.throughput(),
            replication_error: r.error,
            inodes: totals.inodes,
            bytes: totals.bytes,
            quota: shared.quota,
            next_ino,
            read_ahead: shared.neighbours.lock().counts(),
        }
    }
}

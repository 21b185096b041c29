//! Heads, snapshots, and what is known about who wrote them.

use hiloop_manifest::tree::RootRef;
use hiloop_types::{Claim, Name, Nonce, ROOT_INO, Session, WriterEpoch};
use serde::{Deserialize, Serialize};

use super::BaseRoot;
use crate::front::Front;

/// The one mutable pointer of a workspace (`protocols.md` 3.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Document format.
    pub format: u32,
    /// The workspace.
    pub name: Name,
    /// Epoch of the last opening for write; never restarts, not even over a deletion.
    pub epoch: WriterEpoch,
    /// Session of the last opening for write; absent where nobody opened it since it was created or forked.
    pub session: Option<Session>,
    /// Node that holds the session, for messages only.
    pub node: Option<Name>,
    /// The published tree; absent where nothing was published yet (an empty workspace).
    pub root: Option<RootRef>,
    /// What of the tree an opening reads first.
    #[serde(default, skip_serializing_if = "Front::is_empty")]
    pub front: Front,
    /// Sequence of the root within (epoch, session).
    pub sequence: u64,
    /// Where the workspace came from.
    pub parent: Option<Parent>,
    /// Base roots that the tree may reference (`protocols.md` 4.2, 7.1).
    pub bases: Vec<BaseRoot>,
    /// Inode numbers below this may be in use; a successor starts here (`protocols.md` 3.7).
    pub inode_limit: u64,
    /// Bytes that are not holes the workspace may hold; absent: no limit.
    pub quota: Option<u64>,
    /// Dedup domain.
    pub domain: Name,
    /// Kubernetes claim that the workspace is bound to, where there is one. It never changes.
    pub claim: Option<Claim>,
    /// What the claim asked for when it was bound: a repeated request must ask for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Claimed>,
    /// Identity of the last conditional write (`protocols.md` 3.2).
    pub nonce: Nonce,
    /// Set by a release; absent while an opening owns the head.
    pub release: Option<Release>,
    /// Set by a take-over until its first publish (`protocols.md` 3.4).
    pub cut_off: Option<CutOff>,
    /// True where the workspace is deleted: the object stays, so that epochs never restart and lineage outlives deletion.
    pub tombstone: bool,
    /// Seconds since 1970 at creation.
    pub created: u64,
    /// What the last opening knew about the window before it.
    pub lost_window: Option<LostWindow>,
}

/// The quota after a request that names one, where 0 takes it away, or none.
pub(crate) fn quota_of(asked: Option<u64>, kept: Option<u64>) -> Option<u64> {
    asked.map_or(kept, |bytes| (bytes > 0).then_some(bytes))
}

impl Head {
    /// The head of a new workspace without content.
    pub fn empty(catalog: &super::Catalog, name: Name, epoch: WriterEpoch, domain: Name, quota: Option<u64>) -> Self {
        Self {
            format: super::FORMAT,
            name,
            epoch,
            session: None,
            node: None,
            root: None,
            front: Front::default(),
            sequence: 0,
            parent: None,
            bases: Vec::new(),
            inode_limit: ROOT_INO.0 + 1,
            quota,
            domain,
            claim: None,
            claimed: None,
            nonce: catalog.nonce(),
            release: None,
            cut_off: None,
            tombstone: false,
            created: catalog.now(),
            lost_window: None,
        }
    }
    /// True while an opening holds the head.
    pub fn is_open(&self) -> bool {
        self.session.is_some() && self.release.is_none()
    }
}

/// What a claim asked for when a workspace was made for it or bound to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// Bytes; absent: any.
    pub size: Option<u64>,
    /// Base; what was adopted may come from elsewhere.
    pub base: Option<Name>,
}

/// Where a workspace or snapshot came from: its parent only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// What the parent is.
    pub kind: ParentKind,
    /// Its name.
    pub name: Name,
    /// Its epoch at that time (workspaces, and the workspace of a snapshot).
    pub epoch: WriterEpoch,
    /// Its sequence at that time.
    pub sequence: u64,
}

/// What a parent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParentKind {
    /// A base.
    Base,
    /// A snapshot.
    Snapshot,
    /// A workspace.
    Workspace,
    /// The unshipped tail of a fenced opening (`recover`).
    Tail,
}

/// How an opening ended (`protocols.md` 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Highest sequence that was accepted and is not in the root; 0 for a clean release.
    pub tail: u64,
}

/// The published state that a take-over cut off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CutOff {
    /// Document format.
    pub format: u32,
    /// The workspace.
    pub name: Name,
    /// Epoch that was cut off.
    pub epoch: WriterEpoch,
    /// Session that was cut off.
    pub session: Option<Session>,
    /// Its last published root.
    pub root: Option<RootRef>,
    /// Its last published sequence.
    pub sequence: u64,
    /// Base roots of that head.
    pub bases: Vec<BaseRoot>,
    /// Seconds since 1970.
    pub at: u64,
}

/// What an opening knows about writes that were accepted elsewhere and never published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum LostWindow {
    /// The previous opening was released with nothing left.
    None,
    /// Nobody knows.
    Possible,
    /// A heartbeat or release showed more than was published.
    Known {
        /// Last accepted sequence that was seen.
        accepted: u64,
        /// Published sequence.
        published: u64,
    },
}

/// A pinned root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotDoc {
    /// Document format.
    pub format: u32,
    /// The snapshot.
    pub name: Name,
    /// The workspace it was cut from.
    pub workspace: Name,
    /// Epoch that cut it.
    pub epoch: WriterEpoch,
    /// Session that cut it.
    pub session: Session,
    /// Sequence of the cut.
    pub sequence: u64,
    /// The tree.
    pub root: RootRef,
    /// As in the head.
    #[serde(default, skip_serializing_if = "Front::is_empty")]
    pub front: Front,
    /// Base roots that the tree may reference.
    pub bases: Vec<BaseRoot>,
    /// As in the head.
    pub inode_limit: u64,
    /// As in the head; inherited by forks.
    pub quota: Option<u64>,
    /// Dedup domain.
    pub domain: Name,
    /// Parent of the workspace at the time of the cut.
    pub parent: Option<Parent>,
    /// Identity of the write.
    pub nonce: Nonce,
    /// Seconds since 1970.
    pub created: u64,
    /// When it was deleted, seconds since 1970; the document is then a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<u64>,
}

/// One event in the life of a workspace; never deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineageEvent {
    /// Document format.
    pub format: u32,
    /// The workspace.
    pub workspace: Name,
    /// Epoch in which it happened.
    pub epoch: WriterEpoch,
    /// What happened.
    pub event: LineageKind,
    /// Parent at that time.
    pub parent: Option<Parent>,
    /// Seconds since 1970.
    pub at: u64,
}

/// What happened to a workspace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LineageKind {
    /// It was opened for write.
    Opened {
        /// What is known about the window before.
        lost_window: LostWindow,
        /// Node that opened it.
        node: Name,
    },
    /// A snapshot was cut from it.
    Snapshot {
        /// The snapshot.
        name: Name,
        /// Sequence of the cut.
        sequence: u64,
    },
    /// It was deleted.
    Deleted,
}

/// What a node says about itself (`protocols.md` 3.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Document format.
    pub format: u32,
    /// The node.
    pub node: Name,
    /// Random per daemon start.
    pub instance: Nonce,
    /// Counts heartbeats of this instance: what a watcher compares.
    pub beat: u64,
    /// Heads that the node owns.
    pub heads: Vec<OwnedHead>,
}

/// A head that a node owns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnedHead {
    /// The workspace.
    pub name: Name,
    /// Epoch of the opening.
    pub epoch: WriterEpoch,
    /// Session of the opening.
    pub session: Session,
    /// Last accepted sequence.
    pub accepted: u64,
    /// Last published sequence.
    pub published: u64,
    /// Accepted bytes that are not published, for messages to newcomers.
    #[serde(default)]
    pub backlog_bytes: u64,
}

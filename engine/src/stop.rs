//! Why an operation could not be answered from memory.

use hiloop_manifest::schema::{ChunkRef, StagedAt};
use hiloop_manifest::tree::{Access, NodeRef};
use hiloop_types::Error;

/// Something that is not in memory. Hand it to [`crate::workspace::Workspace::fetch`], then run the operation again.
#[derive(Clone, Debug)]
pub enum Miss {
    /// A manifest node.
    Node(NodeRef),
    /// Several, for one round: those without which the operation cannot go on, and those that it will probably need next, which are
    /// fetched beside and not waited for.
    Nodes {
        /// Waited for; the first that cannot be had fails the operation.
        needed: Vec<NodeRef>,
        /// Not waited for.
        ahead: Vec<NodeRef>,
    },
    /// Nodes with what a listing shows, all waited for. What is lost for good fails nobody here: the listing shows the rest.
    Listing(Vec<NodeRef>),
    /// Chunks of file data, as [`Miss::Nodes`].
    Chunks {
        /// Waited for.
        needed: Vec<ChunkRef>,
        /// Not waited for.
        ahead: Vec<ChunkRef>,
    },
    /// Staged data whose pages left the page cache.
    Staged(StagedAt),
    /// Room for this many bytes of staged data: writers are ahead of the node's disk. Waits without a deadline.
    Room(u64),
}

/// Why an operation stopped before it changed anything.
#[derive(Clone, Debug)]
pub enum Stop {
    /// Something is not in memory.
    Miss(Miss),
    /// It failed.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

impl From<Access> for Stop {
    fn from(a: Access) -> Self {
        match a {
            Access::Miss(n) => Self::Miss(Miss::Node(n)),
            Access::Error(e) => Self::Error(e),
        }
    }
}

//! Why an operation could not be answered from memory.

use hiloop_manifest::schema::{ChunkRef, StagedAt};
use hiloop_manifest::tree::{Access, NodeRef};
use hiloop_types::Error;

/// Something that is not in memory. Hand it to [`crate::workspace::Workspace::fetch`], then run the operation again.
#[derive(Clone, Debug)]
pub enum Miss {
    /// A manifest node.
    Node(NodeRef),
    /// Chunks of file data.
    Chunks(Vec<ChunkRef>),
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

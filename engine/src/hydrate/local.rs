//! What is on this node already, without fetching anything.

use std::sync::Arc;

use hiloop_manifest::tree::{Node, NodeRef};
use hiloop_types::ChunkId;

use super::{Hydrator, node_key};

impl Hydrator {
    /// A node that is in memory or in the disk cache. Reads the disk, and keeps in memory what was there before.
    pub(crate) fn node_here(&self, node: &NodeRef) -> Option<Arc<Node>> {
        self.0.memory.nodes.get(node).or_else(|| {
            let hit = self.0.disk.as_ref()?.lookup(&node_key(node))?;
            Node::from_frame(node, &hit.frame.stored).ok().map(Arc::new)
        })
    }

    /// Whether a chunk is in memory or in the disk cache.
    pub(crate) fn chunk_here(&self, id: &ChunkId) -> bool {
        self.0.memory.chunks.contains_key(id) || self.0.disk.as_ref().is_some_and(|d| d.contains(&(*id).into()))
    }
}

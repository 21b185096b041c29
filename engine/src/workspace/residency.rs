//! How much of a workspace's published tree is on this node.
//!
//! Counted in passes over the manifest, [`limits::RESIDENCY_STEP`] nodes a call, so that asking costs the same whatever the tree's size: a
//! small tree is counted whole by each call, a large one over several, and until a pass ends the one before it is told. Nothing is
//! fetched for it: what lies below a manifest node that is not here is not counted, and surely was not read lately.

use hiloop_manifest::tree::NodeRef;
use hiloop_types::limits;
use serde::Serialize;

use super::Workspace;
use crate::traverse::chunks_of;

/// What of a published tree is in the node's memory or disk cache. Data that are not published yet are local besides (the backlog).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// References to chunks in the manifest nodes that are here; a chunk counts for each file that holds it.
    pub chunks: u64,
    /// Of these, those whose chunk is here.
    pub chunks_local: u64,
    /// Stored (compressed) bytes of `chunks`.
    pub bytes: u64,
    /// Stored bytes of `chunks_local`.
    pub bytes_local: u64,
    /// Manifest nodes that are here.
    pub nodes: u64,
    /// References to manifest nodes that are not.
    pub nodes_absent: u64,
    /// False before the first pass over the tree has ended: the figures then are of its first part.
    pub complete: bool,
}

/// A pass that goes on with each call.
#[derive(Default)]
pub(crate) struct Census {
    /// Still to be visited, with their level.
    open: Vec<(NodeRef, u8)>,
    sum: Residency,
    last: Option<Residency>,
}

impl Workspace {
    /// What of the published tree is on this node. Reads at most [`limits::RESIDENCY_STEP`] manifest nodes, from the disk cache where
    /// they are not in memory: not for a thread that may not wait for the disk.
    pub fn residency(&self) -> Residency {
        let Some(root) = self.0.state.read().root else { return Residency { complete: true, ..Residency::default() } };
        let mut census = self.0.census.lock();
        if census.open.is_empty() {
            census.open.push((root.node, root.level));
            census.sum = Residency::default();
        }
        for _ in 0..limits::RESIDENCY_STEP {
            let Some((node, level)) = census.open.pop() else { break };
            self.visit(&mut census, &node, level);
        }
        if census.open.is_empty() {
            census.sum.complete = true;
            census.last = Some(census.sum);
        }
        census.last.unwrap_or(census.sum)
    }

    fn visit(&self, census: &mut Census, node: &NodeRef, level: u8) {
        let hydrator = &self.0.hydrator;
        let Some(here) = hydrator.node_here(node).filter(|n| n.level() == level) else {
            census.sum.nodes_absent += 1;
            return;
        };
        census.sum.nodes += 1;
        let sum = &mut census.sum;
        // A node that cannot be read was reported where it was needed; here it only counts nothing.
        let _counted = chunks_of(&here, |_, chunk| {
            let (bytes, local) = (u64::from(chunk.at.stored_len), hydrator.chunk_here(&chunk.id));
            sum.chunks += 1;
            sum.bytes += bytes;
            sum.chunks_local += u64::from(local);
            sum.bytes_local += if local { bytes } else { 0 };
        });
        if level > 0 {
            census.open.extend((0..here.len()).rev().filter_map(|i| here.child(i).ok()).map(|c| (c.node, level - 1)));
        }
    }
}

//! Going through the nodes of a tree in key order, fetching some ahead.

use std::sync::Arc;

use futures::future::join_all;
use hiloop_manifest::schema::{Block, ChunkRef, KeyKind, Source};
use hiloop_manifest::tree::{Node, NodeRef, NodeSource, RootRef};
use hiloop_types::{Error, Ino, Result};

use crate::hydrate::Hydrator;

/// Nodes fetched at once.
const AHEAD: usize = 16;

/// Visits the nodes of a tree, parents before children, leaves in key order. Memory: the references of one inner node a level.
pub(crate) struct Traverse {
    ahead: Vec<(NodeRef, u8)>,
}

impl Traverse {
    /// Starts at a root.
    pub(crate) fn new(root: &RootRef) -> Self {
        Self { ahead: vec![(root.node, root.level)] }
    }

    /// The next node for which `wanted` answers true; what lies below an unwanted one is left out. A node that cannot be had is
    /// answered with its error and what lies below it is left out: the caller decides whether to go on. `None` at the end.
    pub(crate) async fn next(
        &mut self,
        hydrator: &Hydrator,
        mut wanted: impl FnMut(&NodeRef) -> bool,
    ) -> Option<(NodeRef, Result<Arc<Node>>)> {
        loop {
            let (node, level) = self.ahead.pop()?;
            if !wanted(&node) {
                continue;
            }
            if hydrator.node(&node).is_err() {
                let more = self.ahead.iter().rev().take(AHEAD - 1).map(|(n, _)| n);
                // What fails here fails again, and is told, when its turn comes.
                join_all(std::iter::once(&node).chain(more).map(|n| hydrator.node_now(n))).await;
            }
            let got = match hydrator.node_now(&node).await {
                Ok(n) => self.enter(&node, level, &n).map(|()| n),
                Err(e) => Err(e),
            };
            return Some((node, got));
        }
    }

    fn enter(&mut self, at: &NodeRef, level: u8, node: &Node) -> Result<()> {
        if node.level() != level {
            return Err(Error::corrupt(format!("manifest node of level {} where {level} was expected", node.level()))
                .at(at.id)
                .at(at.loc.pack));
        }
        if level > 0 {
            let children = (0..node.len()).rev().map(|i| node.child(i).map(|c| (c.node, level - 1))).collect::<Result<Vec<_>>>()?;
            self.ahead.extend(children);
        }
        Ok(())
    }
}

/// Hands every chunk reference in a leaf to `each`, with the inode of its file.
pub(crate) fn chunks_of(leaf: &Node, mut each: impl FnMut(Ino, &ChunkRef)) -> Result<()> {
    if leaf.level() > 0 {
        return Ok(());
    }
    for i in 0..leaf.len() {
        if let KeyKind::Block(ino, _) = KeyKind::parse(leaf.key(i))? {
            for piece in Block::decode(leaf.value(i), &[])?.pieces() {
                if let Source::Chunk { chunk, .. } = &piece.source {
                    each(ino, chunk);
                }
            }
        }
    }
    Ok(())
}

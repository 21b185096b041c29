//! Every node of some trees once, for marking (`protocols.md` 7).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hiloop_types::PackId;

use super::{Access, Node, NodeRef, NodeSource, RootRef, mismatch};

/// Visits each *place* of a node once, over all the trees it is given.
///
/// By place, not by identity: two copies of one node may name different packs for their children, and marking needs both. What is
/// remembered is eight bytes a place and 40 a pack.
#[derive(Debug, Default)]
pub struct Walk {
    packs: HashMap<PackId, u32>,
    seen: HashSet<(u32, u32)>,
    ahead: Vec<(NodeRef, u8)>,
}

impl Walk {
    /// A walk that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tree. What was visited before is not visited again.
    pub fn add(&mut self, root: &RootRef) {
        self.ahead.push((root.node, root.level));
    }

    /// The next node, parents before children; `None` when all trees are done.
    ///
    /// After [`Access::Miss`] fetch the node and call again. After [`Access::Error`] the walk must not go on: a subtree is unknown.
    pub fn next<S: NodeSource + ?Sized>(&mut self, source: &S) -> Option<Result<(NodeRef, Arc<Node>), Access>> {
        while let Some((place, level)) = self.ahead.last().copied() {
            let fresh = self.packs.len() as u32;
            let pack = *self.packs.entry(place.loc.pack).or_insert(fresh);
            if self.seen.contains(&(pack, place.loc.offset)) {
                self.ahead.pop();
                continue;
            }
            let visited = self.visit(source, place, level);
            if visited.is_ok() {
                self.seen.insert((pack, place.loc.offset));
            }
            return Some(visited);
        }
        None
    }

    fn visit<S: NodeSource + ?Sized>(&mut self, source: &S, place: NodeRef, level: u8) -> Result<(NodeRef, Arc<Node>), Access> {
        let node = source.node(&place)?;
        if node.level() != level {
            return Err(mismatch(&place));
        }
        let children = if level == 0 { 0 } else { node.len() };
        let below: Vec<_> = (0..children).rev().map(|i| node.child(i).map(|c| (c.node, level - 1))).collect::<Result<_, _>>()?;
        self.ahead.pop();
        self.ahead.extend(below);
        Ok((place, node))
    }
}

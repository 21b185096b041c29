//! A position at a node of one level, with the way to it from the root.

use std::sync::Arc;

use super::{Access, Node, NodeRef, NodeSource, RootRef, load_child, load_root};

#[derive(Clone, Debug)]
pub(super) struct Cursor {
    /// Inner nodes from the root down, each with the child that was taken.
    way: Vec<(Arc<Node>, usize)>,
    node: Arc<Node>,
    place: NodeRef,
}

impl Cursor {
    /// Goes to the node of `level` that `key` belongs to: the last one whose first key is not above it, or the first of all.
    pub(super) fn seek<S: NodeSource + ?Sized>(source: &S, root: &RootRef, level: u8, key: &[u8]) -> Result<Self, Access> {
        let start = Self { way: Vec::new(), node: load_root(source, root)?, place: root.node };
        start.descend(source, level, |node| node.child_for(key))
    }

    fn descend<S: NodeSource + ?Sized>(mut self, source: &S, level: u8, choose: impl Fn(&Node) -> usize) -> Result<Self, Access> {
        while self.node.level() > level {
            let i = choose(&self.node);
            let child = load_child(source, &self.node, i)?;
            self.place = self.node.child(i)?.node;
            self.way.push((std::mem::replace(&mut self.node, child), i));
        }
        Ok(self)
    }

    /// The node after this one on the same level.
    pub(super) fn next<S: NodeSource + ?Sized>(&self, source: &S) -> Result<Option<Self>, Access> {
        let Some(turn) = self.turn() else { return Ok(None) };
        let (parent, i) = &self.way[turn];
        let node = load_child(source, parent, i + 1)?;
        let mut way = self.way[..=turn].to_vec();
        way[turn].1 += 1;
        let place = parent.child(i + 1)?.node;
        Self { way, node, place }.descend(source, self.node.level(), |_| 0).map(Some)
    }

    /// First key of the node after this one; the keys that belong to this node are below it.
    pub(super) fn end(&self) -> Option<&[u8]> {
        let (parent, i) = &self.way[self.turn()?];
        Some(parent.key(i + 1))
    }

    /// The lowest node of the way that has a child after the one taken.
    fn turn(&self) -> Option<usize> {
        self.way.iter().rposition(|(node, i)| i + 1 < node.len())
    }

    pub(super) const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(super) const fn place(&self) -> &NodeRef {
        &self.place
    }
}

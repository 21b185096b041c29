//! A store of nodes in memory for tests: places them in made-up packs, and can withhold nodes and count reads.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hiloop_types::{NodeId, Owner, PackId, Result, Session, WriterEpoch};

use super::{Access, Node, NodeRef, NodeSink, NodeSource};
use crate::{Codec, FrameLoc};

#[derive(Default)]
pub(super) struct Memory {
    pub(super) nodes: HashMap<NodeRef, Arc<Node>>,
    pub(super) puts: u32,
    /// Frames in a pack; 0 for all in one.
    pub(super) per_pack: u32,
    pub(super) reads: Cell<usize>,
    /// When set, only these nodes are in memory.
    pub(super) resident: RefCell<Option<HashSet<NodeRef>>>,
}

impl Memory {
    /// Makes every node be missed once.
    pub(super) fn forget(&self) {
        *self.resident.borrow_mut() = Some(HashSet::new());
    }

    pub(super) fn fetch(&self, node: &NodeRef) {
        assert!(self.nodes.contains_key(node), "a miss names a node that was never put");
        if let Some(resident) = &mut *self.resident.borrow_mut() {
            assert!(resident.insert(*node), "a node was missed twice");
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

impl NodeSource for Memory {
    fn node(&self, node: &NodeRef) -> Result<Arc<Node>, Access> {
        self.reads.set(self.reads.get() + 1);
        if self.resident.borrow().as_ref().is_some_and(|r| !r.contains(node)) {
            return Err(Access::Miss(*node));
        }
        self.nodes.get(node).cloned().ok_or(Access::Miss(*node))
    }
}

impl NodeSink for Memory {
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc> {
        // What is kept is what a reader would decode, checks included.
        let decoded = Node::decode(id, node.bytes().clone())?;
        assert_eq!((decoded.records(), decoded.len(), decoded.level()), (node.records(), node.len(), node.level()));
        let sequence = u64::from(self.puts.checked_div(self.per_pack).unwrap_or(0));
        let pack = PackId { owner: Owner(1), epoch: WriterEpoch(1), session: Session(1), sequence, attempt: 0 };
        let len = node.bytes().len() as u32;
        let loc = FrameLoc { pack, offset: self.puts, stored_len: len, plain_len: len, codec: Codec::Raw };
        self.puts += 1;
        self.nodes.insert(NodeRef { id: *id, loc }, Arc::new(decoded));
        Ok(loc)
    }
}

/// A sink beside the store that the apply reads from, as the engine has it.
pub(super) struct Aside(pub(super) Memory);

impl Aside {
    /// Continues the numbering of `store`, so that places stay unique.
    pub(super) fn of(store: &Memory) -> Self {
        Self(Memory { puts: store.puts, per_pack: store.per_pack, ..Memory::default() })
    }

    pub(super) fn merge_into(self, store: &mut Memory) {
        store.puts = self.0.puts;
        store.nodes.extend(self.0.nodes);
    }
}

impl NodeSink for Aside {
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc> {
        self.0.put(id, node)
    }
}

//! Collects the entries of one node and encodes it.

use std::sync::Arc;

use bytes::Bytes;
use hiloop_types::NodeId;

use super::NodeRef;
use super::node::{HEADER_LEN, MAGIC, Node, Slot, child_value, put_places};
use super::shape::Shape;
use crate::FrameLoc;
use crate::wire::put_varint;

/// A node that is being filled. Reused from one node to the next.
#[derive(Debug)]
pub(super) struct NodeWriter {
    shape: Shape,
    level: u8,
    lengths: Vec<u8>,
    data: Vec<u8>,
    slots: Vec<Slot>,
    places: Vec<FrameLoc>,
    records: u64,
}

/// A child as it stands in its parent.
#[derive(Clone, Debug)]
pub(super) struct OwnedChild {
    pub(super) key: Bytes,
    pub(super) node: NodeRef,
    pub(super) records: u64,
}

impl NodeWriter {
    pub(super) const fn new(shape: Shape, level: u8) -> Self {
        Self { shape, level, lengths: Vec::new(), data: Vec::new(), slots: Vec::new(), places: Vec::new(), records: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Appends a record to a leaf; true when the leaf ends with it.
    pub(super) fn push_record(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.records += 1;
        self.push(key, value)
    }

    /// Appends a child to an inner node; true when the node ends with it.
    pub(super) fn push_child(&mut self, key: &[u8], node: &NodeRef, records: u64) -> bool {
        self.records += records;
        self.places.push(node.loc);
        self.push(key, &child_value(&node.id, records))
    }

    fn push(&mut self, key: &[u8], value: &[u8]) -> bool {
        let before = self.lengths.len() + self.data.len();
        put_varint(&mut self.lengths, key.len() as u32);
        put_varint(&mut self.lengths, value.len() as u32);
        let at = self.data.len();
        self.slots.push(Slot { key: at as u32, value: (at + key.len()) as u32 });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        let size = self.lengths.len() + self.data.len();
        self.shape.ends(self.level, size, self.slots.len(), key, size - before)
    }

    /// The only child of an inner node that has just one.
    pub(super) fn only_child(&self) -> Option<OwnedChild> {
        let ([place], [slot]) = (&*self.places, &*self.slots) else { return None };
        let (key, value) = self.data.split_at(slot.value as usize);
        let mut id = NodeId([0; 32]);
        id.0.copy_from_slice(&value[..32]);
        Some(OwnedChild { key: Bytes::copy_from_slice(key), node: NodeRef { id, loc: *place }, records: self.records })
    }

    /// Encodes what was pushed and starts over.
    pub(super) fn finish(&mut self) -> (NodeId, Arc<Node>) {
        let start = HEADER_LEN + self.lengths.len();
        let data_end = start + self.data.len();
        let mut out = Vec::with_capacity(data_end);
        out.extend_from_slice(&MAGIC);
        out.push(self.level);
        out.extend_from_slice(&(self.slots.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.lengths.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.data.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.lengths);
        out.extend_from_slice(&self.data);
        if self.level > 0 {
            put_places(&mut out, &self.places);
        }
        let move_by = |s: &Slot| Slot { key: s.key + start as u32, value: s.value + start as u32 };
        let slots = self.slots.iter().map(move_by).collect();
        let node = Node::from_parts(Bytes::from(out), self.level, self.records, slots, data_end as u32);
        self.lengths.clear();
        self.data.clear();
        self.slots.clear();
        self.places.clear();
        self.records = 0;
        (node.id(), Arc::new(node))
    }
}

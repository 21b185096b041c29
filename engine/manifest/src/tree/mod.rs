//! The manifest tree: a content-addressed ordered map from byte keys to byte values (a prolly tree).
//!
//! # Shape
//!
//! Leaves (level 0) hold the records in key order; a node of level *n* + 1 holds, for each of its children of level *n*, the child's
//! first key, identity, number of records and place. Where a node ends is decided by the entries in it alone: after an entry whose
//! key hash falls below a threshold proportional to the entry's size, not before a minimum size, and always at a maximum. So the
//! shape is a function of the content: an [`Apply`] ends in the very tree that a [`Builder`] makes of the same records, equal runs of
//! records are equal nodes, and a [`Diff`] skips what is equal.
//!
//! | | least | on average | at most |
//! |---|---|---|---|
//! | leaf, plain bytes | 16 KiB | 64 KiB | 256 KiB |
//! | inner node, plain bytes without places | 256 KiB | 320 KiB | 449 KiB |
//!
//! An inner node never ends below 256 KiB, about 4,000 children: up to a million files the root's children are the leaves.
//!
//! # Identity and place
//!
//! A [`NodeId`] is BLAKE3 of the node's encoding *without* the places of its children ([`Node`] has the byte layout). So a repacked tree
//! keeps its identity. It also follows that two copies of one node in two packs may name different packs for their children: **a
//! cache of nodes keys on the whole [`NodeRef`]**, never on the identity alone. Otherwise a tree would silently take over places
//! that another workspace may reference and this one may not (`protocols.md` 4.2), and a marking run would miss them.
//!
//! # Missing nodes
//!
//! All reads are synchronous over a [`NodeSource`]. A node that is not in memory is answered as [`Access::Miss`]; the caller fetches it
//! and calls again. Iterators ([`Scan`], [`Diff`], [`Walk`]) and [`Apply`] keep their position over a miss. [`missing`] and
//! [`missing_for`] list what a range or a batch would ask for, so that it can be fetched at once; [`leaves`] says where a range lies.

mod apply;
mod build;
mod cursor;
mod diff;
mod node;
mod read;
mod shape;
#[cfg(test)]
mod testing;
mod walk;
mod writer;

use std::sync::Arc;

pub use apply::{Applied, Apply};
pub use build::Builder;
pub use diff::{Change, Diff};
use hiloop_types::{Error, NodeId, Result, ResultExt};
pub use node::{Child, Node};
pub use read::{KeyRange, Scan, floor, get, leaves, missing, missing_for};
pub use walk::Walk;

use crate::FrameLoc;

/// Longest key, bytes.
pub const KEY_MAX: usize = 1024;
/// Longest value, bytes: an extended attribute's 64 KiB and its framing.
pub const VALUE_MAX: usize = 70 * 1024;
/// Highest level of a root. Each level has at least two nodes below it, in practice thousands.
pub const LEVEL_MAX: u8 = 40;

/// A node by identity, with a hint where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NodeRef {
    /// Identity: decides.
    pub id: NodeId,
    /// Place: a hint.
    pub loc: FrameLoc,
}

/// The identity is uniform already: a part of it and the offset keep a cache's look-up cheap.
impl std::hash::Hash for NodeRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.id.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ u64::from(self.loc.offset));
    }
}

/// A whole tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct RootRef {
    /// The root node; a leaf without records for an empty tree.
    pub node: NodeRef,
    /// Its level: 0 for a leaf.
    pub level: u8,
    /// Records in the tree.
    pub records: u64,
}

/// Why a node could not be had.
#[derive(Clone, Debug)]
pub enum Access {
    /// It is not in memory: fetch it, then call again.
    Miss(NodeRef),
    /// It cannot be had.
    Error(Error),
}

impl From<Error> for Access {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Nodes in memory.
pub trait NodeSource {
    /// The node at this place, or [`Access::Miss`]. Never waits. Answers only what lies at `node.loc`: see [the module](self).
    fn node(&self, node: &NodeRef) -> Result<Arc<Node>, Access>;
}

impl<S: NodeSource + ?Sized> NodeSource for &S {
    fn node(&self, node: &NodeRef) -> Result<Arc<Node>, Access> {
        (**self).node(node)
    }
}

/// Where new nodes go.
pub trait NodeSink {
    /// Places a node, whose encoding is [`Node::bytes`]; called for children before their parents.
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc>;
}

impl<K: NodeSink + ?Sized> NodeSink for &mut K {
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc> {
        (**self).put(id, node)
    }
}

/// Takes a node from the source and checks that it is the one its parent means.
fn load<S: NodeSource + ?Sized>(source: &S, node: &NodeRef, level: u8, first: &[u8], records: u64) -> Result<Arc<Node>, Access> {
    let found = source.node(node)?;
    if found.level() != level || found.records() != records || found.is_empty() || found.key(0) != first {
        return Err(mismatch(node));
    }
    Ok(found)
}

/// Takes a root, which may be an empty leaf.
fn load_root<S: NodeSource + ?Sized>(source: &S, root: &RootRef) -> Result<Arc<Node>, Access> {
    let found = source.node(&root.node)?;
    if found.level() != root.level || found.records() != root.records || root.level > LEVEL_MAX {
        return Err(mismatch(&root.node));
    }
    Ok(found)
}

fn mismatch(node: &NodeRef) -> Access {
    let error = Error::corrupt("manifest node is not the one that its parent describes");
    Access::Error(error.at(node.id).at(node.loc.pack))
}

/// Takes the child `i` of an inner node.
fn load_child<S: NodeSource + ?Sized>(source: &S, parent: &Node, i: usize) -> Result<Arc<Node>, Access> {
    let child = parent.child(i)?;
    load(source, &child.node, parent.level() - 1, child.key, child.records)
}

/// Checks the lengths of a record that somebody wants to store.
fn check_record(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_MAX || value.len() > VALUE_MAX {
        let what = format!("record of {} key and {} value bytes is above the limits of {KEY_MAX} and {VALUE_MAX}", key.len(), value.len());
        return Err(Error::invalid(what)).at("manifest");
    }
    Ok(())
}

#[cfg(test)]
mod tests;

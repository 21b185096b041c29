//! A tree from records in key order, in bounded memory: one open node a level.

use bytes::Bytes;
use hiloop_types::{Error, Result};

use super::shape::{STORED, Shape};
use super::writer::{NodeWriter, OwnedChild};
use super::{NodeRef, NodeSink, RootRef, check_record};

/// Builds a tree from scratch.
#[derive(Debug)]
pub struct Builder<K> {
    sink: K,
    shape: Shape,
    /// The level of `open[0]`.
    base: u8,
    open: Vec<NodeWriter>,
    last: Option<Vec<u8>>,
}

impl<K: NodeSink> Builder<K> {
    /// Starts an empty tree whose nodes go to `sink`.
    pub fn new(sink: K) -> Self {
        Self::at_level(sink, STORED, 0)
    }

    /// Starts a tree whose lowest nodes, of level `base`, hold children (or records, for 0) that the caller pushes.
    pub(super) fn at_level(sink: K, shape: Shape, base: u8) -> Self {
        Self { sink, shape, base, open: vec![NodeWriter::new(shape, base)], last: None }
    }

    /// Appends a record. [`ErrorKind::Invalid`](hiloop_types::ErrorKind::Invalid) when the key is not above the one before or a length is
    /// above its limit; errors of the sink end the build.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_record(key, value)?;
        if self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(Error::invalid("records are not in strictly ascending key order").at("manifest"));
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        if self.open[0].push_record(key, value) { self.close(0) } else { Ok(()) }
    }

    pub(super) fn push_child(&mut self, child: &OwnedChild) -> Result<()> {
        self.add(0, child)
    }

    fn add(&mut self, depth: usize, child: &OwnedChild) -> Result<()> {
        if depth == self.open.len() {
            self.open.push(NodeWriter::new(self.shape, self.base + depth as u8));
        }
        if self.open[depth].push_child(&child.key, &child.node, child.records) { self.close(depth) } else { Ok(()) }
    }

    fn close(&mut self, depth: usize) -> Result<()> {
        let (key, root) = self.place(depth)?;
        self.add(depth + 1, &OwnedChild { key, node: root.node, records: root.records })
    }

    fn place(&mut self, depth: usize) -> Result<(Bytes, RootRef)> {
        let (id, node) = self.open[depth].finish();
        let loc = self.sink.put(&id, &node)?;
        let key = if node.is_empty() { Bytes::new() } else { node.record(0).0 };
        Ok((key, RootRef { node: NodeRef { id, loc }, level: node.level(), records: node.records() }))
    }

    /// Closes all open nodes. The root is the node of the lowest level that has only one.
    pub fn finish(mut self) -> Result<RootRef> {
        let mut depth = 0;
        // A level with another above it has put nodes; the highest one has put none yet.
        while depth + 1 < self.open.len() {
            if !self.open[depth].is_empty() {
                self.close(depth)?;
            }
            depth += 1;
        }
        match self.open[depth].only_child() {
            Some(child) => Ok(RootRef { node: child.node, level: self.base + depth as u8 - 1, records: child.records }),
            None => Ok(self.place(depth)?.1),
        }
    }
}

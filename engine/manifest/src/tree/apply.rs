//! A new tree from an old one and a batch of changes: rewrites the nodes that change and the way to them.
//!
//! Level by level, from the leaves up. A node's shape depends on its own entries only, so a rewrite starts at the first key of the
//! old node that a change belongs to and goes on over its right neighbours until a new node ends where an old one did: from there
//! the old nodes stand. What changed on one level is the batch of the next.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter::Peekable;

use bytes::Bytes;
use hiloop_types::{Error, NodeId, Result};

use super::build::Builder;
use super::cursor::Cursor;
use super::shape::{STORED, Shape};
use super::writer::{NodeWriter, OwnedChild};
use super::{Access, NodeRef, NodeSink, NodeSource, RootRef, check_record, load_root};

/// What an [`Apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The new tree; the old one's root when nothing changed.
    pub root: RootRef,
    /// Nodes given to the sink.
    pub nodes_put: u64,
}

/// The rewrite of a tree by one batch of changes; survives missing nodes.
///
/// Memory: the batch is read as it is applied; besides one open node a level, what is kept grows with the number of changed nodes.
pub struct Apply<'a> {
    old: Option<RootRef>,
    shape: Shape,
    level: Level<'a>,
    inner: NewInner,
    state: State,
    nodes_put: u64,
}

/// How far an apply has come.
#[derive(Clone, Copy)]
enum State {
    /// Levels remain to be rewritten.
    Rewriting,
    /// All are written, and the highest has this one node: the root is it, or the first below it that has more than one child.
    Alone(RootRef),
    /// The tree is complete.
    Done(RootRef),
}

/// A change of one entry of a node.
struct Edit {
    key: Bytes,
    new: Option<NewEntry>,
}

enum NewEntry {
    Record(Bytes),
    Child(NodeRef, u64),
}

/// The new inner nodes, each with its child if it has only one: the source does not know them yet.
#[derive(Default)]
struct NewInner(HashMap<NodeId, Option<OwnedChild>>);

impl NewInner {
    /// Looks whether `top` has only one child, which then takes its place.
    fn step_down<S: NodeSource + ?Sized>(&self, source: &S, top: RootRef) -> Result<State, Access> {
        if top.level == 0 {
            return Ok(State::Done(top));
        }
        let only = match self.0.get(&top.node.id) {
            Some(only) => only.as_ref().map(|child| (child.node, child.records)),
            None => {
                let node = load_root(source, &top)?;
                let child = node.child(0)?;
                (node.len() == 1).then_some((child.node, child.records))
            }
        };
        Ok(only.map_or(State::Done(top), |(node, records)| State::Alone(RootRef { node, level: top.level - 1, records })))
    }
}

/// What becomes of the entry that a parent has for a node of this level.
#[derive(Default)]
struct InParent {
    old: Option<NodeRef>,
    new: Option<(NodeRef, u64)>,
}

/// The rewrite of one level.
struct Level<'a> {
    level: u8,
    edits: Peekable<Box<dyn Iterator<Item = Result<Edit>> + Send + 'a>>,
    last: Option<Bytes>,
    /// The old node whose entries are being taken over.
    open: Option<Cursor>,
    /// Its entries have been taken over; the next node is awaited.
    taken: bool,
    writer: NodeWriter,
    out: BTreeMap<Bytes, InParent>,
}

impl fmt::Debug for Apply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apply").field("old", &self.old).field("level", &self.level.level).finish_non_exhaustive()
    }
}

impl<'a> Apply<'a> {
    /// Prepares to apply `changes` (`None` deletes) to `old`, or to nothing. Their keys must ascend strictly; the first error among
    /// them is the apply's. Deleting an absent key and writing an equal value change nothing.
    pub fn new<I>(old: Option<&RootRef>, changes: I) -> Self
    where
        I: Iterator<Item = Result<(Bytes, Option<Bytes>)>> + Send + 'a,
    {
        Self::with_shape(STORED, old, changes)
    }

    pub(super) fn with_shape<I>(shape: Shape, old: Option<&RootRef>, changes: I) -> Self
    where
        I: Iterator<Item = Result<(Bytes, Option<Bytes>)>> + Send + 'a,
    {
        let edits = changes.map(|change| {
            let (key, value) = change?;
            check_record(&key, value.as_deref().unwrap_or_default())?;
            Ok(Edit { key, new: value.map(NewEntry::Record) })
        });
        let level = Level::new(shape, 0, Box::new(edits));
        Self { old: old.copied(), shape, level, inner: NewInner::default(), state: State::Rewriting, nodes_put: 0 }
    }

    /// Goes on until the new tree is complete. After [`Access::Miss`] fetch the node and call again, with the same sink: what was put
    /// stays valid. [`Access::Error`] ends the apply; drop it. `source` need not know the nodes that were put.
    pub fn run<S: NodeSource + ?Sized, K: NodeSink>(&mut self, source: &S, sink: &mut K) -> Result<Applied, Access> {
        let mut sink = Counting { sink, puts: &mut self.nodes_put };
        let root = loop {
            match self.state {
                State::Rewriting => {
                    self.level.run(self.old.as_ref(), source, &mut sink, &mut self.inner)?;
                    self.state = finish_level(self.old.as_ref(), &mut self.level, self.shape, &mut sink)?;
                }
                State::Alone(top) => self.state = self.inner.step_down(source, top)?,
                State::Done(root) => break root,
            }
        };
        Ok(Applied { root, nodes_put: self.nodes_put })
    }
}

/// Turns a finished level into the batch of the next one, or into a root.
fn finish_level<K: NodeSink>(old: Option<&RootRef>, done: &mut Level<'_>, shape: Shape, sink: &mut K) -> Result<State> {
    let out = std::mem::take(&mut done.out);
    let changed = |p: &InParent| p.old.map(|n| n.id) != p.new.map(|(n, _)| n.id);
    if let Some(old) = old {
        if !out.values().any(changed) {
            return Ok(State::Done(*old));
        }
        if done.level < old.level {
            let edits = out.into_iter().filter(|(_, p)| changed(p));
            let edits = edits.map(|(key, p)| Ok(Edit { key, new: p.new.map(|(node, records)| NewEntry::Child(node, records)) }));
            *done = Level::new(shape, done.level + 1, Box::new(edits.collect::<Vec<_>>().into_iter()));
            return Ok(State::Rewriting);
        }
    }
    // The old root, if there was one, has been rewritten: these are all nodes of the level.
    let mut all = out.into_iter().filter_map(|(key, p)| p.new.map(|(node, records)| OwnedChild { key, node, records })).peekable();
    let Some(first) = all.next() else {
        return Builder::at_level(sink, shape, 0).finish().map(State::Done);
    };
    if all.peek().is_none() {
        return Ok(State::Alone(RootRef { node: first.node, level: done.level, records: first.records }));
    }
    let mut above = Builder::at_level(sink, shape, done.level + 1);
    above.push_child(&first)?;
    for child in all {
        above.push_child(&child)?;
    }
    above.finish().map(State::Done)
}

impl<'a> Level<'a> {
    fn new(shape: Shape, level: u8, edits: Box<dyn Iterator<Item = Result<Edit>> + Send + 'a>) -> Self {
        let writer = NodeWriter::new(shape, level);
        Self { level, edits: edits.peekable(), last: None, open: None, taken: false, writer, out: BTreeMap::new() }
    }

    fn run<S: NodeSource + ?Sized, K: NodeSink>(
        &mut self,
        old: Option<&RootRef>,
        source: &S,
        sink: &mut K,
        inner: &mut NewInner,
    ) -> Result<(), Access> {
        let Some(old) = old else {
            while let Some(edit) = self.take_below(None)? {
                self.write(edit, sink, inner)?;
            }
            self.close(sink, inner)?;
            return Ok(());
        };
        loop {
            match &self.open {
                None => {
                    let Some(edit) = self.edits.peek() else { return Ok(()) };
                    let key = edit.as_ref().map_err(Clone::clone)?.key.clone();
                    let cursor = Cursor::seek(source, old, self.level, &key)?;
                    self.open_at(cursor);
                }
                Some(_) if !self.taken => self.take_over(sink, inner)?,
                // A new node ended where this old one did: the rest of the level stands until the next change.
                Some(_) if self.writer.is_empty() => self.open = None,
                Some(cursor) => match cursor.next(source)? {
                    Some(next) => self.open_at(next),
                    None => self.close(sink, inner)?,
                },
            }
        }
    }

    fn open_at(&mut self, cursor: Cursor) {
        // An empty leaf has no first key and no parent: it is the root of an empty tree.
        if !cursor.node().is_empty() {
            self.out.entry(cursor.node().record(0).0).or_default().old = Some(*cursor.place());
        }
        self.open = Some(cursor);
        self.taken = false;
    }

    /// Writes the open node's entries and the changes that belong to it.
    fn take_over<K: NodeSink>(&mut self, sink: &mut K, inner: &mut NewInner) -> Result<()> {
        let Some(cursor) = self.open.take() else { return Ok(()) };
        let node = cursor.node();
        for i in 0..node.len() {
            let key = node.key(i);
            while let Some(edit) = self.take_below(Some(key))? {
                self.write(edit, sink, inner)?;
            }
            if self.edits.peek().is_some_and(|e| e.as_ref().is_ok_and(|e| e.key == key)) {
                if let Some(edit) = self.take()? {
                    self.write(edit, sink, inner)?;
                }
                continue;
            }
            let ends = if self.level == 0 {
                self.writer.push_record(key, node.value(i))
            } else {
                let child = node.child(i)?;
                self.writer.push_child(key, &child.node, child.records)
            };
            if ends {
                self.close(sink, inner)?;
            }
        }
        while let Some(edit) = self.take_below(cursor.end())? {
            self.write(edit, sink, inner)?;
        }
        self.open = Some(cursor);
        self.taken = true;
        Ok(())
    }

    fn write<K: NodeSink>(&mut self, edit: Edit, sink: &mut K, inner: &mut NewInner) -> Result<()> {
        let ends = match edit.new {
            None => false,
            Some(NewEntry::Record(value)) => self.writer.push_record(&edit.key, &value),
            Some(NewEntry::Child(node, records)) => self.writer.push_child(&edit.key, &node, records),
        };
        if ends { self.close(sink, inner) } else { Ok(()) }
    }

    /// Ends the node that is being written, if it has entries. One that came out as it was keeps its old place.
    fn close<K: NodeSink>(&mut self, sink: &mut K, inner: &mut NewInner) -> Result<()> {
        if self.writer.is_empty() {
            return Ok(());
        }
        let only = self.writer.only_child();
        let (id, node) = self.writer.finish();
        let parent = self.out.entry(node.record(0).0).or_default();
        let place = match parent.old {
            Some(old) if old.id == id => old,
            _ => NodeRef { id, loc: sink.put(&id, &node)? },
        };
        parent.new = Some((place, node.records()));
        if self.level > 0 {
            inner.0.insert(id, only);
        }
        Ok(())
    }

    fn take_below(&mut self, end: Option<&[u8]>) -> Result<Option<Edit>> {
        match self.edits.peek() {
            Some(Ok(edit)) if end.is_some_and(|end| *edit.key >= *end) => Ok(None),
            _ => self.take(),
        }
    }

    fn take(&mut self) -> Result<Option<Edit>> {
        let Some(edit) = self.edits.next().transpose()? else { return Ok(None) };
        if self.last.replace(edit.key.clone()).is_some_and(|last| last >= edit.key) {
            return Err(Error::invalid("changes are not in strictly ascending key order").at("manifest"));
        }
        Ok(Some(edit))
    }
}

struct Counting<'k, K> {
    sink: &'k mut K,
    puts: &'k mut u64,
}

impl<K: NodeSink> NodeSink for Counting<'_, K> {
    fn put(&mut self, id: &NodeId, node: &std::sync::Arc<super::Node>) -> Result<crate::FrameLoc> {
        *self.puts += 1;
        self.sink.put(id, node)
    }
}

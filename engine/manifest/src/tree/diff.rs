//! What two trees differ in, at the cost of what differs.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_types::Result;

use super::{Access, Node, NodeSource, RootRef, load_child, load_root};

/// One key that two trees differ in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// Its value in the first tree.
    pub old: Option<Bytes>,
    /// Its value in the second tree.
    pub new: Option<Bytes>,
}

/// Iterates in key order over the records in which two trees differ; equal nodes are never read.
///
/// After [`Access::Miss`] it stands where it stood: fetch the node and call `next` again.
#[derive(Debug)]
pub struct Diff<'s, S: ?Sized> {
    source: &'s S,
    roots: Option<(RootRef, RootRef)>,
    old: Side,
    new: Side,
}

/// A position in one tree: an entry of the last node of the way.
#[derive(Debug, Default)]
struct Side {
    way: Vec<(Arc<Node>, usize)>,
}

impl Side {
    fn here(&self) -> Option<(&Arc<Node>, usize)> {
        self.way.last().map(|(node, i)| (node, *i))
    }

    fn enter(&mut self, node: Arc<Node>) {
        if !node.is_empty() {
            self.way.push((node, 0));
        }
    }

    /// Goes on behind the entry and all below it.
    fn skip(&mut self) {
        while let Some((node, i)) = self.way.last_mut() {
            *i += 1;
            if *i < node.len() {
                return;
            }
            self.way.pop();
        }
    }

    /// Takes the record.
    fn take(&mut self) -> Option<(Bytes, Bytes)> {
        let record = self.here().map(|(node, i)| node.record(i));
        self.skip();
        record
    }
}

/// What the two positions call for.
enum Move {
    /// Equal entries: go on behind both.
    SkipBoth,
    /// Go below one or both, to come to the smaller key or to the same level.
    Enter { old: bool, new: bool },
    /// Records with one key and two values, or a record on one side only.
    Take { old: bool, new: bool },
}

impl<'s, S: NodeSource + ?Sized> Diff<'s, S> {
    /// Compares `old` and `new`.
    pub fn new(source: &'s S, old: &RootRef, new: &RootRef) -> Self {
        let roots = (old.node.id != new.node.id).then_some((*old, *new));
        Self { source, roots, old: Side::default(), new: Side::default() }
    }

    fn step(&mut self) -> Result<Option<Change>, Access> {
        if let Some((old, new)) = &self.roots {
            let (old, new) = (load_root(self.source, old)?, load_root(self.source, new)?);
            self.old.enter(old);
            self.new.enter(new);
            self.roots = None;
        }
        while let Some(step) = self.next_move() {
            match step {
                Move::SkipBoth => {
                    self.old.skip();
                    self.new.skip();
                }
                Move::Enter { old, new } => {
                    // Both are loaded before either side moves, so that a miss leaves the position.
                    let below = |side: &Side, go: bool| match side.here() {
                        Some((node, i)) if go => load_child(self.source, node, i).map(Some),
                        _ => Ok(None),
                    };
                    let (old, new) = (below(&self.old, old)?, below(&self.new, new)?);
                    if let Some(node) = old {
                        self.old.enter(node);
                    }
                    if let Some(node) = new {
                        self.new.enter(node);
                    }
                }
                Move::Take { old, new } => {
                    let old = if old { self.old.take() } else { None };
                    let new = if new { self.new.take() } else { None };
                    let key = old.as_ref().or(new.as_ref()).map(|(key, _)| key.clone()).unwrap_or_default();
                    return Ok(Some(Change { key, old: old.map(|r| r.1), new: new.map(|r| r.1) }));
                }
            }
        }
        Ok(None)
    }

    fn next_move(&self) -> Option<Move> {
        let one_side = |node: &Node, old: bool| match node.level() {
            0 => Move::Take { old, new: !old },
            _ => Move::Enter { old, new: !old },
        };
        let ((a, i), (b, j)) = match (self.old.here(), self.new.here()) {
            (None, None) => return None,
            (Some((a, _)), None) => return Some(one_side(a, true)),
            (None, Some((b, _))) => return Some(one_side(b, false)),
            (Some(a), Some(b)) => (a, b),
        };
        Some(match a.key(i).cmp(b.key(j)) {
            Ordering::Less => one_side(a, true),
            Ordering::Greater => one_side(b, false),
            Ordering::Equal => match (a.level(), b.level()) {
                (0, 0) if a.value(i) == b.value(j) => Move::SkipBoth,
                (0, 0) => Move::Take { old: true, new: true },
                // The value of an inner entry is identity and count.
                (x, y) if x == y && a.value(i) == b.value(j) => Move::SkipBoth,
                (x, y) => Move::Enter { old: x >= y, new: y >= x },
            },
        })
    }
}

impl<S: NodeSource + ?Sized> Iterator for Diff<'_, S> {
    type Item = Result<Change, Access>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

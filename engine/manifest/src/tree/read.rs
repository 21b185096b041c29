//! Reading a tree: one key, the nearest key below, a range, and what would have to be fetched for it.

use bytes::Bytes;
use hiloop_types::Result;

use super::cursor::Cursor;
use super::{Access, Node, NodeRef, NodeSource, RootRef, load_child, load_root};

/// Keys from one (included) to another (excluded).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// The keys from `from` on, `from` included.
    pub fn starting_at(from: &[u8]) -> Self {
        Self { from: from.to_vec(), to: None }
    }

    /// The keys from `from` on, below `to`.
    pub fn between(from: &[u8], to: &[u8]) -> Self {
        Self { from: from.to_vec(), to: Some(to.to_vec()) }
    }

    /// The keys that start with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut to = prefix.to_vec();
        while to.last() == Some(&0xff) {
            to.pop();
        }
        // A prefix of 0xff bytes only has no key above all that start with it.
        let to = to.last_mut().map(|last| *last += 1).is_some().then_some(to);
        Self { from: prefix.to_vec(), to }
    }

    /// The part of this range above `key`.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        if key >= &*self.from {
            self.from.clear();
            self.from.extend_from_slice(key);
            self.from.push(0);
        }
        self
    }

    /// True when no key can be in it.
    pub fn is_empty(&self) -> bool {
        self.ends_before(&self.from)
    }

    fn ends_before(&self, key: &[u8]) -> bool {
        self.to.as_deref().is_some_and(|to| key >= to)
    }
}

/// The value of `key`, sharing the leaf's buffer.
pub fn get<S: NodeSource + ?Sized>(source: &S, root: &RootRef, key: &[u8]) -> Result<Option<Bytes>, Access> {
    let Some((leaf, i)) = floor_leaf(source, root, key)? else { return Ok(None) };
    Ok((leaf.key(i) == key).then(|| leaf.record(i).1))
}

/// The record with the greatest key that is not above `key` and starts with `prefix`.
pub fn floor<S: NodeSource + ?Sized>(source: &S, root: &RootRef, prefix: &[u8], key: &[u8]) -> Result<Option<(Bytes, Bytes)>, Access> {
    let Some((leaf, i)) = floor_leaf(source, root, key)? else { return Ok(None) };
    Ok(leaf.key(i).starts_with(prefix).then(|| leaf.record(i)))
}

/// The leaf and entry with the greatest key that is not above `key`. Entries start with their child's first key, so the way down
/// never has to turn back.
fn floor_leaf<S: NodeSource + ?Sized>(source: &S, root: &RootRef, key: &[u8]) -> Result<Option<(std::sync::Arc<Node>, usize)>, Access> {
    let mut node = load_root(source, root)?;
    loop {
        let Some(i) = node.floor(key) else { return Ok(None) };
        if node.level() == 0 {
            return Ok(Some((node, i)));
        }
        node = load_child(source, &node, i)?;
    }
}

/// A forward iterator over records.
///
/// After [`Access::Miss`] it stands where it stood: fetch the node and call `next` again. A caller that cannot keep it starts another
/// one over [`KeyRange::after`] the last key it saw. It reads no leaf before a record of it is asked for.
#[derive(Debug)]
pub struct Scan<'s, S: ?Sized> {
    source: &'s S,
    root: RootRef,
    range: KeyRange,
    at: Option<(Cursor, usize)>,
    done: bool,
}

impl<'s, S: NodeSource + ?Sized> Scan<'s, S> {
    /// Starts at the range's first key.
    pub fn new(source: &'s S, root: &RootRef, range: KeyRange) -> Self {
        Self { source, root: *root, at: None, done: range.is_empty(), range }
    }

    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>, Access> {
        loop {
            let (cursor, i) = match &mut self.at {
                Some((cursor, i)) => (cursor, i),
                None => {
                    let cursor = Cursor::seek(self.source, &self.root, 0, &self.range.from)?;
                    let i = cursor.node().lower_bound(&self.range.from);
                    let at = self.at.insert((cursor, i));
                    (&mut at.0, &mut at.1)
                }
            };
            if *i < cursor.node().len() {
                if self.range.ends_before(cursor.node().key(*i)) {
                    return Ok(None);
                }
                *i += 1;
                return Ok(Some(cursor.node().record(*i - 1)));
            }
            match cursor.end() {
                Some(first) if !self.range.ends_before(first) => {}
                _ => return Ok(None),
            }
            let Some(next) = cursor.next(self.source)? else { return Ok(None) };
            self.at = Some((next, 0));
        }
    }
}

impl<S: NodeSource + ?Sized> Iterator for Scan<'_, S> {
    type Item = Result<(Bytes, Bytes), Access>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step().transpose();
        self.done = step.is_none();
        step
    }
}

/// The nodes that a scan of `range` would miss, in key order, at most `limit`.
///
/// Below a missing inner node nothing can be known: fetch and ask again. The answer is empty when all is in memory.
pub fn missing<S: NodeSource + ?Sized>(source: &S, root: &RootRef, range: &KeyRange, limit: usize) -> Result<Vec<NodeRef>> {
    let mut out = Vec::new();
    if range.is_empty() {
        return Ok(out);
    }
    if let Some(node) = present(load_root(source, root), &mut out, limit)? {
        missing_in(source, &node, range, limit, &mut out)?;
    }
    Ok(out)
}

fn missing_in<S: NodeSource + ?Sized>(source: &S, node: &Node, range: &KeyRange, limit: usize, out: &mut Vec<NodeRef>) -> Result<()> {
    if node.level() == 0 {
        return Ok(());
    }
    let first = node.child_for(&range.from);
    for i in first..node.len() {
        // A scan starts with the first one even when the range ends before it.
        if out.len() >= limit || (i > first && range.ends_before(node.key(i))) {
            break;
        }
        if let Some(child) = present(load_child(source, node, i), out, limit)? {
            missing_in(source, &child, range, limit, out)?;
        }
    }
    Ok(())
}

/// Where the leaves are that a scan of `range` would read, in key order, at most `limit`; reads inner nodes only.
pub fn leaves<S: NodeSource + ?Sized>(source: &S, root: &RootRef, range: &KeyRange, limit: usize) -> Result<Vec<NodeRef>, Access> {
    let mut out = Vec::new();
    if root.level == 0 {
        out.push(root.node);
    } else if !range.is_empty() {
        leaves_in(source, &*load_root(source, root)?, range, limit, &mut out)?;
    }
    Ok(out)
}

fn leaves_in<S: NodeSource + ?Sized>(
    source: &S,
    node: &Node,
    range: &KeyRange,
    limit: usize,
    out: &mut Vec<NodeRef>,
) -> Result<(), Access> {
    let first = node.child_for(&range.from);
    for i in first..node.len() {
        if out.len() >= limit || (i > first && range.ends_before(node.key(i))) {
            break;
        }
        if node.level() == 1 {
            out.push(node.child(i)?.node);
        } else {
            leaves_in(source, &*load_child(source, node, i)?, range, limit, out)?;
        }
    }
    Ok(())
}

/// The nodes that [`get`]s or an [`Apply`](super::Apply) of these ascending keys would miss first, in key order, at most `limit`.
pub fn missing_for<'k, S: NodeSource + ?Sized>(
    source: &S,
    root: &RootRef,
    keys: impl IntoIterator<Item = &'k [u8]>,
    limit: usize,
) -> Result<Vec<NodeRef>> {
    let mut out = Vec::new();
    let Some(top) = present(load_root(source, root), &mut out, limit)? else { return Ok(out) };
    for key in keys {
        let mut node = top.clone();
        while node.level() > 0 && out.len() < limit {
            match present(load_child(source, &node, node.child_for(key)), &mut out, limit)? {
                Some(child) => node = child,
                None => break,
            }
        }
    }
    Ok(out)
}

fn present<T>(found: Result<T, Access>, out: &mut Vec<NodeRef>, limit: usize) -> Result<Option<T>> {
    match found {
        Ok(node) => Ok(Some(node)),
        Err(Access::Miss(node)) => {
            // Ascending keys ask for the same node in a row.
            if out.len() < limit && out.last() != Some(&node) {
                out.push(node);
            }
            Ok(None)
        }
        Err(Access::Error(e)) => Err(e),
    }
}

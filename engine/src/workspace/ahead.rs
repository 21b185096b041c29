//! What an operation that missed a manifest node will need next: fetched with it, so that a look-up or a listing in a directory that nobody
//! touched takes one round of the store and not one for each leaf.
//!
//! Everything here is bounded and guessed: what is guessed wrong costs bytes ([`CHILDREN`] leaves of some 64 KiB plain), never an answer.

use hiloop_manifest::schema::{Attr, Key, Prefix};
use hiloop_manifest::tree::{KeyRange, NodeRef, missing, missing_for};
use hiloop_types::{Ino, Result};

use super::State;
use crate::hydrate::Hydrator;
use crate::stop::{Miss, Stop};

/// Leaves with the inodes of what is in a directory that are fetched with one of its names: those of some two thousand small files. Of a
/// directory that has more, the inode that is wanted is seldom among so few, so none are.
const CHILDREN: usize = 8;
/// Leaves of names that a listing fetches at once.
const NAMES: usize = 8;
/// Leaves of one inode that are fetched at once: its records may lie over an edge.
const INODE: usize = 2;
/// Nodes that one listing waits for at once.
const LISTED: usize = 64;

/// Where an operation stood when it missed a node.
#[derive(Clone, Copy, Debug)]
pub enum Near<'a> {
    /// Looking for a name in the directory with these attributes.
    Name(&'a Attr),
    /// Listing the directory from this index on.
    Listing(Ino, u64, &'a Attr),
    /// At this inode, whose data are probably read next.
    Inode(Ino),
}

impl State {
    /// The miss of `stop` together with what will be missed next; anything else as it is.
    pub(super) fn near(&self, hydrator: &Hydrator, stop: Stop, near: Near<'_>) -> Stop {
        let (Stop::Miss(Miss::Node(node)), Some(root)) = (&stop, &self.root) else { return stop };
        let find = |range: &KeyRange, limit| missing(hydrator, root, range, limit);
        let (mut needed, mut ahead) = (vec![*node], Vec::new());
        let found = match near {
            Near::Name(dir) => children(dir).map_or(Ok(()), |range| {
                find(&range, CHILDREN + 1).map(|nodes| ahead = if nodes.len() > CHILDREN { Vec::new() } else { nodes })
            }),
            Near::Listing(dir, from, attr) => {
                let names = KeyRange::between(Key::index(dir, from).as_bytes(), &Prefix::index(dir).end());
                find(&names, NAMES).and_then(|nodes| {
                    needed.extend(nodes);
                    match children(attr) {
                        Some(range) if from <= 1 => find(&range, CHILDREN).map(|nodes| ahead = nodes),
                        _ => Ok(()),
                    }
                })
            }
            Near::Inode(ino) => find(&KeyRange::prefix(Prefix::inode(ino).start()), INODE).map(|nodes| needed.extend(nodes)),
        };
        if found.is_err() {
            // A damaged inner node: whoever comes to it is told.
            return stop;
        }
        needed.dedup();
        ahead.retain(|n| !needed.contains(n));
        Stop::Miss(Miss::Nodes { needed, ahead })
    }

    /// The nodes that reading the attributes of these inodes would miss first, at most [`LISTED`].
    pub(super) fn missing_attrs(&self, hydrator: &Hydrator, inodes: &[Ino]) -> Result<Vec<NodeRef>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };
        let mut keys: Vec<Key> = inodes.iter().map(|i| Key::attr(*i)).filter(|k| !self.overlays().any(|m| m.contains_key(k))).collect();
        keys.sort_unstable();
        missing_for(hydrator, root, keys.iter().map(Key::as_bytes), LISTED)
    }
}

/// Where the inodes of what is in a directory probably are.
fn children(dir: &Attr) -> Option<KeyRange> {
    let (first, behind) = (dir.children, Ino(dir.children.0.saturating_add(dir.entries)));
    (first.0 > 0 && dir.entries > 0).then(|| KeyRange::between(Key::attr(first).as_bytes(), Key::attr(behind).as_bytes()))
}

//! The front of a tree: the nodes that whoever opens it cold needs first, named beside its root.
//!
//! Without it an opening reads the root, then the inner nodes one level after another, then the first leaves. A head, base or snapshot
//! names them all, so they come in one round with the root: the inner nodes, and the leaves with the superblock, the root directory's
//! names and the inodes of what stands in it. It is bounded whatever the tree's size; what it leaves out costs a round more.
//!
//! A hint: a front that is absent, of another tree or partly gone costs time and nothing else.
//!
//! Stored as a list of hexadecimal strings, one a node: identity 32, pack 36, offset u32, stored length u32, plain length u32 (all
//! little-endian), codec u8.

use futures::future::BoxFuture;
use hiloop_manifest::schema::{IndexEntry, Key, Prefix};
use hiloop_manifest::tree::{Access, KeyRange, NodeRef, NodeSource, RootRef, Scan, leaves};
use hiloop_manifest::{Codec, FrameLoc};
use hiloop_types::{NodeId, PackId, ROOT_INO, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hydrate::Hydrator;

/// Inner nodes right below the root that are named, besides those on the way to the leaves.
const INNER: usize = 4;
/// Entries of the root directory whose inodes are looked for: what a mount brings.
const SHOWN: usize = 512;
/// Leaves with their inodes that are named.
const INODES: usize = 6;
/// Leaves that are named of the root directory's names in order of their index, and by hash.
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Bytes of a node's stored form.
const LEN: usize = NodeId::LEN + PackId::LEN + 13;

/// See [the module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Front(Vec<NodeRef>);

impl Front {
    /// The front of a tree that was just made or is about to be named.
    ///
    /// # Errors
    /// Those of [`Hydrator::node_now`].
    pub fn of<'a>(hydrator: &'a Hydrator, root: &'a RootRef) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move { hydrator.with_nodes(|h| front(h, root)).await.map(Self) })
    }

    /// As [`Self::of`], empty where that cannot be had.
    pub(crate) async fn or_none(hydrator: &Hydrator, root: &RootRef) -> Self {
        Self::of(hydrator, root).await.unwrap_or_else(|e| {
            tracing::debug!(error = %e, "a tree is published without its front");
            Self::default()
        })
    }

    /// Whether it names no node, as in documents of before there were fronts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes, the root not among them.
    pub fn nodes(&self) -> &[NodeRef] {
        &self.0
    }
}

fn front(h: &Hydrator, root: &RootRef) -> Result<Vec<NodeRef>, Access> {
    let mut nodes = Vec::new();
    let add = |nodes: &mut Vec<NodeRef>, node: NodeRef| {
        if node != root.node && !nodes.contains(&node) {
            nodes.push(node);
        }
    };
    let top = h.node(&root.node)?;
    let index = KeyRange::prefix(Prefix::index(ROOT_INO).start());
    let entries = KeyRange::prefix(Prefix::entries(ROOT_INO).start());
    for start in [&[], Prefix::entries(ROOT_INO).start()] {
        let mut node = top.clone();
        while node.level() >= 2 {
            let child = node.child(node.floor(start).unwrap_or(0))?.node;
            add(&mut nodes, child);
            node = h.node(&child)?;
        }
    }
    for i in 0..if top.level() >= 2 { top.len().min(INNER) } else { 0 } {
        add(&mut nodes, top.child(i)?.node);
    }
    leaves(h, root, &KeyRange::all(), 1)?.into_iter().for_each(|leaf| add(&mut nodes, leaf));
    let limit = nodes.len() + INODES;
    for record in Scan::new(h, root, index.clone()).take(SHOWN) {
        let ino = IndexEntry::decode(&record?.1)?.ino;
        let attr = KeyRange::prefix(Key::attr(ino).as_bytes());
        if nodes.len() < limit {
            leaves(h, root, &attr, 1)?.into_iter().for_each(|leaf| add(&mut nodes, leaf));
        }
    }
    for (range, most) in [(index, INDEX), (entries, ENTRIES)] {
        leaves(h, root, &range, most)?.into_iter().for_each(|leaf| add(&mut nodes, leaf));
    }
    Ok(nodes)
}

fn to_hex(node: &NodeRef) -> String {
    let mut b = Vec::with_capacity(LEN);
    b.extend_from_slice(node.id.as_bytes());
    b.extend_from_slice(&node.loc.pack.to_bytes());
    for n in [node.loc.offset, node.loc.stored_len, node.loc.plain_len] {
        b.extend_from_slice(&n.to_le_bytes());
    }
    b.push(node.loc.codec.to_u8());
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn from_hex(s: &str) -> Option<NodeRef> {
    let s = s.as_bytes();
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let mut b = [0; LEN];
    if s.len() != 2 * LEN {
        return None;
    }
    for (to, pair) in b.iter_mut().zip(s.chunks_exact(2)) {
        *to = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    let (id, rest) = b.split_first_chunk::<32>()?;
    let (pack, rest) = rest.split_first_chunk::<{ PackId::LEN }>()?;
    let (places, codec) = rest.split_first_chunk::<12>()?;
    let n = |at: usize| u32::from_le_bytes([places[at], places[at + 1], places[at + 2], places[at + 3]]);
    let loc = FrameLoc {
        pack: PackId::from_bytes(pack),
        offset: n(0),
        stored_len: n(4),
        plain_len: n(8),
        codec: Codec::from_u8(*codec.first()?).ok()?,
    };
    Some(NodeRef { id: NodeId(*id), loc })
}

impl Serialize for Front {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(to_hex))
    }
}

impl<'de> Deserialize<'de> for Front {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let nodes = Vec::<String>::deserialize(d)?;
        let node = |s: &String| from_hex(s).ok_or_else(|| D::Error::custom(format!("not a manifest node: {s:?}")));
        nodes.iter().map(node).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use hiloop_types::{Owner, Session, WriterEpoch};

    use super::*;

    #[test]
    fn the_stored_form_is_pinned_and_what_is_none_is_refused() {
        let pack = PackId { owner: Owner(1), epoch: WriterEpoch(2), session: Session(3), sequence: 4, attempt: 5 };
        let loc = FrameLoc { pack, offset: 6, stored_len: 7, plain_len: 8, codec: Codec::Zstd };
        let front = Front(vec![NodeRef { id: NodeId([0xab; 32]), loc }]);
        let ids = "ab".repeat(32);
        let stored = format!(
            "[\"{ids}{}\"]",
            "000000000000000100000000000000020000000000000003000000000000000400000005060000000700000008000000".to_owned() + "01"
        );
        assert_eq!(serde_json::to_string(&front).unwrap(), stored);
        assert_eq!(serde_json::from_str::<Front>(&stored).unwrap(), front);
        for bad in ["[\"ab\"]", &stored.replace("ab", "xy"), &stored.replace("01\"]", "ff\"]"), "7"] {
            assert!(serde_json::from_str::<Front>(bad).is_err(), "{bad}");
        }
    }
}

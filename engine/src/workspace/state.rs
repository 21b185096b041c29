//! The state that one lock guards: the published tree and the layers over it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hiloop_journal::{SlabId, StagedRef};
use hiloop_manifest::schema::{Key, StagedAt, Super, Totals, Value};
use hiloop_manifest::tree::{RootRef, get};
use hiloop_types::{Name, Result, Seqno, WriterEpoch};

use crate::hydrate::Hydrator;
use crate::layer::Layer;
use crate::stop::Stop;

/// The tree, the layers, the counts.
pub(crate) struct State {
    pub root: Option<RootRef>,
    /// Inode numbers from here on have no record in the tree: the next number as it was when the tree was made.
    pub root_next_ino: u64,
    /// Sealed layers, oldest first; never changed.
    pub sealed: VecDeque<Arc<Layer>>,
    /// The layer that takes changes.
    pub active: Layer,
    pub totals: Totals,
    pub next_ino: u64,
    /// Numbers from here on are not published in the head yet and may not be used.
    pub ino_limit: u64,
    pub accepted: Seqno,
    pub published: Seqno,
}

pub(crate) fn staged_ref(at: &StagedAt) -> StagedRef {
    StagedRef { slab: SlabId(at.slab), offset: at.offset, len: at.len, crc: at.crc }
}

pub(crate) fn staged_at(r: &StagedRef) -> StagedAt {
    StagedAt { slab: r.slab.0, offset: r.offset, len: r.len, crc: r.crc }
}

impl State {
    /// The maps that stand over the tree, newest first.
    pub fn overlays(&self) -> impl Iterator<Item = &BTreeMap<Key, Option<Value>>> {
        std::iter::once(&self.active.entries).chain(self.sealed.iter().rev().map(|l| &l.entries))
    }

    /// The tree, where it may hold records from this key on that belong to the same inode. What was made after the tree was published is
    /// found, or found absent, without reading it: it need not be at hand, nor need the store be.
    pub fn below(&self, key: &[u8]) -> Option<&RootRef> {
        self.root.as_ref().filter(|_| Key::owner(key).0 < self.root_next_ino)
    }

    /// The value of a key.
    pub fn value(&self, source: &Hydrator, key: &Key) -> Result<Option<Value>, Stop> {
        for map in self.overlays() {
            if let Some(v) = map.get(key) {
                return Ok(v.clone());
            }
        }
        let Some(root) = self.below(key.as_bytes()) else { return Ok(None) };
        match get(source, root, key.as_bytes())? {
            None => Ok(None),
            Some(b) => Ok(Some(Value::decode(key.kind(), &b, &[])?)),
        }
    }

    /// The staging slabs that the layers name.
    pub fn slabs(&self) -> Vec<u64> {
        self.sealed.iter().flat_map(|l| l.slabs.iter().copied()).chain(self.active.slabs.iter().copied()).collect()
    }

    /// True where a layer names the staging slab.
    pub fn names_slab(&self, slab: u64) -> bool {
        self.active.slabs.contains(&slab) || self.sealed.iter().any(|l| l.slabs.contains(&slab))
    }

    /// Closes the active layer, with the counts of this moment; `None` where it holds nothing and no cut is wanted.
    pub fn seal(&mut self, name_key: [u8; 32], epoch: WriterEpoch, cut: Option<Name>) -> Option<Arc<Layer>> {
        if self.active.is_empty() && cut.is_none() {
            return None;
        }
        let mut layer = std::mem::take(&mut self.active);
        layer.last = self.accepted;
        layer.cuts.extend(cut);
        if !layer.is_empty() {
            let superblock = Super { name_key, totals: self.totals, next_ino: self.next_ino, epoch };
            layer.put(Key::superblock(), Some(Value::Super(Box::new(superblock))));
        }
        let layer = Arc::new(layer);
        self.sealed.push_back(layer.clone());
        Some(layer)
    }
}

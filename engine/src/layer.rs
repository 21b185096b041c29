//! Layers: the unpublished changes of a workspace, newest on top, over its published tree.
//!
//! The top layer takes changes; it is *sealed* (an O(1) swap) when the replicator takes it over or a snapshot cuts it. A sealed layer
//! never changes. A key that a layer holds as `None` is deleted.

use std::collections::{BTreeMap, BTreeSet};

use hiloop_manifest::schema::{Key, Source, Totals, Value};
use hiloop_types::{Name, Seqno};

/// Changes between two cuts.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// Changed keys.
    pub entries: BTreeMap<Key, Option<Value>>,
    /// Last record in it.
    pub last: Seqno,
    /// Records in it.
    pub operations: u64,
    /// Bytes that its records brought (data and journal).
    pub bytes: u64,
    /// Counts of the workspace after its last record. Not changes of them: a layer may start below the tree that it is put over, where
    /// the answer to a publish came late.
    pub totals: Totals,
    /// True once the node's index holds it (`protocols.md` 2.7): the journal may let go of its records.
    pub checkpointed: std::sync::Arc<std::sync::atomic::AtomicBool>,
    /// Bytes that stand inline in memory.
    pub inline_bytes: u64,
    /// Staging slabs that its records name.
    pub slabs: BTreeSet<u64>,
    /// Snapshots cut at its end.
    pub cuts: Vec<Name>,
}

impl Layer {
    /// True where it holds nothing that would have to be published.
    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Puts a value and notes the slabs it names.
    pub fn put(&mut self, key: Key, value: Option<Value>) {
        if let Some(Value::Block(b)) = &value {
            for p in b.pieces() {
                if let Source::Staged { at, .. } = &p.source {
                    self.slabs.insert(at.slab);
                }
            }
        }
        self.inline_bytes += inline_bytes(value.as_ref());
        let before = self.entries.insert(key, value).flatten();
        self.inline_bytes -= inline_bytes(before.as_ref());
    }
}

fn inline_bytes(value: Option<&Value>) -> u64 {
    let Some(Value::Block(b)) = value else { return 0 };
    b.pieces().iter().map(|p| if let Source::Inline(bytes) = &p.source { bytes.len() as u64 } else { 0 }).sum()
}

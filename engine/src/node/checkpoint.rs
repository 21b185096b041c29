//! Checkpoints: unpublished layers move from the journal to the node's index (`protocols.md` 2.7).
//!
//! Column `Overlay`: `(session) (last seqno)` followed by `00` for the layer's own record (JSON) or by `01 (key)` for an entry, whose
//! value is `00` for a deletion or `01` and the encoded value. A layer is written only once its records and the staging that
//! they name are flushed, and in one atomic batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hiloop_manifest::schema::{Key, Totals, Value};
use hiloop_types::{Column, Error, MetaBatch, MetaStore, Name, Result, Seqno, Session};
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::layer::Layer;

#[derive(Serialize, Deserialize)]
struct LayerDoc {
    last: Seqno,
    operations: u64,
    bytes: u64,
    inodes: u64,
    allocated: u64,
    cuts: Vec<Name>,
}

fn prefix(session: Session, last: Seqno) -> Vec<u8> {
    [session.0.to_be_bytes(), last.0.to_be_bytes()].concat()
}

fn save(layer: &Layer, session: Session, batch: &mut MetaBatch) -> Result<()> {
    let at = prefix(session, layer.last);
    let doc = LayerDoc {
        last: layer.last,
        operations: layer.operations,
        bytes: layer.bytes,
        inodes: layer.totals.inodes,
        allocated: layer.totals.bytes,
        cuts: layer.cuts.clone(),
    };
    let body = serde_json::to_vec(&doc).map_err(|e| Error::internal(format!("cannot encode a layer: {e}")))?;
    batch.put(Column::Overlay, [at.as_slice(), &[0]].concat(), body);
    for (key, value) in &layer.entries {
        let mut body = vec![u8::from(value.is_some())];
        if let Some(v) = value {
            body.extend_from_slice(&v.encode(None));
        }
        batch.put(Column::Overlay, [at.as_slice(), &[1], key.as_bytes()].concat(), body);
    }
    Ok(())
}

/// The layers of a stream that the index holds, oldest first.
pub(super) fn load(meta: &dyn MetaStore, session: Session) -> Result<Vec<Arc<Layer>>> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut bad = None;
    meta.scan(Column::Overlay, &session.0.to_be_bytes(), &mut |k, v| {
        let read = entry(&mut layers, &k[8..], v);
        bad = read.err();
        bad.is_none()
    })?;
    match bad {
        Some(e) => Err(e.at("the node's index")),
        None => Ok(layers.into_iter().map(Arc::new).collect()),
    }
}

fn entry(layers: &mut Vec<Layer>, key: &[u8], value: &[u8]) -> Result<()> {
    let damaged = || Error::corrupt("holds a damaged checkpoint");
    let (last, rest) = key.split_first_chunk::<8>().ok_or_else(damaged)?;
    let last = Seqno(u64::from_be_bytes(*last));
    match rest.split_first().ok_or_else(damaged)? {
        (0, []) => {
            let doc: LayerDoc = serde_json::from_slice(value).map_err(|_| damaged())?;
            let layer = Layer {
                last: doc.last,
                operations: doc.operations,
                bytes: doc.bytes,
                totals: Totals { inodes: doc.inodes, bytes: doc.allocated },
                cuts: doc.cuts,
                ..Layer::default()
            };
            layer.checkpointed.store(true, Ordering::Release);
            layers.push(layer);
        }
        (1, key) => {
            let layer = layers.last_mut().filter(|l| l.last == last).ok_or_else(damaged)?;
            let key = Key::from_bytes(key)?;
            let value = match value.split_first().ok_or_else(damaged)? {
                (0, []) => None,
                (1, v) => Some(Value::decode(key.kind(), v, &[])?),
                _ => return Err(damaged()),
            };
            layer.put(key, value);
        }
        _ => return Err(damaged()),
    }
    Ok(())
}

/// Removes what the index holds of a stream.
pub(super) fn forget(batch: &mut MetaBatch, session: Session) {
    batch.delete_prefix(Column::Overlay, session.0.to_be_bytes());
}

/// Removes one layer that a confirmed head contains.
pub(super) fn drop_layer(meta: &dyn MetaStore, session: Session, last: Seqno) -> Result<()> {
    let mut batch = MetaBatch::new();
    batch.delete_prefix(Column::Overlay, prefix(session, last));
    meta.write(batch)
}

impl Engine {
    /// Moves the unpublished layers of all workspaces and tails to the index. The caller flushes the index before it releases the
    /// journal.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let mut tails = self.0.tails.lock();
        for (session, tail) in tails.iter_mut() {
            for layer in tail.settle()? {
                let mut batch = MetaBatch::new();
                save(&layer, *session, &mut batch)?;
                self.0.meta.write(batch)?;
                layer.checkpointed.store(true, Ordering::Release);
            }
        }
        drop(tails);
        for w in self.workspaces() {
            let shared = &w.0;
            let layers: Vec<Arc<Layer>> = {
                let mut state = shared.state.write();
                if state.sealed.len() < hiloop_types::limits::SEALED_LAYERS {
                    state.seal(shared.name_key, shared.epoch, None);
                }
                state.sealed.iter().filter(|l| !l.checkpointed.load(Ordering::Acquire)).cloned().collect()
            };
            for layer in layers {
                self.0.node.journal.commit(layer.last)?;
                let mut batch = MetaBatch::new();
                save(&layer, shared.session, &mut batch)?;
                self.0.meta.write(batch)?;
                layer.checkpointed.store(true, Ordering::Release);
                // Published while it was written: then nobody else removes it.
                if shared.replicator.published() >= layer.last {
                    drop_layer(self.0.meta.as_ref(), shared.session, layer.last)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_manifest::schema::{Block, Piece, Source, StagedAt};
    use hiloop_types::{Ino, MemoryMeta};

    #[test]
    fn layers_come_back_as_they_were() {
        let meta = MemoryMeta::new();
        let session = Session(7);
        let mut made = Vec::new();
        for last in [5u64, 300] {
            let mut layer =
                Layer { last: Seqno(last), operations: 3, bytes: 99, totals: Totals { inodes: 1, bytes: 12 }, ..Layer::default() };
            let at = StagedAt { slab: last, offset: 512, len: 10, crc: 1 };
            let mut block = Block::default();
            block.put(Piece { start: 0, len: 10, source: Source::Staged { at, skip: 0 } });
            layer.put(Key::block(Ino(9), 1), Some(Value::Block(block)));
            layer.put(Key::attr(Ino(4)), None);
            let mut batch = MetaBatch::new();
            save(&layer, session, &mut batch).unwrap();
            meta.write(batch).unwrap();
            made.push(layer);
        }
        let back = load(&meta, session).unwrap();
        assert_eq!(back.len(), 2);
        for (a, b) in made.iter().zip(&back) {
            assert_eq!((a.last, &a.entries, &a.slabs, a.totals), (b.last, &b.entries, &b.slabs, b.totals));
            assert!(b.checkpointed.load(Ordering::Acquire));
        }
        drop_layer(&meta, session, Seqno(5)).unwrap();
        assert_eq!(load(&meta, session).unwrap().len(), 1);
        assert!(load(&meta, Session(8)).unwrap().is_empty());
    }
}

//! Bodies of journal records.
//!
//! | kind | body |
//! |---|---|
//! | [`OPEN`] | JSON [`StreamDoc`]: a stream is one (workspace, session) |
//! | [`CHANGES`] | [`Batch`]: changes of one operation |
//! | [`CUT`] | name of a snapshot, cut at this record |
//! | [`ATTEMPT`] | nonce of a head swap that is about to be sent |
//! | [`PUBLISHED`] | JSON [`PublishedDoc`]: a confirmed head |
//! | [`CUT_DONE`] | name of a snapshot whose object is confirmed, or will never be put |
//! | [`CLOSED`] | empty: the stream needs nothing from the journal any more |
//!
//! A batch is: version byte, number of inodes and of bytes that are not holes after it, next inode number, number of changes, then each change: operation byte,
//! length-prefixed key, and for `Set` (0) the length-prefixed value, for `Delete` (1) nothing, for `Put` (2) a block value with the one
//! piece that was put, for `Clear` (3) the two edges. `Put` and `Clear` change a block that an earlier record *since the last seal* set
//! whole, so that replaying the records behind a published root never needs the tree below.

use hiloop_manifest::schema::{Block, Key, Piece, Reader, StagedAt, Totals, Value, Writer};
use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, Name, Nonce, Result, Seqno, Session, WriterEpoch};
use serde::{Deserialize, Serialize};

use crate::catalog::BaseRoot;

/// Record kind: a stream begins.
pub const OPEN: u8 = 1;
/// Record kind: changes.
pub const CHANGES: u8 = 2;
/// Record kind: a snapshot's cut.
pub const CUT: u8 = 3;
/// Record kind: a head swap is about to be sent.
pub const ATTEMPT: u8 = 4;
/// Record kind: a head was confirmed.
pub const PUBLISHED: u8 = 5;
/// Record kind: a snapshot's object is settled.
pub const CUT_DONE: u8 = 7;
/// Record kind: the stream is done.
pub const CLOSED: u8 = 6;

/// 1 held changes of the counts instead of the counts: a tail that starts in the middle of what a late answer published counted twice.
const VERSION: u8 = 2;

/// What a stream is: written, and flushed, before the head is swapped to its session (`protocols.md` 3.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamDoc {
    /// Store URL.
    pub store: String,
    /// The workspace.
    pub name: Name,
    /// Epoch.
    pub epoch: WriterEpoch,
    /// Session; also the stream's number.
    pub session: Session,
    /// Nonce of the swap that opens it.
    pub nonce: Nonce,
    /// The tree below the first layer.
    pub root: Option<RootRef>,
    /// Base roots of the head.
    pub bases: Vec<BaseRoot>,
    /// First inode number of the opening.
    pub next_ino: u64,
    /// Dedup domain.
    pub domain: Name,
}

/// A confirmed head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedDoc {
    /// Records up to this one are in the tree.
    pub sequence: Seqno,
    /// The tree.
    pub root: RootRef,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The key has this value.
    Set(Key, Value),
    /// The key is gone.
    Delete(Key),
    /// A piece was put into a block.
    Put(Key, Piece),
    /// A range of a block became a hole.
    Clear(Key, u32, u32),
}

/// The changes of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Counts of the workspace after it.
    pub totals: Totals,
    /// Next inode number.
    pub next_ino: u64,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

impl Batch {
    /// The body, and the staged ranges it names by index.
    pub fn encode(&self) -> (Vec<u8>, Vec<StagedAt>) {
        let mut staged = Vec::new();
        let mut w = Writer::with_capacity(64 + self.changes.len() * 96);
        w.u8(VERSION);
        w.uint(self.totals.inodes);
        w.uint(self.totals.bytes);
        w.uint(self.next_ino);
        w.uint(self.changes.len() as u64);
        for c in &self.changes {
            match c {
                Change::Set(k, v) => {
                    w.u8(0);
                    w.bytes(k.as_bytes());
                    w.bytes(&v.encode(Some(&mut staged)));
                }
                Change::Delete(k) => {
                    w.u8(1);
                    w.bytes(k.as_bytes());
                }
                Change::Put(k, p) => {
                    w.u8(2);
                    w.bytes(k.as_bytes());
                    w.bytes(&Block::from_pieces(vec![p.clone()]).encode(Some(&mut staged)));
                }
                Change::Clear(k, from, to) => {
                    w.u8(3);
                    w.bytes(k.as_bytes());
                    w.uint((*from).into());
                    w.uint((*to).into());
                }
            }
        }
        (w.0, staged)
    }

    /// Reads a body.
    ///
    /// # Errors
    /// `Corrupt` where it is none.
    pub fn decode(b: &[u8], staged: &[StagedAt]) -> Result<Self> {
        const VALUE_MAX: usize = 1 << 20;
        let mut r = Reader::new(b, "journal batch");
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(r.bad("version", version).hint("another hiloop wrote this journal; run the one that did until all is published"));
        }
        let totals = Totals { inodes: r.uint("inodes")?, bytes: r.uint("bytes")? };
        let mut batch = Self { totals, next_ino: r.uint("next inode")?, changes: Vec::new() };
        for _ in 0..r.uint("changes")? {
            let op = r.u8("operation")?;
            let key = Key::from_bytes(r.bytes(Key::MAX + 1, "key")?)?;
            batch.changes.push(match op {
                0 => {
                    let value = Value::decode(key.kind(), r.bytes(VALUE_MAX, "value")?, staged)?;
                    Change::Set(key, value)
                }
                1 => Change::Delete(key),
                2 => {
                    let block = Block::decode(r.bytes(VALUE_MAX, "piece")?, staged)?;
                    let [piece] = block.pieces() else { return Err(r.bad("pieces in a put:", block.pieces().len())) };
                    Change::Put(key, piece.clone())
                }
                3 => Change::Clear(key, r.u32("from")?, r.u32("to")?),
                other => return Err(r.bad("operation", other)),
            });
        }
        r.end()?;
        Ok(batch)
    }
}

/// Applies a batch that was read from the journal to the layer of its time.
///
/// # Errors
/// `Corrupt` where a put or clear names a block that the layer does not hold, or something else than a block.
pub fn replay(layer: &mut crate::layer::Layer, batch: Batch) -> Result<()> {
    for c in batch.changes {
        match c {
            Change::Set(k, v) => layer.put(k, Some(v)),
            Change::Delete(k) => layer.put(k, None),
            Change::Put(k, p) => edit(layer, k, |b| b.put(p))?,
            Change::Clear(k, from, to) => edit(layer, k, |b| b.clear(from, to))?,
        }
    }
    Ok(())
}

fn edit(layer: &mut crate::layer::Layer, key: Key, f: impl FnOnce(&mut Block)) -> Result<()> {
    let Some(Some(Value::Block(block))) = layer.entries.get(&key) else {
        return Err(Error::corrupt(format!("a journal record edits {key:?}, which no earlier record set")));
    };
    let mut block = block.clone();
    f(&mut block);
    layer.put(key, Some(Value::Block(block)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hiloop_manifest::schema::Source;
    use hiloop_types::Ino;
    use proptest::prelude::*;

    fn sample() -> Batch {
        let at = StagedAt { slab: 3, offset: 512, len: 4096, crc: 7 };
        let mut block = Block::default();
        block.put(Piece { start: 0, len: 100, source: Source::Staged { at, skip: 5 } });
        let inline = Piece { start: 100, len: 2, source: Source::Inline(Bytes::from_static(b"ab")) };
        let key = Key::block(Ino(9), 1);
        Batch {
            totals: Totals { inodes: 3, bytes: 102 },
            next_ino: 12,
            changes: vec![
                Change::Set(key.clone(), Value::Block(block)),
                Change::Put(key.clone(), inline),
                Change::Clear(key, 50, 60),
                Change::Delete(Key::attr(Ino(4))),
            ],
        }
    }

    #[test]
    fn round_trip_with_moved_staging() {
        let (body, mut staged) = sample().encode();
        assert_eq!(staged.len(), 1);
        assert_eq!(Batch::decode(&body, &staged).unwrap(), sample());
        staged[0].slab = 44;
        let moved = Batch::decode(&body, &staged).unwrap();
        assert_ne!(moved, sample());
        let mut layer = crate::layer::Layer::default();
        replay(&mut layer, moved).unwrap();
        assert_eq!(layer.slabs.iter().copied().collect::<Vec<_>>(), [44]);
        let Some(Some(Value::Block(b))) = layer.entries.get(&Key::block(Ino(9), 1)) else { panic!("no block") };
        assert_eq!(b.allocated(), 92);
    }

    #[test]
    fn an_edit_of_an_unknown_block_is_corruption() {
        let batch = Batch { changes: vec![Change::Clear(Key::block(Ino(9), 1), 0, 1)], ..Batch::default() };
        assert_eq!(replay(&mut crate::layer::Layer::default(), batch).unwrap_err().kind(), hiloop_types::ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn decode_never_panics(b in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Batch::decode(&b, &[]);
        }
    }
}

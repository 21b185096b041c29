//! Where the bytes of one block of a file are.
//!
//! A block covers [`limits::BLOCK`] bytes of a file. Its value lists disjoint, ascending [`Piece`]s; what no piece covers is a
//! hole. Pieces of chunks are ranges, so overwriting part of a chunk never reads it.
//!
//! Encoding: version byte, number of pieces, then per piece: start, length, source tag and source.
//!
//! | tag | source | fields |
//! |---|---|---|
//! | 0 | [`Source::Zero`] | none: allocated, reads as zeros |
//! | 1 | [`Source::Inline`] | the bytes |
//! | 2 | [`Source::Chunk`] | domain, id (32), pack (36), offset, stored length, plain length, codec, skip |
//! | 3 | [`Source::Staged`] | slab, offset, length, crc, skip (checkpoint of this node only) |
//! | 4 | [`Source::Staged`] | index into the journal record's list of staged ranges, skip |
//!
//! Tags 3 and 4 never stand in a published tree.

use bytes::Bytes;
use hiloop_types::{ChunkId, Error, PackId, Result, limits};

use super::{Reader, Writer};
use crate::{Codec, FrameLoc};

const VERSION: u8 = 1;
const BLOCK: u32 = limits::BLOCK as u32;

/// Whose key a chunk's id is made with (`protocols.md` 5.2): a tree holds chunks of two domains at most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ChunkDomain {
    /// The domain of published bases.
    Public = 0,
    /// The domain of the workspace or base that the tree belongs to; forks inherit it.
    Own = 1,
}

/// A chunk and where it was last seen; the id is the identity, the location a hint (`protocols.md` 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkRef {
    /// Dedup domain.
    pub domain: ChunkDomain,
    /// Identity.
    pub id: ChunkId,
    /// Location hint, lengths and codec.
    pub at: FrameLoc,
}

/// A range in the node's staging slabs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StagedAt {
    /// Slab number.
    pub slab: u64,
    /// Offset in the slab, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u32,
    /// CRC-32C of the whole range.
    pub crc: u32,
}

/// Where the bytes of a piece come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Allocated but never written: reads as zeros, counts as space.
    Zero,
    /// The bytes themselves.
    Inline(Bytes),
    /// Bytes `skip..` of a chunk.
    Chunk {
        /// The chunk.
        chunk: ChunkRef,
        /// First byte used.
        skip: u32,
    },
    /// Bytes `skip..` of a staged range.
    Staged {
        /// The range.
        at: StagedAt,
        /// First byte used.
        skip: u32,
    },
}

impl Source {
    /// The same source, `by` bytes further in and `len` bytes long.
    fn slice(&self, by: u32, len: u32) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Inline(b) => Self::Inline(b.slice(by as usize..(by + len) as usize)),
            Self::Chunk { chunk, skip } => Self::Chunk { chunk: *chunk, skip: skip + by },
            Self::Staged { at, skip } => Self::Staged { at: *at, skip: skip + by },
        }
    }
}

/// A run of bytes within a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte, relative to the block.
    pub start: u32,
    /// Length, bytes; never 0.
    pub len: u32,
    /// Where the bytes are.
    pub source: Source,
}

impl Piece {
    /// The byte behind the piece, relative to the block.
    pub fn end(&self) -> u32 {
        self.start + self.len
    }
    /// The part of this piece within `from..to`.
    pub fn within(&self, from: u32, to: u32) -> Option<Self> {
        let (a, b) = (self.start.max(from), self.end().min(to));
        (a < b).then(|| Self { start: a, len: b - a, source: self.source.slice(a - self.start, b - a) })
    }
}

/// The pieces of one block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block {
    pieces: Vec<Piece>,
}

impl Block {
    /// A block of these pieces, which must ascend and not overlap.
    pub fn from_pieces(pieces: Vec<Piece>) -> Self {
        debug_assert!(pieces.windows(2).all(|w| w[0].end() <= w[1].start));
        Self { pieces }
    }
    /// The pieces, ascending.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
    /// True where the whole block is a hole.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// Bytes that are not holes.
    pub fn allocated(&self) -> u64 {
        self.pieces.iter().map(|p| u64::from(p.len)).sum()
    }
    /// True where a piece has bytes that only this node holds.
    pub fn is_dirty(&self) -> bool {
        self.pieces.iter().any(|p| matches!(p.source, Source::Inline(_) | Source::Staged { .. }))
    }

    /// Makes `from..to` a hole; pieces across an edge keep their outer part.
    pub fn clear(&mut self, from: u32, to: u32) {
        if from >= to || !self.pieces.iter().any(|p| p.start < to && p.end() > from) {
            return;
        }
        let mut out = Vec::with_capacity(self.pieces.len() + 1);
        for p in self.pieces.drain(..) {
            out.extend(p.within(0, from));
            out.extend(p.within(to, BLOCK));
        }
        self.pieces = out;
    }

    /// Puts `piece` over whatever was there, joining it with its left neighbour where both are one run of the same source.
    pub fn put(&mut self, piece: Piece) {
        debug_assert!(piece.len > 0 && piece.end() <= BLOCK);
        self.clear(piece.start, piece.end());
        let at = self.pieces.partition_point(|p| p.start < piece.start);
        if at > 0
            && self.pieces[at - 1].end() == piece.start
            && let Some(joined) = join(&self.pieces[at - 1], &piece)
        {
            self.pieces[at - 1] = joined;
            return;
        }
        self.pieces.insert(at, piece);
    }

    /// Fills the holes within `from..to` with [`Source::Zero`] and returns how many bytes that allocated.
    pub fn reserve(&mut self, from: u32, to: u32) -> u64 {
        let before = self.allocated();
        let mut at = from;
        let mut gaps = Vec::new();
        for p in &self.pieces {
            if p.end() <= from || p.start >= to {
                continue;
            }
            if p.start > at {
                gaps.push((at, p.start));
            }
            at = at.max(p.end());
        }
        if at < to {
            gaps.push((at, to));
        }
        for (a, b) in gaps {
            self.put(Piece { start: a, len: b - a, source: Source::Zero });
        }
        self.allocated() - before
    }

    /// The stored form. With `staged`, staged ranges are written as indexes into that list, which grows as needed (journal
    /// records: recovery may move the ranges); without, with their place (checkpoints).
    pub fn encode(&self, mut staged: Option<&mut Vec<StagedAt>>) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.pieces.len() * 96);
        w.u8(VERSION);
        w.uint(self.pieces.len() as u64);
        for p in &self.pieces {
            w.uint(u64::from(p.start));
            w.uint(u64::from(p.len));
            match &p.source {
                Source::Zero => w.u8(0),
                Source::Inline(b) => {
                    w.u8(1);
                    w.raw(b);
                }
                Source::Chunk { chunk, skip } => {
                    w.u8(2);
                    w.u8(chunk.domain as u8);
                    w.raw(chunk.id.as_bytes());
                    w.raw(&chunk.at.pack.to_bytes());
                    for v in [chunk.at.offset, chunk.at.stored_len, chunk.at.plain_len] {
                        w.uint(u64::from(v));
                    }
                    w.u8(chunk.at.codec as u8);
                    w.uint(u64::from(*skip));
                }
                Source::Staged { at, skip } => match staged.as_deref_mut() {
                    Some(list) => {
                        let index = list.iter().position(|s| s == at).unwrap_or_else(|| {
                            list.push(*at);
                            list.len() - 1
                        });
                        w.u8(4);
                        w.uint(index as u64);
                        w.uint(u64::from(*skip));
                    }
                    None => {
                        w.u8(3);
                        for v in [at.slab, at.offset, at.len.into(), at.crc.into(), u64::from(*skip)] {
                            w.uint(v);
                        }
                    }
                },
            }
        }
        w.0
    }

    /// Reads the stored form; `staged` is the record's list of staged ranges (empty for trees and checkpoints).
    pub fn decode(b: &[u8], staged: &[StagedAt]) -> Result<Self> {
        let mut r = Reader::new(b, "file block");
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(r.bad("version", version).hint("a newer hiloop wrote this workspace; upgrade this one"));
        }
        let n = r.uint("pieces")?;
        if n > limits::BLOCK {
            return Err(r.bad("pieces", n));
        }
        let mut pieces: Vec<Piece> = Vec::with_capacity((n as usize).min(64));
        for _ in 0..n {
            let (start, len) = (r.u32("start")?, r.u32("length")?);
            let after = pieces.last().map_or(0, Piece::end);
            if len == 0 || start < after || start.checked_add(len).is_none_or(|e| e > BLOCK) {
                return Err(r.bad("piece", format_args!("{start}+{len} after {after}")));
            }
            let source = decode_source(&mut r, len, staged)?;
            pieces.push(Piece { start, len, source });
        }
        r.end()?;
        Ok(Self { pieces })
    }
}

fn decode_source(r: &mut Reader<'_>, len: u32, staged: &[StagedAt]) -> Result<Source> {
    let fits = |r: &Reader<'_>, skip: u32, total: u32| {
        if skip.checked_add(len).is_some_and(|e| e <= total) {
            Ok(())
        } else {
            Err(r.bad("piece", format_args!("{skip}+{len} of {total} bytes")))
        }
    };
    Ok(match r.u8("source")? {
        0 => Source::Zero,
        1 => Source::Inline(Bytes::copy_from_slice(r.raw(len as usize, "inline data")?)),
        2 => {
            let domain = match r.u8("domain")? {
                0 => ChunkDomain::Public,
                1 => ChunkDomain::Own,
                other => return Err(r.bad("domain", other)),
            };
            let id = ChunkId(r.array("chunk id")?);
            let pack = PackId::from_bytes(&r.array("pack")?);
            let (offset, stored_len, plain_len) = (r.u32("offset")?, r.u32("stored length")?, r.u32("plain length")?);
            let codec = Codec::from_u8(r.u8("codec")?)?;
            let skip = r.u32("skip")?;
            fits(r, skip, plain_len)?;
            Source::Chunk { chunk: ChunkRef { domain, id, at: FrameLoc { pack, offset, stored_len, plain_len, codec } }, skip }
        }
        3 => {
            let at = StagedAt { slab: r.uint("slab")?, offset: r.uint("offset")?, len: r.u32("length")?, crc: r.u32("crc")? };
            let skip = r.u32("skip")?;
            fits(r, skip, at.len)?;
            Source::Staged { at, skip }
        }
        4 => {
            let index = r.uint("staged index")?;
            let at = *staged.get(index as usize).ok_or_else(|| r.bad("staged index", index))?;
            let skip = r.u32("skip")?;
            fits(r, skip, at.len)?;
            Source::Staged { at, skip }
        }
        tag => return Err(Error::corrupt(format!("file block has source tag {tag}"))),
    })
}

/// One piece for two neighbours that continue each other, where that costs nothing.
fn join(left: &Piece, right: &Piece) -> Option<Piece> {
    let source = match (&left.source, &right.source) {
        (Source::Zero, Source::Zero) => Source::Zero,
        (Source::Chunk { chunk, skip }, Source::Chunk { chunk: c, skip: s }) if chunk.id == c.id && skip + left.len == *s => {
            left.source.clone()
        }
        (Source::Staged { at, skip }, Source::Staged { at: a, skip: s }) if at == a && skip + left.len == *s => left.source.clone(),
        // Appending a few bytes at a time must not grow one piece per write; the copy is bounded by the inline limit.
        (Source::Inline(a), Source::Inline(b)) if a.len() + b.len() <= limits::INLINE_WRITE => {
            let mut v = Vec::with_capacity(a.len() + b.len());
            v.extend_from_slice(a);
            v.extend_from_slice(b);
            Source::Inline(v.into())
        }
        _ => return None,
    };
    Some(Piece { start: left.start, len: left.len + right.len, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::{Owner, Session, WriterEpoch};
    use proptest::prelude::*;

    fn chunk(skip: u32) -> Source {
        let pack = PackId { owner: Owner(1), epoch: WriterEpoch(2), session: Session(3), sequence: 4, attempt: 5 };
        let at = FrameLoc { pack, offset: 60, stored_len: 7, plain_len: BLOCK, codec: Codec::Zstd };
        Source::Chunk { chunk: ChunkRef { domain: ChunkDomain::Own, id: ChunkId([9; 32]), at }, skip }
    }
    fn staged(skip: u32) -> Source {
        Source::Staged { at: StagedAt { slab: 1, offset: 2, len: BLOCK, crc: 4 }, skip }
    }

    /// What a block must do, on plain bytes: `None` is a hole.
    #[derive(Clone, Debug)]
    enum Op {
        Put(u32, u32, u8),
        Clear(u32, u32),
        Reserve(u32, u32),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let range = (0u32..200, 1u32..100);
        let op = prop_oneof![
            (range.clone(), 0u8..4).prop_map(|((a, l), s)| Op::Put(a, l, s)),
            range.clone().prop_map(|(a, l)| Op::Clear(a, a + l)),
            range.prop_map(|(a, l)| Op::Reserve(a, a + l)),
        ];
        proptest::collection::vec(op, 0..40)
    }

    /// A byte's identity: tag of its source and position within it.
    fn identity(p: &Piece, at: u32) -> (u8, u32) {
        let off = at - p.start;
        match &p.source {
            Source::Zero => (0, 0),
            Source::Inline(b) => (1, u32::from(b[off as usize])),
            Source::Chunk { skip, .. } => (2, skip + off),
            Source::Staged { skip, .. } => (3, skip + off),
        }
    }

    proptest! {
        #[test]
        fn a_block_is_an_array_of_bytes(ops in ops()) {
            let mut model: Vec<Option<(u8, u32)>> = vec![None; 400];
            let mut block = Block::default();
            for op in ops {
                match op {
                    Op::Put(start, len, s) => {
                        let source = match s {
                            0 => Source::Zero,
                            1 => Source::Inline((0..len).map(|i| (start + i) as u8).collect::<Vec<_>>().into()),
                            2 => chunk(start + 1000),
                            _ => staged(start + 500),
                        };
                        let piece = Piece { start, len, source };
                        for at in start..start + len {
                            model[at as usize] = Some(identity(&piece, at));
                        }
                        block.put(piece);
                    }
                    Op::Clear(a, b) => {
                        model[a as usize..b as usize].fill(None);
                        block.clear(a, b);
                    }
                    Op::Reserve(a, b) => {
                        let grew = model[a as usize..b as usize].iter().filter(|x| x.is_none()).count() as u64;
                        model[a as usize..b as usize].iter_mut().filter(|x| x.is_none()).for_each(|x| *x = Some((0, 0)));
                        prop_assert_eq!(block.reserve(a, b), grew);
                    }
                }
                let mut seen: Vec<Option<(u8, u32)>> = vec![None; 400];
                for p in block.pieces() {
                    for at in p.start..p.end() {
                        prop_assert!(seen[at as usize].replace(identity(p, at)).is_none());
                    }
                }
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(block.allocated(), model.iter().flatten().count() as u64);
            }
            prop_assert_eq!(&Block::decode(&block.encode(None), &[]).unwrap(), &block);
            let mut list = Vec::new();
            let bytes = block.encode(Some(&mut list));
            prop_assert_eq!(&Block::decode(&bytes, &list).unwrap(), &block);
        }

        #[test]
        fn decode_never_panics(b in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Block::decode(&b, &[]);
        }
    }

    #[test]
    fn version_1_fixture() {
        let mut b = Block::default();
        b.put(Piece { start: 0, len: 2, source: Source::Inline(Bytes::from_static(b"hi")) });
        b.put(Piece { start: 300, len: 1, source: chunk(5) });
        let hex: String = b.encode(None).iter().map(|b| format!("{b:02x}")).collect();
        let id = "09".repeat(32);
        let pack = "0000000000000001000000000000000200000000000000030000000000000004".to_owned() + "00000005";
        assert_eq!(hex, format!("01020002016869ac02010201{id}{pack}3c078080080105"));
    }

    #[test]
    fn small_appends_join() {
        let mut b = Block::default();
        for i in 0..100u32 {
            b.put(Piece { start: i * 10, len: 10, source: Source::Inline(Bytes::from_static(&[1; 10])) });
        }
        assert_eq!(b.pieces().len(), 1);
    }
}

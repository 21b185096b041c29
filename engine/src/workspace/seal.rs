//! From a sealed layer to a tree in the store: dirty bytes become chunks, chunks and new nodes become packs.
//!
//! Runs on a thread that may block. Dirty bytes that continue each other, also over block edges, are one run and are cut like a file;
//! bytes of the layers below stay the references they were, so nothing is hydrated.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_env::Env;
use hiloop_journal::Journal;
use hiloop_manifest::schema::{Block, ChunkDomain, ChunkRef, Key, KeyKind, Piece, Source, StagedAt, Value};
use hiloop_manifest::tree::{Access, Apply, Node, NodeRef, NodeSink, RootRef, missing_for};
use hiloop_manifest::{Chunker, CutPolicy, FrameLoc, LEVEL_HOT, encode_chunk};
use hiloop_types::{Error, Ino, NodeId, Result, ResultExt, limits};

use super::state::staged_ref;
use crate::hydrate::{DomainKeys, Hydrator};
use crate::layer::Layer;
use crate::ship::{Shipped, Shipper};

/// Manifest nodes that are fetched ahead of an apply, at a time.
const PREFETCH: usize = 64;

/// What building a tree needs.
pub(super) struct Sealing<'a> {
    pub journal: &'a Journal,
    pub hydrator: &'a Hydrator,
    pub keys: &'a DomainKeys,
    pub env: &'a Env,
}

impl Sealing<'_> {
    /// Ships a layer over `root`; the returned tree is complete in the store.
    pub fn ship(&self, layer: &Layer, root: Option<&RootRef>, mut shipper: Shipper) -> Result<(RootRef, Shipped)> {
        let blocks = self.chunks(layer, &mut shipper)?;
        let changes = layer.entries.iter().map(|(key, value)| {
            let value = match (blocks.get(key), value) {
                (_, None) => None,
                (Some(block), Some(_)) => Some(block.encode(None)),
                (None, Some(value)) => Some(value.encode(None)),
            };
            Ok((Bytes::copy_from_slice(key.as_bytes()), value.map(Bytes::from)))
        });
        if let Some(root) = root {
            self.prefetch(layer, root)?;
        }
        let mut apply = Apply::new(root, changes);
        let mut sink = Keeping { shipper: &mut shipper, new: Vec::new() };
        let applied = loop {
            match apply.run(self.hydrator, &mut sink) {
                Ok(applied) => break applied,
                Err(Access::Error(e)) => return Err(e),
                Err(Access::Miss(n)) => {
                    self.env.block_on(self.hydrator.node_now(&n))?;
                }
            }
        };
        let new = sink.new;
        let shipped = shipper.finish()?;
        for (place, node) in &new {
            self.hydrator.keep_node(place, node);
        }
        Ok((applied.root, shipped))
    }

    fn prefetch(&self, layer: &Layer, root: &RootRef) -> Result<()> {
        loop {
            let missing = missing_for(self.hydrator, root, layer.entries.keys().map(Key::as_bytes), PREFETCH)?;
            if missing.is_empty() {
                return Ok(());
            }
            self.env.block_on(self.hydrator.nodes_now(&missing))?;
            if missing.len() < PREFETCH / 2 {
                // What memory cannot hold at once would be asked for for ever; the apply fetches what is left.
                return Ok(());
            }
        }
    }

    /// Ships all dirty bytes; returns the blocks that changed by it.
    fn chunks(&self, layer: &Layer, shipper: &mut Shipper) -> Result<BTreeMap<Key, Block>> {
        let mut out = Out { sealing: self, shipper, blocks: BTreeMap::new(), last: None };
        let mut run: Option<Run> = None;
        let mut size = (Ino(0), 0);
        for (key, value) in &layer.entries {
            match (key.kind(), value) {
                (KeyKind::Attr(ino), Some(Value::Attr(a))) => size = (ino, a.size),
                (KeyKind::Block(ino, n), Some(Value::Block(block))) if block.is_dirty() => {
                    out.blocks.insert(key.clone(), block.clone());
                    let file_size = if size.0 == ino { size.1 } else { 0 };
                    for p in block.pieces() {
                        let at = n * limits::BLOCK + u64::from(p.start);
                        let Some(bytes) = out.dirty_bytes(p).at(format!("inode {ino}"))? else { continue };
                        if !run.as_ref().is_some_and(|r| r.ino == ino && r.end() == at) {
                            if let Some(r) = run.take() {
                                r.finish(&mut out)?;
                            }
                            run = Some(Run::new(ino, at, file_size));
                        }
                        if let Some(r) = &mut run {
                            r.push(&bytes, &mut out)?;
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some(r) = run {
            r.finish(&mut out)?;
        }
        Ok(out.blocks)
    }
}

/// Where a run's chunks go.
struct Out<'a, 'b> {
    sealing: &'a Sealing<'b>,
    shipper: &'a mut Shipper,
    blocks: BTreeMap<Key, Block>,
    /// The staged range read last: one write's range lies in several blocks.
    last: Option<(StagedAt, Bytes)>,
}

impl Out<'_, '_> {
    /// Bytes of a piece that only this node holds; `None` for the others.
    fn dirty_bytes(&mut self, p: &Piece) -> Result<Option<Bytes>> {
        let (at, skip) = match &p.source {
            Source::Inline(b) => return Ok(Some(b.clone())),
            Source::Staged { at, skip } => (*at, *skip as usize),
            Source::Zero | Source::Chunk { .. } => return Ok(None),
        };
        let whole = match &self.last {
            Some((known, b)) if *known == at => b.clone(),
            _ => {
                let b = self.sealing.journal.verify_staged(&staged_ref(&at))?;
                self.last = Some((at, b.clone()));
                b
            }
        };
        Ok(Some(whole.slice(skip..skip + p.len as usize)))
    }

    /// Ships one chunk of a file and points its blocks there.
    fn chunk(&mut self, ino: Ino, offset: u64, plain: &[u8]) -> Result<()> {
        let source = if plain.iter().all(|b| *b == 0) {
            Source::Zero
        } else {
            let encoded = encode_chunk(self.sealing.keys.of(ChunkDomain::Own), plain, LEVEL_HOT)?;
            let at = self.shipper.chunk(&encoded)?;
            let chunk = ChunkRef { domain: ChunkDomain::Own, id: encoded.id, at };
            self.sealing.hydrator.keep_chunk(&chunk, encoded.stored);
            self.sealing.hydrator.keep_plain(&chunk.id, plain);
            Source::Chunk { chunk, skip: 0 }
        };
        let whole = Piece { start: 0, len: plain.len() as u32, source };
        let (mut from, len) = (0u32, whole.len);
        while from < len {
            let at = offset + u64::from(from);
            let start = (at % limits::BLOCK) as u32;
            let to = len.min(from + limits::BLOCK as u32 - start);
            let key = Key::block(ino, at / limits::BLOCK);
            let block = self.blocks.get_mut(&key).ok_or_else(|| Error::internal(format!("a chunk lies outside its run at {key:?}")))?;
            if let Some(part) = whole.within(from, to) {
                block.put(Piece { start, ..part });
            }
            from = to;
        }
        Ok(())
    }
}

/// Dirty bytes of one file that continue each other.
struct Run {
    ino: Ino,
    /// File offset of the first byte that is not shipped yet.
    start: u64,
    bytes: Vec<u8>,
    chunker: Chunker,
}

impl Run {
    fn new(ino: Ino, start: u64, file_size: u64) -> Self {
        Self { ino, start, bytes: Vec::new(), chunker: Chunker::new(CutPolicy::for_len(file_size)) }
    }
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
    fn push(&mut self, bytes: &[u8], out: &mut Out<'_, '_>) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= 2 * self.chunker.longest() { self.cut(false, out) } else { Ok(()) }
    }
    fn finish(mut self, out: &mut Out<'_, '_>) -> Result<()> {
        self.cut(true, out)
    }
    fn cut(&mut self, eof: bool, out: &mut Out<'_, '_>) -> Result<()> {
        let mut done = 0;
        while eof || self.bytes.len() - done >= self.chunker.longest() {
            let Some(len) = self.chunker.next_cut(&self.bytes[done..], eof) else { break };
            out.chunk(self.ino, self.start + done as u64, &self.bytes[done..done + len])?;
            done += len;
        }
        self.bytes.drain(..done);
        self.start += done as u64;
        Ok(())
    }
}

/// Passes new nodes on and remembers them: who just made a node need not fetch it back.
struct Keeping<'a> {
    shipper: &'a mut Shipper,
    new: Vec<(NodeRef, Arc<Node>)>,
}

impl NodeSink for Keeping<'_> {
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc> {
        let loc = self.shipper.put(id, node)?;
        self.new.push((NodeRef { id: *id, loc }, node.clone()));
        Ok(loc)
    }
}

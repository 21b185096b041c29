//! Writing a pack.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use hiloop_types::limits::{CHUNK_MAX, PACK_MAX, PACK_TARGET};
use hiloop_types::{Error, Name, NodeId, PackId, Result};

use super::{ENTRY_LEN, FrameLoc, HEADER_FIXED, HEADER_MAGIC, PackKind, TRAILER_LEN, TRAILER_MAGIC, VERSION};
use crate::chunk::EncodedChunk;
use crate::codec::{self, Codec};

/// A frame in its stored form, as a repacker copies it from one pack to another without decoding.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Digest of the [`ChunkId`](hiloop_types::ChunkId) or [`NodeId`].
    pub id: [u8; 32],
    /// How `stored` is encoded.
    pub codec: Codec,
    /// Bytes once decoded.
    pub plain_len: u32,
    /// What is written.
    pub stored: &'a [u8],
}

/// Collects frames in memory until they are put as one object.
#[derive(Debug)]
pub struct PackBuilder {
    id: PackId,
    kind: PackKind,
    body: Vec<u8>,
    frames: HashMap<[u8; 32], Placed>,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    offset: u32,
    stored_len: u32,
    plain_len: u32,
    codec: Codec,
    crc: u32,
}

impl PackBuilder {
    /// Starts the pack `id`; `owner` is the workspace or base that writes it, for people and `fsck`.
    pub fn new(id: PackId, owner: &Name, kind: PackKind) -> Self {
        let name = owner.as_str().as_bytes();
        let mut body = Vec::with_capacity(HEADER_FIXED + name.len());
        body.extend_from_slice(HEADER_MAGIC);
        body.extend_from_slice(&VERSION.to_le_bytes());
        body.extend_from_slice(&[kind as u8, name.len() as u8]);
        body.extend_from_slice(&id.to_bytes());
        body.extend_from_slice(name);
        let crc = crc32c::crc32c(&body);
        body.extend_from_slice(&crc.to_le_bytes());
        Self { id, kind, body, frames: HashMap::new() }
    }

    /// The pack's name.
    pub const fn id(&self) -> &PackId {
        &self.id
    }

    /// Length in bytes of the object if it were finished now.
    pub fn len(&self) -> u64 {
        (self.body.len() + self.frames.len() * ENTRY_LEN + TRAILER_LEN) as u64
    }

    /// True while it holds no frame: such a pack need not be put.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// True once it holds [`PACK_TARGET`] bytes: finish it and start another.
    pub fn is_full(&self) -> bool {
        self.len() >= PACK_TARGET
    }

    /// Where a frame of this identity lies, if it is already here.
    pub fn find(&self, id: &[u8; 32]) -> Option<FrameLoc> {
        self.frames.get(id).map(|p| p.at(self.id))
    }

    /// Adds a chunk, or finds it here; see [`Self::add_frame`].
    pub fn add(&mut self, chunk: &EncodedChunk) -> Result<FrameLoc> {
        self.add_of(PackKind::Data, &Frame { id: chunk.id.0, codec: chunk.codec, plain_len: chunk.plain_len, stored: &chunk.stored })
    }

    /// Compresses a node's plain encoding with zstd at `level` and adds it, or finds it here; see [`Self::add_frame`].
    ///
    /// The same node with other child locations counts as found: its identity does not cover them.
    pub fn add_node(&mut self, id: &NodeId, plain: &[u8], level: i32) -> Result<FrameLoc> {
        if let Some(loc) = self.find(&id.0) {
            return Ok(loc);
        }
        let (codec, stored) = codec::compress(plain, level);
        self.add_of(PackKind::Node, &Frame { id: id.0, codec, plain_len: plain.len() as u32, stored: &stored })
    }

    /// Adds a frame of the pack's own kind unless one of this identity is here; answers where it lies.
    ///
    /// [`ErrorKind::Exhausted`](hiloop_types::ErrorKind::Exhausted) when the object would exceed [`PACK_MAX`]: finish this pack and add
    /// the frame to the next. A builder that is asked [`Self::is_full`] after each add never answers that.
    pub fn add_frame(&mut self, frame: &Frame<'_>) -> Result<FrameLoc> {
        let room = PACK_MAX.saturating_sub(self.len() + ENTRY_LEN as u64);
        let slot = match self.frames.entry(frame.id) {
            Entry::Occupied(found) => return Ok(found.get().at(self.id)),
            Entry::Vacant(slot) => slot,
        };
        if u64::from(frame.plain_len) > CHUNK_MAX || frame.stored.len() > frame.plain_len as usize {
            return Err(Error::invalid(format!("frame of {} stored and {} plain bytes", frame.stored.len(), frame.plain_len)).at(self.id));
        }
        if frame.stored.len() as u64 > room {
            return Err(Error::new(hiloop_types::ErrorKind::Exhausted, format!("pack has room for {room} more bytes")).at(self.id));
        }
        let placed = Placed {
            offset: self.body.len() as u32,
            stored_len: frame.stored.len() as u32,
            plain_len: frame.plain_len,
            codec: frame.codec,
            crc: crc32c::crc32c(frame.stored),
        };
        self.body.extend_from_slice(frame.stored);
        Ok(slot.insert(placed).at(self.id))
    }

    fn add_of(&mut self, kind: PackKind, frame: &Frame<'_>) -> Result<FrameLoc> {
        if self.kind != kind {
            return Err(Error::internal(format!("a {kind:?} frame was given to a {:?} pack", self.kind)).at(self.id));
        }
        self.add_frame(frame)
    }

    /// Writes directory and trailer; the result is the object.
    pub fn finish(self) -> Bytes {
        let Self { id, kind, mut body, frames } = self;
        let mut sorted: Vec<_> = frames.into_iter().collect();
        sorted.sort_unstable_by_key(|(id, _)| *id);
        let directory = body.len();
        body.reserve_exact(sorted.len() * ENTRY_LEN + TRAILER_LEN);
        for (id, placed) in &sorted {
            body.extend_from_slice(id);
            body.extend_from_slice(&placed.offset.to_le_bytes());
            body.extend_from_slice(&placed.stored_len.to_le_bytes());
            body.extend_from_slice(&placed.plain_len.to_le_bytes());
            body.push(placed.codec.to_u8());
            body.extend_from_slice(&placed.crc.to_le_bytes());
        }
        body.extend_from_slice(&(directory as u32).to_le_bytes());
        body.extend_from_slice(&(sorted.len() as u32).to_le_bytes());
        body.extend_from_slice(&VERSION.to_le_bytes());
        body.extend_from_slice(&[kind as u8, 0]);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&id.to_bytes()), &body[directory..]);
        body.extend_from_slice(&crc.to_le_bytes());
        body.extend_from_slice(TRAILER_MAGIC);
        Bytes::from(body)
    }
}

impl Placed {
    const fn at(&self, pack: PackId) -> FrameLoc {
        FrameLoc { pack, offset: self.offset, stored_len: self.stored_len, plain_len: self.plain_len, codec: self.codec }
    }
}

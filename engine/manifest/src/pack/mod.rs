//! Packs: one immutable object that holds many frames, each a chunk or a manifest node in its stored form.
//!
//! # Byte layout (version 1; integers little-endian)
//!
//! ```text
//! header     magic "hilopack" 8 | version u16 | kind u8 (0 data, 1 node) | owner length u8 | PackId 36 | owner name
//!            | crc32c u32 of the header before it
//! frames     stored bytes, back to back, in the order in which they were added
//! directory  one entry of 49 bytes a frame, ascending by identity:
//!            identity 32 | offset u32 | stored length u32 | plain length u32 | codec u8 | crc32c u32 of the stored bytes
//! trailer    directory offset u32 | entries u32 | version u16 | kind u8 | zero u8
//!            | crc32c u32 of (PackId, directory, trailer before it) | magic "hilotail" 8
//! ```
//!
//! Limits: an object has at most [`PACK_MAX`](hiloop_types::limits::PACK_MAX) bytes, a frame at most
//! [`CHUNK_MAX`](hiloop_types::limits::CHUNK_MAX) plain ones; a builder calls itself full at
//! [`PACK_TARGET`](hiloop_types::limits::PACK_TARGET).
//!
//! Reading: whoever holds a [`FrameLoc`] reads that range, decodes it and checks the identity; the directory is for those whose hint
//! failed, for `fsck` and for repacking. One ranged GET of the tail (64 KiB holds 1,300 entries) is enough to read it. The
//! directory's checksum covers the pack's id: a pack under another pack's key is found out.
//!
//! Recovery: a pack is put whole and create-only, so there are no torn ones; a bad checksum is corruption of the store.

mod builder;
mod directory;

pub use builder::{Frame, PackBuilder};
pub use directory::{DirectoryEntry, PackDirectory, PackHeader, TAIL_GUESS, Tail};
use hiloop_types::{Error, PackId, Result};

use crate::codec::Codec;

const VERSION: u16 = 1;
const HEADER_MAGIC: &[u8; 8] = b"hilopack";
const TRAILER_MAGIC: &[u8; 8] = b"hilotail";
/// The header without the owner's name, with its checksum.
const HEADER_FIXED: usize = 8 + 2 + 1 + 1 + PackId::LEN + 4;
const ENTRY_LEN: usize = 49;
const TRAILER_LEN: usize = 24;

/// What the frames of a pack are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PackKind {
    /// Chunks of files.
    Data = 0,
    /// Nodes of manifest trees.
    Node = 1,
}

impl PackKind {
    fn from_u8(n: u8) -> Result<Self> {
        match n {
            0 => Ok(Self::Data),
            1 => Ok(Self::Node),
            _ => Err(Error::corrupt(format!("unknown pack kind {n}"))),
        }
    }
}

/// Where a frame lies and how to unpack it. A hint: the identity that stands beside it decides (`protocols.md` 5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct FrameLoc {
    /// The object.
    pub pack: PackId,
    /// First byte in the object.
    pub offset: u32,
    /// Bytes in the object.
    pub stored_len: u32,
    /// Bytes once decoded.
    pub plain_len: u32,
    /// How to decode.
    pub codec: Codec,
}

#[cfg(test)]
mod tests;

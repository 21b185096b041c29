//! Reading a pack's ends: the directory at its tail and the header.

use bytes::Bytes;
use hiloop_types::limits::{CHUNK_MAX, KIB, PACK_MAX};
use hiloop_types::{Error, Name, NameKind, PackId, Result, ResultExt};

use super::{ENTRY_LEN, FrameLoc, HEADER_FIXED, HEADER_MAGIC, PackKind, TRAILER_LEN, TRAILER_MAGIC, VERSION};
use crate::codec::Codec;
use crate::wire::Reader;

/// A tail of this many bytes holds the directory of most packs.
pub const TAIL_GUESS: u64 = 64 * KIB;

/// What the tail of a pack yields.
#[derive(Clone, Debug)]
pub enum Tail {
    /// The directory.
    Whole(PackDirectory),
    /// The directory is longer: read this many bytes from the object's end.
    Need(u64),
}

/// The directory of one pack, searched in place.
#[derive(Clone, Debug)]
pub struct PackDirectory {
    id: PackId,
    kind: PackKind,
    entries: Bytes,
}

/// One frame of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Digest of the chunk's or node's id.
    pub id: [u8; 32],
    /// Where it lies.
    pub loc: FrameLoc,
    /// crc32c of the stored bytes.
    pub crc: u32,
}

impl DirectoryEntry {
    /// Checks the stored bytes without decoding them; [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) otherwise.
    pub fn check(&self, stored: &[u8]) -> Result<()> {
        if stored.len() == self.loc.stored_len as usize && crc32c::crc32c(stored) == self.crc {
            return Ok(());
        }
        Err(Error::corrupt("stored bytes do not match the directory's checksum").at(self.loc.offset).at(self.loc.pack))
    }
}

impl PackDirectory {
    /// Reads the directory of the pack `id` from the last bytes of its object, whose whole length is `object_len`.
    ///
    /// [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) when this is not that pack. Allocates nothing.
    pub fn decode(id: &PackId, object_len: u64, tail: &Bytes) -> Result<Tail> {
        Self::decode_tail(id, object_len, tail).at(id)
    }

    fn decode_tail(id: &PackId, object_len: u64, tail: &Bytes) -> Result<Tail> {
        let ends = (HEADER_FIXED + TRAILER_LEN) as u64;
        if !(ends..=PACK_MAX).contains(&object_len) || tail.len() as u64 > object_len {
            return Err(Error::corrupt(format!("a pack cannot have {object_len} bytes")));
        }
        let Some(at) = tail.len().checked_sub(TRAILER_LEN) else {
            return Ok(Tail::Need(TAIL_GUESS.min(object_len)));
        };
        let mut trailer = Reader::new(&tail[at..]);
        let (offset, count, version) = (trailer.u32()?, trailer.u32()?, trailer.u16()?);
        let (kind, zero, crc, magic) = (trailer.u8()?, trailer.u8()?, trailer.u32()?, trailer.array::<8>()?);
        if magic != *TRAILER_MAGIC {
            return Err(Error::corrupt("does not end with a pack's trailer"));
        }
        if version != VERSION || zero != 0 {
            return Err(Error::corrupt(format!("unknown pack version {version}")));
        }
        let kind = PackKind::from_u8(kind)?;
        let len = u64::from(count) * ENTRY_LEN as u64;
        if u64::from(offset) + len + TRAILER_LEN as u64 != object_len || (offset as usize) < HEADER_FIXED {
            return Err(Error::corrupt(format!("directory of {count} entries at {offset} does not fit {object_len} bytes")));
        }
        let need = len + TRAILER_LEN as u64;
        let Some(start) = tail.len().checked_sub(need as usize) else {
            return Ok(Tail::Need(need));
        };
        let covered = &tail[start..tail.len() - 12];
        if crc32c::crc32c_append(crc32c::crc32c(&id.to_bytes()), covered) != crc {
            return Err(Error::corrupt("the directory's checksum does not hold"));
        }
        let directory = Self { id: *id, kind, entries: tail.slice(start..at) };
        directory.check_entries(offset)?;
        Ok(Tail::Whole(directory))
    }

    fn check_entries(&self, frames_end: u32) -> Result<()> {
        let mut before: Option<[u8; 32]> = None;
        for i in 0..self.len() {
            let entry = self.entry(i)?;
            let end = u64::from(entry.loc.offset) + u64::from(entry.loc.stored_len);
            let placed = entry.loc.offset as usize >= HEADER_FIXED && end <= u64::from(frames_end);
            let sized = u64::from(entry.loc.plain_len) <= CHUNK_MAX && entry.loc.stored_len <= entry.loc.plain_len;
            if !placed || !sized || before.is_some_and(|b| b >= entry.id) {
                return Err(Error::corrupt(format!("directory entry {i} is impossible")));
            }
            before = Some(entry.id);
        }
        Ok(())
    }

    /// The pack.
    pub const fn id(&self) -> &PackId {
        &self.id
    }

    /// What its frames are.
    pub const fn kind(&self) -> PackKind {
        self.kind
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY_LEN
    }

    /// True for a pack without frames.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The frame of this identity.
    pub fn lookup(&self, id: &[u8; 32]) -> Option<DirectoryEntry> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let mid = low.midpoint(high);
            match self.entries[mid * ENTRY_LEN..][..32].cmp(id) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return self.entry(mid).ok(),
            }
        }
        None
    }

    /// All frames, ascending by identity.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = DirectoryEntry> + '_ {
        (0..self.len()).map(|i| self.entry(i).expect("decode read every entry once"))
    }

    /// All frames in the order in which they lie in the object, as a repacker copies them.
    pub fn in_order(&self) -> Vec<DirectoryEntry> {
        let mut entries: Vec<_> = self.entries().collect();
        entries.sort_unstable_by_key(|e| e.loc.offset);
        entries
    }

    fn entry(&self, i: usize) -> Result<DirectoryEntry> {
        let mut r = Reader::new(&self.entries[i * ENTRY_LEN..][..ENTRY_LEN]);
        let (id, offset, stored_len, plain_len) = (r.array()?, r.u32()?, r.u32()?, r.u32()?);
        let codec = Codec::from_u8(r.u8()?)?;
        Ok(DirectoryEntry { id, loc: FrameLoc { pack: self.id, offset, stored_len, plain_len, codec }, crc: r.u32()? })
    }
}

/// The header of a pack: who wrote it, for people and `fsck`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackHeader {
    /// The pack's own name.
    pub id: PackId,
    /// What its frames are.
    pub kind: PackKind,
    /// The workspace or base that wrote it.
    pub owner: Name,
}

impl PackHeader {
    /// With this many bytes from the object's start [`Self::decode`] has enough.
    pub const MAX: usize = HEADER_FIXED + Name::MAX;

    /// Reads the header from the first bytes of an object; [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) when it is none.
    pub fn decode(start: &[u8]) -> Result<Self> {
        let mut r = Reader::new(start);
        if r.array::<8>()? != *HEADER_MAGIC {
            return Err(Error::corrupt("does not start with a pack's header"));
        }
        let version = r.u16()?;
        if version != VERSION {
            return Err(Error::corrupt(format!("unknown pack version {version}")));
        }
        let (kind, name_len, id) = (r.u8()?, usize::from(r.u8()?), r.array()?);
        let name = r.bytes(name_len)?;
        if r.u32()? != crc32c::crc32c(&start[..HEADER_FIXED - 4 + name_len]) {
            return Err(Error::corrupt("the pack header's checksum does not hold"));
        }
        let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("the pack's owner is not a name"))?;
        let owner = Name::new(NameKind::Workspace, name).map_err(|e| Error::corrupt(format!("the pack's owner: {e}")))?;
        Ok(Self { id: PackId::from_bytes(&id), kind: PackKind::from_u8(kind)?, owner })
    }
}

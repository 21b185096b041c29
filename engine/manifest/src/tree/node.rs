//! One node: byte layout, checks, and search in place.

use bytes::Bytes;
use hiloop_types::limits::CHUNK_MAX;
use hiloop_types::{Error, NodeId, PackId, Result, ResultExt};

use super::{KEY_MAX, LEVEL_MAX, NodeRef, VALUE_MAX};
use crate::FrameLoc;
use crate::codec::{self, Codec};
use crate::wire::Reader;

/// First bytes of a node: "HN" and the version.
pub(super) const MAGIC: [u8; 3] = *b"HN\x01";
/// Magic, level, number of entries, length of the length column, length of the data.
pub(super) const HEADER_LEN: usize = 16;
/// Value of an inner entry: identity and number of records.
pub(super) const CHILD_LEN: usize = NodeId::LEN + 8;
/// Place of one child: pack index, offset, stored length, plain length, codec.
const PLACE_LEN: usize = 15;

/// A decoded node: one shared buffer and a table of where each entry lies in it.
///
/// # Byte layout (version 1; integers little-endian)
///
/// ```text
/// header   "HN" | version u8 | level u8 | entries u32 | length column u32 | data u32      (16 bytes)
/// lengths  per entry: key length, value length, both LEB128
/// data     per entry: key, value; in an inner node the value is the child's identity 32 and its records u64
/// ------   the identity is BLAKE3 of everything above
/// places   inner nodes only: packs u16 | PackId 36 each, in order of first use
///          | per entry: pack index u16, offset u32, stored length u32, plain length u32, codec u8
///          | crc32c u32 of the places before it
/// ```
///
/// Keys ascend strictly. Limits: 1 MiB in all, keys and values as [`KEY_MAX`] and [`VALUE_MAX`] say, levels to [`LEVEL_MAX`]. Only an
/// empty tree's root has no entries. A bad byte anywhere is corruption: the node is fetched again or from another place.
#[derive(Debug)]
pub struct Node {
    bytes: Bytes,
    level: u8,
    records: u64,
    slots: Box<[Slot]>,
    data_end: u32,
}

/// Where an entry lies: its value ends where the next key starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) key: u32,
    pub(super) value: u32,
}

/// An entry of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Its first key.
    pub key: &'a [u8],
    /// The node.
    pub node: NodeRef,
    /// Records in its subtree.
    pub records: u64,
}

impl Node {
    /// Restores a node from a frame, as it lies in a pack, and checks its identity.
    ///
    /// [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) when the bytes are not the node that `node` names. Allocates at most the
    /// frame's plain length and eight bytes an entry.
    pub fn from_frame(node: &NodeRef, stored: &Bytes) -> Result<Self> {
        codec::decompress(node.loc.codec, stored, node.loc.plain_len)
            .and_then(|plain| Self::decode(&node.id, plain))
            .at(node.id)
            .at(node.loc.pack)
    }

    /// Reads a plain encoding and checks its identity; [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) otherwise.
    pub fn decode(id: &NodeId, plain: Bytes) -> Result<Self> {
        let node = Self::parse(plain)?;
        let found = node.id();
        if found == *id { Ok(node) } else { Err(Error::corrupt(format!("content is {found}"))) }
    }

    /// A node whose parts the writer has just laid out.
    pub(super) fn from_parts(bytes: Bytes, level: u8, records: u64, slots: Box<[Slot]>, data_end: u32) -> Self {
        Self { bytes, level, records, slots, data_end }
    }

    /// Checks everything but the identity.
    pub(super) fn parse(bytes: Bytes) -> Result<Self> {
        if bytes.len() as u64 > CHUNK_MAX {
            return Err(Error::corrupt(format!("node of {} bytes is above the limit", bytes.len())));
        }
        let mut r = Reader::new(&bytes);
        if r.array::<3>()? != MAGIC {
            return Err(Error::corrupt("not a manifest node of a known version"));
        }
        let (level, count, lengths_len, data_len) = (r.u8()?, r.u32()? as usize, r.u32()? as usize, r.u32()? as usize);
        // Two bytes of lengths an entry at least: checked before the table is allocated.
        if level > LEVEL_MAX || count > lengths_len / 2 || (count == 0 && level > 0) {
            return Err(Error::corrupt(format!("node header of {count} entries on level {level} is impossible")));
        }
        let mut lengths = Reader::new(r.bytes(lengths_len)?);
        let data = r.bytes(data_len)?;
        let data_start = HEADER_LEN + lengths_len;
        let mut slots = Vec::with_capacity(count);
        let (mut at, mut before, mut records) = (0usize, None, 0u64);
        for _ in 0..count {
            let (key_len, value_len) = (lengths.varint()? as usize, lengths.varint()? as usize);
            let value_ok = if level == 0 { value_len <= VALUE_MAX } else { value_len == CHILD_LEN };
            let entry = data.get(at..).and_then(|d| d.get(..key_len + value_len));
            let (true, true, Some(entry)) = (key_len <= KEY_MAX, value_ok, entry) else {
                return Err(Error::corrupt("node entry is too long"));
            };
            let (key, value) = entry.split_at(key_len);
            if before.is_some_and(|b| b >= key) {
                return Err(Error::corrupt("node keys do not ascend"));
            }
            let own = if level == 0 { 1 } else { child_records(value) };
            records = records.checked_add(own).filter(|_| own > 0).ok_or_else(|| Error::corrupt("node counts impossible records"))?;
            slots.push(Slot { key: (data_start + at) as u32, value: (data_start + at + key_len) as u32 });
            before = Some(key);
            at += key_len + value_len;
        }
        if !lengths.is_empty() || at != data_len {
            return Err(Error::corrupt("node columns have unused bytes"));
        }
        if level > 0 {
            check_places(&mut r, count)?;
        }
        if !r.is_empty() {
            return Err(Error::corrupt("node has unused bytes at its end"));
        }
        let data_end = (data_start + data_len) as u32;
        Ok(Self { level, records, slots: slots.into_boxed_slice(), data_end, bytes })
    }

    /// Computes the identity: BLAKE3 of the encoding without places.
    pub fn id(&self) -> NodeId {
        NodeId(*blake3::hash(&self.bytes[..self.data_end as usize]).as_bytes())
    }

    /// The plain encoding.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// 0 for a leaf, else one more than its children's.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Records in the subtree.
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True only for the root of an empty tree.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of memory that it takes, for a cache's accounts.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + size_of_val(&*self.slots)
    }

    /// The key of entry `i`. Panics when there is no such entry, as a slice does.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let slot = self.slots[i];
        &self.bytes[slot.key as usize..slot.value as usize]
    }

    /// The value of entry `i` in place. Panics when there is no such entry.
    #[inline]
    pub fn value(&self, i: usize) -> &[u8] {
        &self.bytes[self.value_range(i)]
    }

    /// Key and value of entry `i`, sharing the node's buffer. Panics when there is no such entry.
    pub fn record(&self, i: usize) -> (Bytes, Bytes) {
        let slot = self.slots[i];
        (self.bytes.slice(slot.key as usize..slot.value as usize), self.bytes.slice(self.value_range(i)))
    }

    fn value_range(&self, i: usize) -> std::ops::Range<usize> {
        let end = self.slots.get(i + 1).map_or(self.data_end, |next| next.key);
        self.slots[i].value as usize..end as usize
    }

    /// The child `i` of an inner node. [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) when there is none.
    pub fn child(&self, i: usize) -> Result<Child<'_>> {
        if self.level == 0 || i >= self.len() {
            return Err(Error::corrupt("node has no such child"));
        }
        let value = self.value(i);
        let mut id = NodeId([0; 32]);
        id.0.copy_from_slice(&value[..32]);
        let places = &self.bytes[self.data_end as usize..];
        let packs = usize::from(u16::from_le_bytes([places[0], places[1]]));
        let mut r = Reader::new(&places[2 + packs * PackId::LEN + i * PLACE_LEN..]);
        let pack = usize::from(r.u16()?);
        let (offset, stored_len, plain_len, codec) = (r.u32()?, r.u32()?, r.u32()?, Codec::from_u8(r.u8()?)?);
        let pack = PackId::from_bytes(&Reader::new(&places[2 + pack * PackId::LEN..]).array()?);
        let loc = FrameLoc { pack, offset, stored_len, plain_len, codec };
        Ok(Child { key: self.key(i), node: NodeRef { id, loc }, records: child_records(value) })
    }

    /// The first entry whose key is not below `key`; [`Self::len`] when all are.
    #[inline]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.slots.partition_point(|s| &self.bytes[s.key as usize..s.value as usize] < key)
    }

    /// The last entry whose key is not above `key`: in an inner node, the child that `key` belongs to.
    #[inline]
    pub fn floor(&self, key: &[u8]) -> Option<usize> {
        self.slots.partition_point(|s| &self.bytes[s.key as usize..s.value as usize] <= key).checked_sub(1)
    }

    /// The entry with exactly this key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        self.slots.binary_search_by(|s| self.bytes[s.key as usize..s.value as usize].cmp(key)).ok()
    }

    /// Where a descent to `key` goes on: its child, or the first one for a key below all.
    pub(super) fn child_for(&self, key: &[u8]) -> usize {
        self.floor(key).unwrap_or(0)
    }
}

/// Appends the places of an inner node's children.
pub(super) fn put_places(out: &mut Vec<u8>, places: &[FrameLoc]) {
    let start = out.len();
    let mut packs: Vec<PackId> = Vec::new();
    let mut index = std::collections::HashMap::new();
    let indexes: Vec<u16> = places
        .iter()
        .map(|p| {
            *index.entry(p.pack).or_insert_with(|| {
                packs.push(p.pack);
                packs.len() as u16 - 1
            })
        })
        .collect();
    out.extend_from_slice(&(packs.len() as u16).to_le_bytes());
    for pack in &packs {
        out.extend_from_slice(&pack.to_bytes());
    }
    for (place, pack) in places.iter().zip(indexes) {
        out.extend_from_slice(&pack.to_le_bytes());
        out.extend_from_slice(&place.offset.to_le_bytes());
        out.extend_from_slice(&place.stored_len.to_le_bytes());
        out.extend_from_slice(&place.plain_len.to_le_bytes());
        out.push(place.codec.to_u8());
    }
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn check_places(r: &mut Reader<'_>, count: usize) -> Result<()> {
    let packs_field = r.array::<2>()?;
    let packs = usize::from(u16::from_le_bytes(packs_field));
    let table = r.bytes(packs * PackId::LEN)?;
    let places = r.bytes(count * PLACE_LEN)?;
    let crc = [&packs_field, table, places].into_iter().fold(0, |crc, part: &[u8]| crc32c::crc32c_append(crc, part));
    if r.u32()? != crc {
        return Err(Error::corrupt("checksum over the places of a node's children does not hold"));
    }
    let (places, _) = places.as_chunks::<PLACE_LEN>();
    for place in places {
        if usize::from(u16::from_le_bytes([place[0], place[1]])) >= packs {
            return Err(Error::corrupt("a node's child lies in a pack that is not in its table"));
        }
        Codec::from_u8(place[PLACE_LEN - 1])?;
    }
    Ok(())
}

/// Records of a child, from an inner entry's value of [`CHILD_LEN`] bytes.
fn child_records(value: &[u8]) -> u64 {
    value.last_chunk::<8>().map_or(0, |n| u64::from_le_bytes(*n))
}

/// The value of an inner entry.
pub(super) fn child_value(id: &NodeId, records: u64) -> [u8; CHILD_LEN] {
    let mut value = [0; CHILD_LEN];
    value[..NodeId::LEN].copy_from_slice(&id.0);
    value[NodeId::LEN..].copy_from_slice(&records.to_le_bytes());
    value
}

//! What the cache holds, as rows of [`Column::Residency`]: read once at opening, written behind by the tick.
//!
//! | key | value |
//! |---|---|
//! | `v` | format version, `1u32` little endian |
//! | `r`, slab id `u32`, offset `u32`, both big endian | key 32 bytes, record length `u32`, last use in seconds since 1970 `u32`, little endian |
//!
//! Rows are hints. They are written after the record and removed when its bytes are punched, without ordering between the two
//! disks: a row without a record is found by the record's checksum, a record without a row is punched at the next opening.

use hiloop_types::{Column, MetaBatch};

use crate::frame::CacheKey;
use crate::record::Place;

pub(crate) const VERSION_KEY: &[u8] = b"v";
pub(crate) const VERSION: [u8; 4] = 1u32.to_le_bytes();
pub(crate) const ROWS: &[u8] = b"r";

/// An entry as it stands in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) key: CacheKey,
    pub(crate) len: u32,
    pub(crate) last_use: u32,
}

impl Row {
    pub(crate) fn put(&self, batch: &mut MetaBatch) {
        let mut value = Vec::with_capacity(40);
        value.extend_from_slice(&self.key.0);
        value.extend_from_slice(&self.len.to_le_bytes());
        value.extend_from_slice(&self.last_use.to_le_bytes());
        batch.put(Column::Residency, row_key(self.place), value);
    }

    /// Reads a row; `None` for what no version wrote.
    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Option<Self> {
        let place = key.strip_prefix(ROWS)?;
        let (slab, at) = place.split_first_chunk::<4>()?;
        let (digest, rest) = value.split_first_chunk::<32>()?;
        let (len, last_use) = rest.split_first_chunk::<4>()?;
        Some(Self {
            place: Place { slab: u32::from_be_bytes(*slab), at: u32::from_be_bytes(at.try_into().ok()?) },
            key: CacheKey(*digest),
            len: u32::from_le_bytes(*len),
            last_use: u32::from_le_bytes(last_use.try_into().ok()?),
        })
    }
}

pub(crate) fn row_key(place: Place) -> Vec<u8> {
    [ROWS, &place.slab.to_be_bytes(), &place.at.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use hiloop_types::MetaOp;

    use super::*;

    #[test]
    fn todays_rows() {
        let row = Row { place: Place { slab: 2, at: 4096 }, key: CacheKey([9; 32]), len: 77, last_use: 0x0102_0304 };
        let mut b = MetaBatch::new();
        row.put(&mut b);
        let MetaOp::Put(_, key, value) = &b.ops()[0] else { panic!("a put") };
        assert_eq!(key, b"r\0\0\0\x02\0\0\x10\0");
        assert_eq!(value[..32], [9; 32]);
        assert_eq!(value[32..], [77, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(Row::parse(key, value), Some(row));
        for cut in 0..value.len() {
            assert_eq!(Row::parse(key, &value[..cut]), None);
        }
        for cut in 0..key.len() {
            assert_eq!(Row::parse(&key[..cut], value), None);
        }
    }
}

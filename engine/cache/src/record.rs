//! An entry as it stands in a slab, and a slab's first block.
//!
//! Slab, little endian: one 4 KiB block holding `HLSB`, version `1u32`, slab id `u32`, CRC32C `u32` of the twelve bytes
//! before it, zeros. Then records, back to back, in the order they were filled, never overwritten; evicted ones become holes.
//!
//! Record:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `HLRC` |
//! | 1 | codec of the frame |
//! | 3 | zero |
//! | 4 | slab id |
//! | 4 | offset of the record in the slab |
//! | 4 | stored length |
//! | 4 | plain length |
//! | 32 | key |
//! | 4 | CRC32C of the bytes before it and of the table after it |
//! | 4 each | table: CRC32C of each 16 KiB of the stored bytes |
//! | stored length | the stored bytes |
//!
//! The place stands in the record, so that a block that landed elsewhere, or a stale index row, is never taken for the entry.

use bytes::Bytes;
use hiloop_types::limits::KIB;

use crate::frame::{CacheKey, Frame};
use crate::options::BLOCK;

/// Bytes under one checksum (`protocols.md` 5.4).
const SPAN: usize = 16 * KIB as usize;
/// Bytes before the checksum table.
pub(crate) const HEADER: usize = 60;
const MAGIC: [u8; 4] = *b"HLRC";
const SLAB_MAGIC: [u8; 4] = *b"HLSB";
const SLAB_VERSION: u32 = 1;

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub slab: u32,
    pub at: u32,
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is a hole, or not there.
    Vanished,
    /// It is something else than what was written.
    Corrupt,
}

/// Bytes of the record of a frame, `None` if no record can be that long.
pub(crate) fn length(stored: usize) -> Option<u32> {
    let table = stored.div_ceil(SPAN).checked_mul(4)?;
    u32::try_from(HEADER.checked_add(table)?.checked_add(stored)?).ok()
}

/// Header and table of a record; the stored bytes follow.
pub(crate) fn head(place: Place, key: &CacheKey, frame: &Frame) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + frame.stored.len().div_ceil(SPAN) * 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[frame.codec, 0, 0, 0]);
    for n in [place.slab, place.at, frame.stored.len() as u32, frame.plain_len] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    out.extend_from_slice(&key.0);
    let table: Vec<u8> = frame.stored.chunks(SPAN).flat_map(|s| crc32c::crc32c(s).to_le_bytes()).collect();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), &table);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&table);
    out
}

/// Reads a record that must be the one of `key` at `place`.
pub(crate) fn decode(place: Place, key: &CacheKey, record: Vec<u8>) -> Result<Frame, Fault> {
    let Some((head, rest)) = record.split_at_checked(HEADER) else { return Err(Fault::Corrupt) };
    if head.iter().all(|b| *b == 0) {
        return Err(Fault::Vanished);
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let stored = word(16) as usize;
    let table_len = stored.div_ceil(SPAN) * 4;
    if head[..4] != MAGIC || word(8) != place.slab || word(12) != place.at || head[24..56] != key.0 || rest.len() != table_len + stored {
        return Err(Fault::Corrupt);
    }
    let (table, bytes) = rest.split_at(table_len);
    if word(56) != crc32c::crc32c_append(crc32c::crc32c(&head[..56]), table) {
        return Err(Fault::Corrupt);
    }
    for (span, crc) in bytes.chunks(SPAN).zip(table.chunks_exact(4)) {
        if crc32c::crc32c(span).to_le_bytes() != *crc {
            return Err(Fault::Corrupt);
        }
    }
    let (codec, plain_len) = (head[4], word(20));
    Ok(Frame { codec, plain_len, stored: Bytes::from(record).slice(HEADER + table_len..) })
}

/// Makes magic and header checksum of a record right, whatever it holds: a fuzzer would never guess them.
pub(crate) fn seal(record: &mut [u8]) {
    let stored = u32::from_le_bytes([record[16], record[17], record[18], record[19]]) as usize;
    record[..4].copy_from_slice(&MAGIC);
    let (head, rest) = record.split_at_mut(HEADER);
    let (table, bytes) = rest.split_at_mut(rest.len().min(stored.div_ceil(SPAN) * 4));
    for (crc, span) in table.chunks_exact_mut(4).zip(bytes.chunks(SPAN)) {
        crc.copy_from_slice(&crc32c::crc32c(span).to_le_bytes());
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..56]), table);
    head[56..].copy_from_slice(&crc.to_le_bytes());
}

/// The first block of a slab.
pub(crate) fn slab_header(id: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK as usize);
    out.extend_from_slice(&SLAB_MAGIC);
    out.extend_from_slice(&SLAB_VERSION.to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
    out.resize(BLOCK as usize, 0);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place = Place { slab: 3, at: 4096 };

    fn encode(key: &CacheKey, frame: &Frame) -> Vec<u8> {
        let mut out = head(PLACE, key, frame);
        out.extend_from_slice(&frame.stored);
        out
    }

    #[test]
    fn todays_bytes() {
        let key = CacheKey([0xab; 32]);
        let frame = Frame { codec: 1, plain_len: 9, stored: Bytes::from_static(b"stored") };
        let hex: String = encode(&key, &frame).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "484c52430100000003000000001000000600000009000000\
             abababababababababababababababababababababababababababababababab\
             4859836f48d6379a73746f726564"
        );
        let hex: String = slab_header(7)[..20].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "484c534201000000070000008e69e9cc00000000");
    }

    #[test]
    fn a_hole_is_vanished_not_corrupt() {
        assert_eq!(decode(PLACE, &CacheKey([0; 32]), vec![0; 100]), Err(Fault::Vanished));
    }

    proptest! {
        #[test]
        fn round_trip(key: [u8; 32], codec: u8, plain_len: u32, stored in proptest::collection::vec(any::<u8>(), 0..40_000)) {
            let frame = Frame { codec, plain_len, stored: stored.into() };
            let record = encode(&CacheKey(key), &frame);
            prop_assert_eq!(Some(record.len() as u32), length(frame.stored.len()));
            prop_assert_eq!(decode(PLACE, &CacheKey(key), record), Ok(frame));
        }

        #[test]
        fn any_flipped_bit_is_found(stored in proptest::collection::vec(any::<u8>(), 0..20_000), at: prop::sample::Index, bit in 0u8..8) {
            let key = CacheKey([7; 32]);
            let mut record = encode(&key, &Frame { codec: 1, plain_len: 2, stored: stored.into() });
            let at = at.index(record.len());
            record[at] ^= 1 << bit;
            prop_assert_eq!(decode(PLACE, &key, record), Err(Fault::Corrupt));
        }

        #[test]
        fn a_partial_hole_is_never_served(stored in proptest::collection::vec(1u8.., 1..50_000), from: prop::sample::Index, to: prop::sample::Index) {
            let key = CacheKey([7; 32]);
            let mut record = encode(&key, &Frame { codec: 1, plain_len: 2, stored: stored.into() });
            let (from, to) = (from.index(record.len()), to.index(record.len()));
            let whole = record.clone();
            record[from.min(to)..=from.max(to)].fill(0);
            prop_assume!(record != whole);
            prop_assert!(decode(PLACE, &key, record).is_err());
        }

        #[test]
        fn rubbish_never_panics(record in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(PLACE, &CacheKey([7; 32]), record);
        }

        #[test]
        fn another_key_or_place_is_refused(slab: u32, at: u32) {
            prop_assume!(Place { slab, at } != PLACE);
            let key = CacheKey([7; 32]);
            let record = encode(&key, &Frame { codec: 1, plain_len: 2, stored: Bytes::from_static(b"x") });
            prop_assert_eq!(decode(Place { slab, at }, &key, record.clone()), Err(Fault::Corrupt));
            prop_assert_eq!(decode(PLACE, &CacheKey([8; 32]), record), Err(Fault::Corrupt));
        }
    }
}

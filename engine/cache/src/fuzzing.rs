//! What holds for any bytes that this crate decodes, for the fuzz targets and their regression tests (`fuzz/`). A function that returns
//! has found nothing, and says whether the bytes were accepted as anything; it panics where a rule is broken.

use hiloop_types::{MetaBatch, MetaOp};

use crate::frame::CacheKey;
use crate::record::{self, HEADER, Place, decode, head};
use crate::residency::Row;

/// A record of a slab: as it comes, and with magic and header checksum made right.
pub fn record(bytes: &[u8]) -> bool {
    let Some(header) = bytes.get(..HEADER) else {
        return decode(Place { slab: 0, at: 0 }, &CacheKey([0; 32]), bytes.to_vec()).is_ok();
    };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let place = Place { slab: word(8), at: word(12) };
    let mut key = CacheKey([0; 32]);
    key.0.copy_from_slice(&header[24..56]);
    let mut accepted = false;
    for sealed in [false, true] {
        let mut b = bytes.to_vec();
        if sealed {
            record::seal(&mut b);
        }
        let Ok(frame) = decode(place, &key, b) else { continue };
        assert_eq!(record::length(frame.stored.len()).map(|n| n as usize), Some(bytes.len()));
        let mut again = head(place, &key, &frame);
        again.extend_from_slice(&frame.stored);
        assert_eq!(decode(place, &key, again.clone()).ok().as_ref(), Some(&frame));
        assert!(decode(Place { slab: place.slab ^ 1, ..place }, &key, again).is_err(), "a record is taken at another place");
        accepted = true;
    }
    accepted
}

/// A row of the index: what is read is written the same.
pub fn row(bytes: &[u8]) -> bool {
    let (key, value) = bytes.split_at(bytes.len().min(9));
    let Some(row) = Row::parse(key, value) else { return false };
    let mut batch = MetaBatch::new();
    row.put(&mut batch);
    let [MetaOp::Put(_, k, v)] = batch.ops() else { panic!("a row is one put") };
    assert_eq!((&k[..], &v[..]), (key, value));
    true
}

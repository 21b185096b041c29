//! What holds for any bytes that this crate decodes, for the fuzz targets and their regression tests (`fuzz/`). A function that returns
//! has found nothing, and says whether the bytes were accepted as anything; it panics where a rule is broken.

use std::fmt::Debug;

use hiloop_manifest::schema::StagedAt;

use crate::catalog::{
    BaseDoc, CutOff, Deleted, Document, DomainDoc, Head, Heartbeat, Intent, Lease, LineageEvent, SnapshotDoc, decode, encode,
};
use crate::forward::Forward;
use crate::layer::Layer;
use crate::record::{Batch, PublishedDoc, StreamDoc, replay};

/// A document of the catalog, whose kind the first byte picks: what is read is written so that it reads the same.
pub fn document(bytes: &[u8]) -> bool {
    fn check<T: Document + PartialEq + Debug>(bytes: &[u8]) -> bool {
        let Ok(doc) = decode::<T>("fuzzed", bytes) else { return false };
        let (key, again) = encode(&doc).expect("what was read can be written");
        assert!(key.starts_with(T::PREFIX));
        assert_eq!(decode::<T>(&key, &again).expect("what was written can be read"), doc);
        true
    }
    let Some((kind, rest)) = bytes.split_first() else { return false };
    match kind.to_ascii_lowercase() {
        b'h' => check::<Head>(rest),
        b'b' => check::<BaseDoc>(rest),
        b's' => check::<SnapshotDoc>(rest),
        b'd' => {
            if let Ok(doc) = decode::<DomainDoc>("fuzzed", rest) {
                let _ = doc.key_bytes();
            }
            check::<DomainDoc>(rest)
        }
        b'n' => check::<Heartbeat>(rest),
        b'i' => check::<Intent>(rest),
        b'l' => check::<Lease>(rest),
        b'x' => check::<Deleted>(rest),
        b'c' => check::<CutOff>(rest),
        b'e' => check::<LineageEvent>(rest),
        b'f' => {
            let Ok(doc) = Forward::decode(rest) else { return false };
            let again = serde_json::to_vec(&doc).expect("what was read can be written");
            assert_eq!(Forward::decode(&again).expect("what was written can be read"), doc);
            true
        }
        _ => false,
    }
}

/// The body of a journal record: changes, or a document of a stream. Changes are replayed, too.
pub fn journal_body(bytes: &[u8]) -> bool {
    let mut accepted = false;
    let staged = [StagedAt { slab: 3, offset: 4096, len: 70_000, crc: 1 }, StagedAt { slab: 4, offset: 0, len: 512, crc: 2 }];
    if let Ok(batch) = Batch::decode(bytes, &staged) {
        let (body, list) = batch.encode();
        assert_eq!(Batch::decode(&body, &list).expect("what was written can be read"), batch);
        let mut layer = Layer::default();
        // Two times: a record may meet what an earlier one set.
        let _ = replay(&mut layer, batch.clone());
        let _ = replay(&mut layer, batch);
        accepted = true;
    }
    if let Ok(doc) = serde_json::from_slice::<StreamDoc>(bytes) {
        let again = serde_json::to_vec(&doc).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<StreamDoc>(&again).expect("what was written can be read"), doc);
        accepted = true;
    }
    if let Ok(doc) = serde_json::from_slice::<PublishedDoc>(bytes) {
        let again = serde_json::to_vec(&doc).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<PublishedDoc>(&again).expect("what was written can be read"), doc);
        accepted = true;
    }
    accepted
}

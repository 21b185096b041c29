use bytes::Bytes;
use hiloop_types::limits::{PACK_MAX, PACK_TARGET};
use hiloop_types::{ErrorKind, Name, NameKind, NodeId, Owner, PackId, Session, WriterEpoch};
use proptest::prelude::*;

use super::*;
use crate::chunk::{DomainKey, EncodedChunk, decode_chunk, encode_chunk, verify};
use crate::codec::LEVEL_HOT;
use crate::testing::noise;

const KEY: DomainKey = DomainKey([3; 32]);

fn id(sequence: u64) -> PackId {
    PackId { owner: Owner(0xa1), epoch: WriterEpoch(2), session: Session(0xbeef), sequence, attempt: 7 }
}

fn builder(kind: PackKind) -> PackBuilder {
    PackBuilder::new(id(1), &Name::new(NameKind::Workspace, "ws-1").unwrap(), kind)
}

fn chunk(plain: &[u8]) -> EncodedChunk {
    encode_chunk(&KEY, plain, LEVEL_HOT).unwrap()
}

fn whole(object: &Bytes) -> PackDirectory {
    match PackDirectory::decode(&id(1), object.len() as u64, object).unwrap() {
        Tail::Whole(directory) => directory,
        Tail::Need(n) => panic!("the whole object is not enough, {n} wanted"),
    }
}

#[test]
fn frames_are_found_by_location_and_by_identity() {
    let mut pack = builder(PackKind::Data);
    let plains: Vec<Vec<u8>> = (0..200).map(|i| if i % 2 == 0 { noise(i, 900) } else { vec![i as u8; 3000] }).collect();
    let placed: Vec<_> = plains.iter().map(|p| (chunk(p), pack.add(&chunk(p)).unwrap())).collect();
    let len = pack.len();
    let object = pack.finish();
    assert_eq!(len, object.len() as u64);
    let directory = whole(&object);
    assert_eq!((directory.len(), directory.kind(), *directory.id()), (200, PackKind::Data, id(1)));
    for (plain, (chunk, loc)) in plains.iter().zip(&placed) {
        let stored = object.slice(loc.offset as usize..(loc.offset + loc.stored_len) as usize);
        let back = decode_chunk(loc.codec, &stored, loc.plain_len).unwrap();
        verify(&KEY, &chunk.id, &back).unwrap();
        assert_eq!(back, plain);
        let entry = directory.lookup(&chunk.id.0).unwrap();
        assert_eq!(entry.loc, *loc);
        entry.check(&stored).unwrap();
        assert!(entry.check(&stored[1..]).is_err());
    }
    assert!(directory.lookup(&[0xff; 32]).is_none());
    let in_order: Vec<_> = directory.in_order().iter().map(|e| e.loc).collect();
    assert_eq!(in_order, placed.iter().map(|(_, loc)| *loc).collect::<Vec<_>>());
    let header = PackHeader::decode(&object[..PackHeader::MAX]).unwrap();
    assert_eq!((header.id, header.kind, header.owner.as_str()), (id(1), PackKind::Data, "ws-1"));
}

#[test]
fn equal_content_is_stored_once() {
    let mut pack = builder(PackKind::Data);
    let first = pack.add(&chunk(b"same")).unwrap();
    let len = pack.len();
    assert_eq!(pack.add(&chunk(b"same")).unwrap(), first);
    assert_eq!(pack.len(), len);
    assert_eq!(pack.find(&chunk(b"same").id.0), Some(first));
    assert_eq!(pack.find(&chunk(b"other").id.0), None);
}

#[test]
fn a_pack_fills_and_then_refuses() {
    let mut pack = builder(PackKind::Data);
    let mut n = 0;
    while !pack.is_full() {
        pack.add(&chunk(&noise(n, 1 << 20))).unwrap();
        n += 1;
    }
    assert!((PACK_TARGET..PACK_TARGET + (1 << 20) + 1000).contains(&pack.len()));
    let refused = loop {
        n += 1;
        if let Err(e) = pack.add(&chunk(&noise(n, 1 << 20))) {
            break e;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    let object = pack.finish();
    assert!(object.len() as u64 <= PACK_MAX);
    whole(&object);
}

#[test]
fn kinds_do_not_mix() {
    assert_eq!(builder(PackKind::Node).add(&chunk(b"x")).unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(builder(PackKind::Data).add_node(&NodeId([0; 32]), b"x", LEVEL_HOT).unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn a_short_tail_says_what_it_needs() {
    let mut pack = builder(PackKind::Data);
    for i in 0..3000u32 {
        pack.add(&chunk(&i.to_le_bytes())).unwrap();
    }
    let object = pack.finish();
    let len = object.len() as u64;
    let tail = |n: u64| object.slice((len - n) as usize..);
    let Tail::Need(need) = PackDirectory::decode(&id(1), len, &tail(TAIL_GUESS)).unwrap() else { panic!("147 KB in 64 KiB") };
    let Tail::Whole(directory) = PackDirectory::decode(&id(1), len, &tail(need)).unwrap() else { panic!("asked for too little") };
    assert_eq!(directory.len(), 3000);
    assert!(matches!(PackDirectory::decode(&id(1), len, &tail(need - 1)).unwrap(), Tail::Need(n) if n == need));
    assert!(matches!(PackDirectory::decode(&id(1), len, &tail(3)).unwrap(), Tail::Need(_)));
    assert_eq!(PackDirectory::decode(&id(2), len, &object).unwrap_err().kind(), ErrorKind::Corrupt, "another pack's key");
    assert!(PackDirectory::decode(&id(1), len + 1, &object).is_err());
}

#[test]
fn fixture_of_the_bytes() {
    let mut pack = builder(PackKind::Data);
    pack.add(&chunk(b"hello")).unwrap();
    pack.add(&chunk(b"")).unwrap();
    let hex: String = pack.finish().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, include_str!("../../tests/fixtures/pack-v1.hex").trim());
}

proptest! {
    #[test]
    fn any_tail_decodes_or_fails(bytes in proptest::collection::vec(any::<u8>(), 0..400), len in 0u64..2000) {
        let _ = PackDirectory::decode(&id(1), len, &Bytes::from(bytes.clone()));
        let _ = PackHeader::decode(&bytes);
    }

    #[test]
    fn any_changed_byte_of_the_ends_is_noticed(at in any::<prop::sample::Index>(), xor in 1u8..) {
        let mut pack = builder(PackKind::Data);
        let frames = pack.add(&chunk(b"one")).unwrap();
        pack.add(&chunk(b"two!")).unwrap();
        let mut object = pack.finish().to_vec();
        let at = at.index(object.len());
        object[at] ^= xor;
        let object = Bytes::from(object);
        if at < frames.offset as usize {
            prop_assert!(PackHeader::decode(&object).is_err());
        } else if at >= frames.offset as usize + 7 {
            prop_assert!(PackDirectory::decode(&id(1), object.len() as u64, &object).is_err());
        } else {
            let directory = whole(&object);
            let bad = directory.entries().filter(|e| {
                e.check(&object[e.loc.offset as usize..][..e.loc.stored_len as usize]).is_err()
            }).count();
            prop_assert_eq!(bad, 1);
        }
    }
}

//! Formats that other crates read and write through public functions.

use bytes::Bytes;
use hiloop_manifest::pack::{PackDirectory, PackHeader, Tail};
use hiloop_manifest::schema::{Key, KeyKind, StagedAt, Value};
use hiloop_manifest::{Codec, DomainKey, LEVEL_HOT, decode_chunk, encode_chunk, verify};
use hiloop_store::StoreUrl;
use hiloop_types::PackId;
use hiloop_types::limits::{CHUNK_MAX, PACK_MAX};

use crate::memory::bounded;
use crate::protocol::{Reply, Request};

/// A store URL: what is taken has one spelling, which is taken again and holds no white space.
pub fn store_url(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(url) = bounded(bytes, 64, || StoreUrl::parse(text)) else { return false };
    let spelled = url.to_string();
    let again = StoreUrl::parse(&spelled).unwrap_or_else(|e| panic!("{spelled} is not taken: {e}"));
    assert!(again == url, "{spelled} is another store");
    assert_eq!(again.to_string(), spelled);
    assert!(!spelled.chars().any(|c| c.is_control() || c.is_whitespace()), "{spelled:?}");
    true
}

/// Codec, plain length (4 bytes) and stored bytes; and the bytes themselves as a chunk, there and back.
pub fn chunk_frame(bytes: &[u8]) -> bool {
    let key = DomainKey([7; 32]);
    if bytes.len() as u64 <= CHUNK_MAX {
        let chunk = encode_chunk(&key, bytes, LEVEL_HOT).expect("within the limit");
        let plain = decode_chunk(chunk.codec, &chunk.stored, chunk.plain_len).expect("what was written can be read");
        assert_eq!(plain, bytes);
        verify(&key, &chunk.id, &plain).expect("the identity holds");
    }
    let Some((&[codec, a, b, c, d], stored)) = bytes.split_first_chunk::<5>() else { return false };
    let Ok(codec) = Codec::from_u8(codec) else { return false };
    let (plain_len, stored) = (u32::from_le_bytes([a, b, c, d]), Bytes::copy_from_slice(stored));
    let Ok(plain) = bounded(bytes, 1, || decode_chunk(codec, &stored, plain_len)) else { return false };
    assert_eq!(plain.len(), plain_len as usize);
    true
}

/// As a header; and as pack id (36 bytes), length of the object (8) and its tail: as they come, and with the checksum made right.
pub fn pack(bytes: &[u8]) -> bool {
    let mut accepted = PackHeader::decode(bytes).is_ok();
    let Some((id, rest)) = bytes.split_first_chunk::<36>() else { return accepted };
    let Some((object_len, tail)) = rest.split_first_chunk::<8>() else { return accepted };
    let (id, object_len) = (PackId::from_bytes(id), u64::from_le_bytes(*object_len));
    for sealed in [false, true] {
        let mut tail = tail.to_vec();
        if sealed && tail.len() >= 24 {
            let at = tail.len() - 24;
            let entries = u32::from_le_bytes([tail[at + 4], tail[at + 5], tail[at + 6], tail[at + 7]]) as usize;
            let start = at.saturating_sub(entries.saturating_mul(49));
            let crc = crc32c::crc32c_append(crc32c::crc32c(&id.to_bytes()), &tail[start..at + 12]);
            tail[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
        }
        let tail = Bytes::from(tail);
        match bounded(bytes, 8, || PackDirectory::decode(&id, object_len, &tail)) {
            Ok(Tail::Whole(directory)) => {
                assert!(object_len <= PACK_MAX);
                for entry in directory.entries() {
                    assert_eq!(directory.lookup(&entry.id), Some(entry));
                    assert!(u64::from(entry.loc.offset) + u64::from(entry.loc.stored_len) <= object_len);
                }
                assert_eq!(directory.in_order().len(), directory.len());
                accepted = true;
            }
            // More than there is would be asked for again and again.
            Ok(Tail::Need(n)) => assert!(n <= object_len && n > tail.len() as u64, "{n} of {object_len} with {}", tail.len()),
            Err(_) => {}
        }
    }
    accepted
}

/// Length of a key, the key, and a value.
pub fn schema(bytes: &[u8]) -> bool {
    let Some((&len, rest)) = bytes.split_first() else { return false };
    let Some((key, value)) = rest.split_at_checked(len.into()) else { return false };
    key_value(key, value)
}

/// A key and its value.
pub(crate) fn key_value(key: &[u8], value: &[u8]) -> bool {
    let Ok(key) = Key::from_bytes(key) else { return false };
    assert_eq!(rebuilt(key.kind()).as_ref(), Some(&key), "a key has one encoding");
    let staged = [StagedAt { slab: 3, offset: 4096, len: 70_000, crc: 1 }];
    let Ok(decoded) = bounded(value, 512, || Value::decode(key.kind(), value, &staged)) else { return false };
    for with_list in [false, true] {
        let mut list = Vec::new();
        let again = decoded.encode(with_list.then_some(&mut list));
        assert_eq!(Value::decode(key.kind(), &again, &list).expect("what was written can be read"), decoded);
    }
    true
}

fn rebuilt(kind: KeyKind<'_>) -> Option<Key> {
    Some(match kind {
        KeyKind::Super => Key::superblock(),
        KeyKind::Attr(ino) => Key::attr(ino),
        KeyKind::Orphan(ino) => Key::orphan(ino),
        KeyKind::Block(ino, index) => Key::block(ino, index),
        KeyKind::Entry { dir, hash, name } => Key::entry(dir, hash, name),
        KeyKind::Index(dir, index) => Key::index(dir, index),
        KeyKind::BackRef { ino, dir, index } => Key::backref(ino, dir, index),
        KeyKind::Xattr(ino, name) => Key::xattr(ino, name),
    })
}

/// A line as a request and as a reply.
pub fn protocol_line(bytes: &[u8]) -> bool {
    let request = bounded(bytes, 256, || Request::parse(bytes));
    let reply = bounded(bytes, 256, || Reply::parse(bytes));
    if let Ok(request) = &request {
        let line = serde_json::to_vec(request).expect("what was read can be written");
        assert!(!line.contains(&b'\n'));
        assert_eq!(&Request::parse(&line).expect("what was written can be read"), request);
    }
    if let Ok(reply) = &reply {
        let line = reply.line();
        assert!(line.iter().filter(|b| **b == b'\n').count() == 1 && line.ends_with(b"\n"));
        let again = Reply::parse(&line).expect("what was written can be read");
        // A number with a fraction may lose its last digit on the way; we send none.
        if !has_fraction(&serde_json::to_value(reply).expect("it was written")) {
            assert_eq!(&again, reply);
        }
    }
    request.is_ok() || reply.is_ok()
}

fn has_fraction(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(n) => n.is_f64(),
        serde_json::Value::Array(list) => list.iter().any(has_fraction),
        serde_json::Value::Object(map) => map.values().any(has_fraction),
        _ => false,
    }
}

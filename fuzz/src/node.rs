//! A node of a manifest tree.

use bytes::Bytes;
use hiloop_manifest::tree::Node;
use hiloop_types::NodeId;

use crate::formats::key_value;
use crate::memory::bounded;

/// Where the part that the identity covers ends, by the header's words.
fn data_end(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let end = 16usize.checked_add(word(8)?)?.checked_add(word(12)?)?;
    (end <= bytes.len()).then_some(end)
}

/// A node under its right identity: as it comes, and with the checksum of its places made right.
pub fn manifest_node(bytes: &[u8]) -> bool {
    let Some(end) = data_end(bytes) else {
        assert!(Node::decode(&NodeId([0; 32]), Bytes::copy_from_slice(bytes)).is_err());
        return false;
    };
    let id = NodeId(*blake3::hash(&bytes[..end]).as_bytes());
    let mut accepted = false;
    for sealed in [false, true] {
        let mut plain = bytes.to_vec();
        if sealed && plain.len() >= end + 4 {
            let at = plain.len() - 4;
            let crc = crc32c::crc32c(&plain[end..at]);
            plain[at..].copy_from_slice(&crc.to_le_bytes());
        }
        let plain = Bytes::from(plain);
        let Ok(node) = bounded(bytes, 16, || Node::decode(&id, plain.clone())) else { continue };
        assert_eq!((node.id(), node.bytes()), (id, &plain));
        for i in 0..node.len() {
            assert_eq!(node.lower_bound(node.key(i)), i);
            let (key, value) = node.record(i);
            assert_eq!((&key[..], &value[..]), (node.key(i), node.value(i)));
            if node.level() == 0 {
                key_value(&key, &value);
            } else {
                let child = node.child(i).expect("the places were checked when the node was read");
                assert_eq!(child.key, node.key(i));
            }
        }
        assert!(node.level() > 0 || node.records() == node.len() as u64);
        accepted = true;
    }
    accepted
}

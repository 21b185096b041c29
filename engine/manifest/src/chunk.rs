//! Chunks: the plain bytes of a piece of a file, their keyed identity and their stored form.
//!
//! A chunk's id is BLAKE3 of its plain bytes, keyed with the key of its dedup domain: equal bytes in two organisations have
//! different ids, and nobody can test for foreign content. The id never depends on codec or place (`protocols.md` 5.2).

use std::fmt;

use bytes::Bytes;
use hiloop_types::limits::CHUNK_MAX;
use hiloop_types::{ChunkId, Error, Result};

use crate::codec::{self, Codec};

/// The BLAKE3 key of one dedup domain (an organisation, or the public domain of bases). A secret: not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainKey(pub [u8; 32]);

impl fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainKey(..)")
    }
}

/// A chunk in the form in which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedChunk {
    /// Keyed identity of the plain bytes.
    pub id: ChunkId,
    /// How `stored` is encoded.
    pub codec: Codec,
    /// What goes into a pack.
    pub stored: Bytes,
    /// Length of the plain bytes.
    pub plain_len: u32,
}

/// The identity of `plain` in a domain.
pub fn chunk_id(key: &DomainKey, plain: &[u8]) -> ChunkId {
    ChunkId(*blake3::keyed_hash(&key.0, plain).as_bytes())
}

/// Names and compresses a chunk with zstd at `level` ([`LEVEL_HOT`](crate::LEVEL_HOT), [`LEVEL_COLD`](crate::LEVEL_COLD)); raw where
/// zstd would save less than 5 %.
///
/// [`ErrorKind::Invalid`](hiloop_types::ErrorKind::Invalid) for more than [`CHUNK_MAX`] bytes: no reader would take such a chunk back.
pub fn encode_chunk(key: &DomainKey, plain: &[u8], level: i32) -> Result<EncodedChunk> {
    if plain.len() as u64 > CHUNK_MAX {
        return Err(Error::invalid(format!("chunk of {} bytes is above the limit of {CHUNK_MAX}", plain.len())));
    }
    let (codec, stored) = codec::compress(plain, level);
    Ok(EncodedChunk { id: chunk_id(key, plain), codec, stored, plain_len: plain.len() as u32 })
}

/// Restores the plain bytes, without looking at their identity: follow with [`verify`].
///
/// Allocates at most `plain_len` (at most [`CHUNK_MAX`]) bytes, nothing for a raw chunk;
/// [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) when the stored bytes do not hold exactly `plain_len` plain ones.
pub fn decode_chunk(codec: Codec, stored: &Bytes, plain_len: u32) -> Result<Bytes> {
    codec::decompress(codec, stored, plain_len)
}

/// Checks that `plain` is what `id` names in this domain; [`ErrorKind::Corrupt`](hiloop_types::ErrorKind::Corrupt) otherwise.
pub fn verify(key: &DomainKey, id: &ChunkId, plain: &[u8]) -> Result<()> {
    let found = chunk_id(key, plain);
    if found == *id { Ok(()) } else { Err(Error::corrupt(format!("content is {found}")).at(id)) }
}

#[cfg(test)]
mod tests {
    use hiloop_types::ErrorKind;

    use super::*;
    use crate::codec::LEVEL_HOT;
    use crate::testing::noise;

    const KEY: DomainKey = DomainKey([7; 32]);

    #[test]
    fn round_trip_and_identity() {
        for plain in [noise(1, 70_000), b"abc".repeat(1000), Vec::new()] {
            let c = encode_chunk(&KEY, &plain, LEVEL_HOT).unwrap();
            let back = decode_chunk(c.codec, &c.stored, c.plain_len).unwrap();
            assert_eq!(back, plain);
            verify(&KEY, &c.id, &back).unwrap();
            assert_eq!(verify(&DomainKey([8; 32]), &c.id, &back).unwrap_err().kind(), ErrorKind::Corrupt);
            assert_eq!(c.id, encode_chunk(&KEY, &plain, 9).unwrap().id, "the level is not part of the identity");
        }
        assert_eq!(encode_chunk(&KEY, &vec![0; CHUNK_MAX as usize + 1], LEVEL_HOT).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn fixture_of_an_id() {
        assert_eq!(chunk_id(&KEY, b"hiloop").to_hex(), "5d9d15da40ed21432b719554f15b305157958f9692abcd3713afa7d888c52460");
        assert_eq!(format!("{KEY:?}"), "DomainKey(..)");
    }
}

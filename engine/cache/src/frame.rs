//! What goes into the cache and under which key.

use std::fmt;

use bytes::Bytes;
use hiloop_types::{ChunkId, NodeId};

/// Key of an entry: the identity of a chunk or of a manifest node. Both are BLAKE3 digests and cannot meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey(pub [u8; 32]);

impl From<ChunkId> for CacheKey {
    fn from(id: ChunkId) -> Self {
        Self(id.0)
    }
}

impl From<NodeId> for CacheKey {
    fn from(id: NodeId) -> Self {
        Self(id.0)
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheKey(")?;
        self.0[..6].iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str("…)")
    }
}

/// A chunk or node as it stands in the store: opaque to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// How `stored` is encoded; the caller's numbers.
    pub codec: u8,
    /// Bytes after decoding.
    pub plain_len: u32,
    /// The encoded bytes.
    pub stored: Bytes,
}

/// An answer from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The entry; its checksums held.
    pub frame: Frame,
    /// False until the entry's digest was verified since the cache was opened. The caller then checks the decoded bytes
    /// against the key and calls [`crate::Cache::mark_verified`] or [`crate::Cache::quarantine`].
    pub verified: bool,
}

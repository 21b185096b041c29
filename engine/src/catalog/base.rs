//! Bases and dedup domains.

use hiloop_manifest::tree::RootRef;
use hiloop_types::{Name, NodeId, Nonce, Session};
use serde::{Deserialize, Serialize};

use crate::front::Front;

/// Domain of published bases: shared by everybody who reads the store.
pub const PUBLIC_DOMAIN: &str = "public";

/// A published golden tree, or the intent to publish one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseDoc {
    /// Document format.
    pub format: u32,
    /// The build id.
    pub name: Name,
    /// Absent while the base is being published: the object is then its own intent (`protocols.md` 7.6).
    pub root: Option<RootRef>,
    /// What of the tree an opening reads first.
    #[serde(default, skip_serializing_if = "Front::is_empty")]
    pub front: Front,
    /// Bases whose chunks this one references.
    pub reuses: Vec<BaseRoot>,
    /// Dedup domain.
    pub domain: Name,
    /// Inode numbers below this are in use.
    pub inode_limit: u64,
    /// Number of inodes.
    pub files: u64,
    /// Bytes that are not holes.
    pub bytes_logical: u64,
    /// Bytes in packs.
    pub bytes_stored: u64,
    /// Digest over all keys and values, chunks by identity and not by place: what "the same content" means. Absent in an intent.
    pub content: Option<NodeId>,
    /// Session of the publisher: part of the keys of its packs, which an intent protects from collection.
    pub session: Session,
    /// Host and process of the publisher, for messages.
    pub holder: String,
    /// Identity of the last conditional write; a live publisher renews it.
    pub nonce: Nonce,
    /// Seconds since 1970.
    pub created: u64,
    /// When it was deleted, seconds since 1970; the document is then a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<u64>,
}

/// A base and the root it had when something was built on it; a root for collection, deleted or not (`protocols.md` 7.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseRoot {
    /// The build id.
    pub name: Name,
    /// Its root.
    pub root: RootRef,
}

/// A dedup domain: chunks are shared only within one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainDoc {
    /// Document format.
    pub format: u32,
    /// The domain.
    pub name: Name,
    /// Key of the chunk ids, hexadecimal. Whoever reads the store may read it: it keeps ids of one domain from answering
    /// "does this content exist?" in another.
    pub key: String,
}

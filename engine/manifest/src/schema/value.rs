//! A decoded value: what the overlay of a workspace holds.

use bytes::Bytes;
use hiloop_types::Result;

use super::{Attr, Block, Entry, IndexEntry, KeyKind, StagedAt, Super};

/// The value of a key, decoded by the key's kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Of [`KeyKind::Super`].
    Super(Box<Super>),
    /// Of [`KeyKind::Attr`].
    Attr(Box<Attr>),
    /// Of [`KeyKind::Block`].
    Block(Block),
    /// Of [`KeyKind::Entry`].
    Entry(Entry),
    /// Of [`KeyKind::Index`].
    Index(IndexEntry),
    /// Of [`KeyKind::Xattr`].
    Bytes(Bytes),
    /// Of [`KeyKind::Orphan`] and [`KeyKind::BackRef`], whose key says all.
    Unit,
}

impl Value {
    /// The stored form; `staged` as in [`Block::encode`].
    pub fn encode(&self, staged: Option<&mut Vec<StagedAt>>) -> Vec<u8> {
        match self {
            Self::Super(s) => s.encode(),
            Self::Attr(a) => a.encode(),
            Self::Block(b) => b.encode(staged),
            Self::Entry(e) => e.encode(),
            Self::Index(i) => i.encode(),
            Self::Bytes(b) => b.to_vec(),
            Self::Unit => Vec::new(),
        }
    }

    /// Reads the stored form of the value under `key`; `staged` as in [`Block::decode`].
    pub fn decode(key: KeyKind<'_>, b: &[u8], staged: &[StagedAt]) -> Result<Self> {
        Ok(match key {
            KeyKind::Super => Self::Super(Box::new(Super::decode(b)?)),
            KeyKind::Attr(_) => Self::Attr(Box::new(Attr::decode(b)?)),
            KeyKind::Block(..) => Self::Block(Block::decode(b, staged)?),
            KeyKind::Entry { .. } => Self::Entry(Entry::decode(b)?),
            KeyKind::Index(..) => Self::Index(IndexEntry::decode(b)?),
            KeyKind::Xattr(..) => Self::Bytes(Bytes::copy_from_slice(b)),
            KeyKind::Orphan(_) | KeyKind::BackRef { .. } => Self::Unit,
        })
    }
}

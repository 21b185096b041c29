//! Identities, names, errors and limits shared by every crate of the engine.
//!
//! This crate knows no I/O. Words are those of the design's vocabulary: a [`ChunkId`] names content, a [`PackId`] names the
//! object that holds many chunks, a [`Session`] names one opening of a workspace for write.

mod claim;
mod error;
mod id;
pub mod limits;
mod meta;
mod name;
mod pack;
mod session;
mod text;

pub use claim::Claim;
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use id::{ChunkId, Ino, NodeId, ROOT_INO, Seqno};
pub use meta::{Column, META_KEY_MAX, MemoryMeta, MetaBatch, MetaOp, MetaStore, check_conformance, prefix_end};
pub use name::{Name, NameKind};
pub use pack::{Owner, PackId};
pub use session::{Nonce, Session, WriterEpoch};

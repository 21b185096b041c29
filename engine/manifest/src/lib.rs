//! What a workspace is made of when it lies in the store: chunks, packs and the manifest tree.
//!
//! Everything here is pure and synchronous: bytes in, bytes out. Fetching, caching and uploading belong to callers, which stand
//! behind two seams: [`tree::NodeSource`] answers a node that is in memory (or says that it is not), [`tree::NodeSink`] places
//! a new node in a pack.
//!
//! - [`encode_chunk`], [`decode_chunk`], [`verify`]: identity and stored form of a chunk.
//! - [`Chunker`], [`cut`]: where a file is cut.
//! - [`pack`]: many frames in one object, with a directory at its end.
//! - [`schema`]: keys and values of the file system.
//! - [`tree`]: the content-addressed ordered tree over opaque keys and values.

mod chunk;
mod chunker;
mod codec;
pub mod pack;
pub mod schema;
#[cfg(test)]
mod testing;
pub mod tree;
mod wire;

pub use chunk::{DomainKey, EncodedChunk, chunk_id, decode_chunk, encode_chunk, verify};
pub use chunker::{Chunker, CutPolicy, cut};
pub use codec::{Codec, LEVEL_COLD, LEVEL_HOT};
pub use pack::FrameLoc;

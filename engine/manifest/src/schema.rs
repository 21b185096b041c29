//! Keys and values of a workspace's manifest: the file system as an ordered map (`protocols.md` 6).
//!
//! Every key starts with an inode number (big endian), so all that belongs to an inode stands together and a directory's first
//! page holds its attributes and its entries. `(u64)` is eight bytes big endian.
//!
//! | key | value |
//! |---|---|
//! | `(0) 00` | [`Super`]: format, name-hash key, totals |
//! | `(0) 60 (ino)` | empty: `ino` has no name but is open (orphan list) |
//! | `(ino) 00` | [`Attr`] |
//! | `(ino) 10 (block)` | [`Block`]: where the bytes of one 128 KiB block are |
//! | `(dir) 20 (hash) name` | [`Entry`] by keyed name hash |
//! | `(dir) 30 (index)` | [`IndexEntry`]: the same entry in creation order; `index` is the readdir cookie and is never reused |
//! | `(ino) 40 (dir) (index)` | empty: back-reference, one per name |
//! | `(ino) 50 name` | value of an extended attribute |
//!
//! Values are encoded with LEB128 variable-length integers and carry a version byte where they can grow.

mod attr;
mod block;
mod codec;
mod entry;
mod key;
mod superblock;
mod value;

pub use attr::{Attr, FileKind, Timestamp};
pub use block::{Block, ChunkDomain, ChunkRef, Piece, Source, StagedAt};
pub use codec::{Reader, Writer};
pub use entry::{Entry, IndexEntry};
pub use key::{Key, KeyKind, NameHasher, Prefix};
pub use superblock::{Super, Totals};
pub use value::Value;

//! Keys and values of a workspace's manifest: the file system as an ordered map (`protocols.md` 6).
//!
//! Every key starts with an inode number, so all that belongs to an inode stands together. Names of directories stand behind all inodes:
//! their keys start with the directory's number and the highest bit set, written `[dir]`. The entries of a directory are often numbered in
//! sequence, so what `ls -l` shows is two runs of records, one of names and one of inodes, however much stands below the
//! directories that it shows ([`Attr::children`] says where the second run starts). `(u64)` and `[u64]` are eight bytes big endian.
//!
//! | key | value |
//! |---|---|
//! | `(0) 00` | [`Super`]: format, name-hash key, totals |
//! | `(0) 60 (ino)` | empty: `ino` has no name but is open (orphan list) |
//! | `(ino) 00` | [`Attr`] |
//! | `(ino) 10 (block)` | [`Block`]: where the bytes of one 128 KiB block are |
//! | `(ino) 40 (dir) (index)` | empty: back-reference, one per name |
//! | `(ino) 50 name` | value of an extended attribute |
//! | `[dir] 20 (hash) name` | [`Entry`] by keyed name hash |
//! | `[dir] 30 (index)` | [`IndexEntry`]: the same entry in creation order; `index` is the readdir cookie and is never reused |
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

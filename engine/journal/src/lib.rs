//! The node journal and its staging slabs (`protocols.md` 2): the place where a request becomes *accepted* and, after a group
//! commit, *local*.
//!
//! One [`Journal`] per node directory holds the records of all workspaces in one order. [`Journal::append`] writes a record on the
//! request thread (one `pwrite`, no flush); [`Journal::commit`] makes everything accepted so far durable, one flush for all
//! waiters. Data too large to stand inline is written first with [`Journal::stage`] to an append-only slab and named by the
//! record. Bodies are opaque: **a body refers to staged data by its index in the record's `staged` list**, never by slab and
//! offset, because recovery moves unflushed staging to fresh ranges and hands the record out with the new references.
//!
//! # Files
//!
//! ```text
//! dir/journal/anchor            which segments count (two copies of one slot)
//! dir/journal/segment-<id>      zeroed when made, recycled for ever; <id> is 8 hexadecimal digits and means nothing
//! dir/staging/slab-<id>         append-only ranges; <id> is 16 hexadecimal digits and is the SlabId
//! ```
//!
//! All integers are little-endian, all checksums CRC-32C.
//!
//! **Segment**: a 512-byte sector with the header, then records, each aligned to 8 bytes.
//!
//! ```text
//! header   0 magic "HLJS"  4 version u32  8 incarnation u64  16 generation u64  24 first seqno u64  32 flushed seqno u64  60 crc of 0..60
//! record   0 header crc    4 body crc     8 seqno u64        16 stream u64      24 body length u32  28 staged count u16
//!          30 kind u8      31 class u8    32 staged refs     .. body            .. zeros to a multiple of 8
//! staged   0 slab u64      8 offset u64   16 length u32      20 crc of the range
//! ```
//!
//! The header crc covers, in this order, incarnation, generation, the record's own offset and bytes 4..32; the body crc (inside it)
//! covers the staged refs and the body. Whatever an earlier life of the file, an earlier recovery or a copy of the bytes left at a
//! place is therefore never whole. Class 0 is a record. Class 1 says "flushed up to `seqno`" and follows each group commit. Class
//! 2 says that numbering goes on at `seqno` (recovery only). Generations rise by one per segment; a segment ends where no whole
//! record follows and the next generation's header continues the numbering.
//!
//! **Anchor**: two slots of 4096 bytes, written one after the other with a flush between them, so that one is always whole.
//!
//! ```text
//! 0 magic "HLJA"  4 version u32  8 update u64  16 released seqno u64  24 oldest generation u64  32 next slab u64  40 links u32
//! 48 links, 32 bytes each: incarnation u64, first generation u64, end generation u64 (0: open, last only), first seqno u64
//! 4092 crc of 0..4092
//! ```
//!
//! Each recovery adds a link; a link's records end where the next link's first seqno begins, and everything before the last link was
//! flushed. A segment whose header fits no link is a spare.
//!
//! **Slab**: a 512-byte sector with the header (`0 magic "HLJD"  4 version u32  8 slab u64  60 crc of 0..60`), then ranges aligned to
//! 512 bytes, so that a flushed range shares no sector with a later write.
//!
//! # Commit
//!
//! Read the seqno that will be claimed, flush the staging slabs, flush the segments, raise the flushed cursor, write a class 1
//! record. A flush that fails makes the journal read-only for good: its pages may be clean in the page cache and absent on disk, so
//! it is never repeated on them.
//!
//! # Recovery
//!
//! 0. Unless damage forbids it, write the anchor again before acting on it: a failed flush may have left it in the page cache only.
//! 1. Walk the links for the longest prefix of whole records. If a whole record of the same incarnation stands behind the end, that
//!    is *damage* ([`Damage`]), reported with its position and never silently cut; otherwise it is a torn tail. Damage is
//!    `certain` when the missing record had been flushed. A power cut in the middle of a flush can leave the uncertain kind.
//! 2. Records above the last flushed seqno, and the staging they name, might stand in pages that this process did not write: each
//!    one's staging is read and checked (a mismatch ends the prefix), written to fresh slabs, and the record to fresh segments under
//!    a new random incarnation. They are flushed, and only then the anchor gets the new link.
//! 3. Numbering resumes above the last whole record seen anywhere, above what was released, and not below the caller's `min_next`.
//!
//! The replay callback runs before step 2's flush: what it builds must stay in memory until [`Journal::open`] has returned.
//!
//! # Limits
//!
//! A record, staged list and all, is at most [`hiloop_types::limits::JOURNAL_RECORD`] bytes and fits a segment; a staged range fits a slab; unsynced staging is
//! at most [`hiloop_types::limits::STAGING_DIRTY`] (a range beyond half of it may stand above): at the bound [`Journal::stage`] refuses
//! and the caller's request is parked, since a request thread never waits for the disk.

mod anchor;
mod commit;
pub mod dirlock;
pub mod disk;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod health;
mod journal;
mod options;
mod recovery;
mod segments;
pub mod simdisk;
mod staging;
#[cfg(test)]
mod tests;
mod walk;

pub use dirlock::{DirLock, Ownership};
pub use disk::{Disk, DiskFile, RealDisk};
pub use format::{SlabId, StagedRef, StreamId};
pub use health::State;
pub use journal::{Journal, Usage};
pub use options::{Class, JournalOptions, OnDamage};
pub use recovery::{Damage, Position, RecoveredRecord, RecoveryReport};
pub use simdisk::SimDisk;
pub use staging::{Room, Staged};

//! Every bound of the engine, its unit and where it comes from. A queue or table without an entry here is a defect.

use std::time::Duration;

/// One KiB, in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB, in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB, in bytes.
pub const GIB: u64 = 1 << 30;

/// File data is addressed in blocks of this many bytes: one manifest key per block, so that a write touches only the keys it covers.
pub const BLOCK: u64 = 128 * KIB;
/// Largest chunk, plain bytes. A random 4 KiB read hydrates at most one chunk.
pub const CHUNK_MAX: u64 = MIB;
/// Longest name of a directory entry, bytes (POSIX NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target, bytes (PATH_MAX less the terminator).
pub const SYMLINK_MAX: usize = 4095;
/// Largest extended attribute value, bytes (XATTR_SIZE_MAX).
pub const XATTR_VALUE_MAX: usize = 64 * 1024;
/// All names of one inode's extended attributes together, bytes (XATTR_LIST_MAX).
pub const XATTR_LIST_MAX: usize = 64 * 1024;
/// Links to one inode (as ext4: the limit users know).
pub const LINK_MAX: u32 = 65_000;
/// Largest file, bytes: one block short of the signed 64-bit limit.
pub const FILE_MAX: u64 = i64::MAX as u64 - BLOCK;

/// A pack is closed once it holds this much (design.md 4: 8 to 16 MiB).
pub const PACK_TARGET: u64 = 8 * MIB;
/// A pack never exceeds this.
pub const PACK_MAX: u64 = 16 * MIB;

/// Unpublished bytes above which a writer is slowed (design.md 4).
pub const BACKLOG_SOFT: u64 = 256 * MIB;
/// Unpublished bytes at which a writer waits.
pub const BACKLOG_HARD: u64 = GIB;
/// The hard mark under `durability=replicated`.
pub const BACKLOG_HARD_REPLICATED: u64 = 64 * MIB;
/// Unpublished operations at which a writer waits.
pub const BACKLOG_OPERATIONS: u64 = 1_000_000;
/// Unpublished bytes of one node over all its workspaces.
pub const BACKLOG_NODE: u64 = 8 * GIB;
/// One part in so many of the node's bound is each workspace's own, whatever the others have: 64 MiB of 8 GiB.
pub const BACKLOG_SHARES: u64 = 128;
/// The soft mark is also at most this much measured store throughput.
pub const BACKLOG_SOFT_TIME: Duration = Duration::from_secs(20);

/// A read that waits for the store gives up after this long and answers an I/O error.
pub const READ_DEADLINE: Duration = Duration::from_secs(30);
/// Group commit runs at least this often (`protocols.md` 2.4).
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Unsynced staging bytes at which a write is parked until the disk has caught up (`protocols.md` 2.3); write-back starts at half.
pub const STAGING_DIRTY: u64 = 16 * MIB;
/// A dirty workspace publishes at least this often while the store keeps up ("at most 5 s behind" with time to upload).
pub const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Decoded chunks kept in memory, bytes, all workspaces of a daemon.
pub const MEMORY_CHUNKS: u64 = 64 * MIB;
/// Manifest nodes kept in memory, bytes, all workspaces of a daemon.
pub const MEMORY_NODES: u64 = 32 * MIB;
/// RocksDB's block cache, memtables and indexes, bytes.
pub const MEMORY_ROCKS: u64 = 32 * MIB;
/// Largest journal record, header, staged list and body together, bytes.
pub const JOURNAL_RECORD: usize = MIB as usize;
/// Commits that wait for a flush at once; each belongs to a request in flight, of which FUSE allows fewer.
pub const COMMITS_PARKED: usize = 65_536;
/// Data of writes that wait for room or metadata, bytes per mount; above it a write keeps [`HELD_SHORT`] and returns short.
pub const HELD_WRITES: u64 = 128 * MIB;
/// What a write keeps of its data where too much waits, bytes.
pub const HELD_SHORT: usize = 4096;
/// New cache entries of one shard that wait for the next tick to be written to the index; further ones wait for the slower round.
pub const CACHE_BORN: usize = 1024;
/// Rows of the cache's index per batch.
pub const CACHE_ROWS: usize = 4096;
/// Bytes that the cache's compaction moves per tick at most: a quarter of a slow disk's second.
pub const CACHE_COMPACT: u64 = 16 * MIB;
/// Slab files of the cache beyond twice what its content needs, before compaction begins.
pub const CACHE_SPARE_SLABS: u64 = 4;
/// Names that one `delete` works on at once: each is three or four requests to the store, one after the other.
pub const DELETES: usize = 16;
/// Manifest nodes that one question for a workspace's residency looks at: about 300,000 files, some 100 ms.
pub const RESIDENCY_STEP: usize = 256;
/// Data that small writes keep inline in memory and journal, bytes per workspace; above it they go to staging.
pub const MEMORY_INLINE: u64 = 16 * MIB;
/// Largest write whose bytes stand inline in its journal record.
pub const INLINE_WRITE: usize = 4096;

/// Heartbeat of a node in the store (`protocols.md` 3.3).
pub const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a newcomer watches a heartbeat before it may take a head over (`protocols.md` 3.3).
pub const HEARTBEAT_WATCH: Duration = Duration::from_secs(30);

/// Cut layers of one workspace that wait to be published; another snapshot waits for room.
pub const SEALED_LAYERS: usize = 16;

//! Allocation: fallocate, statfs.

use hiloop_engine::workspace::Txn;
use hiloop_manifest::schema::{FileKind, Totals};
use hiloop_types::{Ino, limits};

use super::{Caller, FsError, FsResult, attr_of, kill_suid_sgid};

/// One fallocate may newly reserve at most this many bytes; more is ENOSPC. Each reserved block is an entry in memory and journal.
pub const RESERVE_MAX: u64 = 64 * limits::GIB;
/// One transaction of a long fallocate covers this many bytes (8,192 blocks), so that others get in between.
pub const STEP: u64 = limits::GIB;
/// Shown as the size of a workspace without a quota: the node's disk is a cache, so the store is the limit.
const UNLIMITED: u64 = 1 << 50;
const FRAGMENT: u64 = 4096;
const INODES: u64 = 1 << 32;

/// `fallocate`, one step: handles a prefix of `from..to` and returns where to go on, `to` when done. The size grows with each step.
///
/// # Errors
/// EOPNOTSUPP for modes other than plain, PUNCH_HOLE, ZERO_RANGE, each with KEEP_SIZE; EINVAL for an empty range; EFBIG; ENOSPC at
/// the quota or above [`RESERVE_MAX`]; ENODEV, EISDIR, ESTALE.
pub fn fallocate(tx: &mut Txn<'_>, caller: Caller, ino: Ino, mode: i32, from: u64, to: u64) -> FsResult<u64> {
    const ACTIONS: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let action = mode & !libc::FALLOC_FL_KEEP_SIZE;
    if action & !ACTIONS != 0 || action == ACTIONS || (action == libc::FALLOC_FL_PUNCH_HOLE && !keep_size) {
        return Err(FsError::Errno(libc::EOPNOTSUPP));
    }
    if from >= to {
        return Err(FsError::Errno(libc::EINVAL));
    }
    let mut attr = attr_of(tx, ino)?;
    match attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::Errno(libc::EISDIR)),
        _ => return Err(FsError::Errno(libc::ENODEV)),
    }
    if to > limits::FILE_MAX {
        return Err(FsError::Errno(libc::EFBIG));
    }
    let now = tx.now();
    let end = if action == libc::FALLOC_FL_PUNCH_HOLE {
        // A hole costs nothing to step over: the engine visits only the blocks that exist.
        tx.punch(ino, &mut attr, from, to)?;
        to
    } else {
        if to - from > RESERVE_MAX {
            return Err(FsError::Errno(libc::ENOSPC));
        }
        let end = to.min((from / STEP + 1) * STEP);
        let left = tx.quota_left();
        let before = attr.allocated;
        if action == libc::FALLOC_FL_ZERO_RANGE {
            tx.punch(ino, &mut attr, from, end)?;
        }
        tx.reserve(ino, &mut attr, from, end)?;
        if attr.allocated.saturating_sub(before) > left {
            return Err(FsError::Errno(libc::ENOSPC));
        }
        if !keep_size {
            attr.size = attr.size.max(end);
        }
        end
    };
    attr.mtime = now;
    attr.ctime = now;
    if !caller.is_root() {
        kill_suid_sgid(&mut attr);
    }
    tx.put_attr(ino, attr)?;
    Ok(end)
}

/// What `statfs` shows. Sizes in units of [`StatFs::fragment`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Size: the quota, or a very large number.
    pub blocks: u64,
    /// Free, to everybody: there is no reserve for root.
    pub free: u64,
    /// Inodes, used and free.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes per unit.
    pub fragment: u32,
    /// Longest name.
    pub name_max: u32,
}

/// Sizes of a workspace: bytes that are not holes, orphans included, against the quota.
pub fn statfs(quota: Option<u64>, totals: &Totals) -> StatFs {
    let size = quota.unwrap_or(UNLIMITED.max(totals.bytes.saturating_mul(2)));
    let blocks = size / FRAGMENT;
    let files = INODES.max(totals.inodes.saturating_mul(2));
    StatFs {
        blocks,
        free: blocks.saturating_sub(totals.bytes.div_ceil(FRAGMENT)),
        files,
        files_free: files - totals.inodes,
        fragment: FRAGMENT as u32,
        name_max: limits::NAME_MAX as u32,
    }
}

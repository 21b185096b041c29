//! File content: read, write, copy, seek.

use std::ops::ControlFlow;

use hiloop_engine::workspace::{Read, Txn, View};
use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, limits};

use super::extents::{Holes, filled, unallocated};
use super::{Caller, FsError, FsResult, attr_of, check_regular, kill_suid_sgid};

/// One `copy_file_range` request copies at most this many bytes; callers loop on the short result.
pub const COPY_MAX: u64 = limits::GIB;
/// A write that the quota cuts short ends at a multiple of this.
const PAGE: u64 = 4096;

/// Puts the bytes `offset..offset + len` into `out`, less what lies behind the end.
///
/// # Errors
/// EISDIR, EINVAL, ESTALE.
pub fn read(view: &View<'_>, ino: Ino, offset: u64, len: u64, out: &mut Vec<u8>) -> FsResult<()> {
    out.clear();
    let attr = attr_of(view, ino)?;
    check_regular(&attr)?;
    let end = offset.saturating_add(len).min(attr.size);
    if offset < end {
        view.read(ino, offset, end - offset, out)?;
    }
    Ok(())
}

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteMode {
    /// The writer may not keep set-id bits (FUSE_WRITE_KILL_SUIDGID).
    pub kill_suid_sgid: bool,
    /// Pages written back by the kernel: nobody is there to write the rest of a short write.
    pub whole: bool,
}

/// Writes and returns how many bytes: fewer than given only where the quota or the largest size ends in between.
///
/// # Errors
/// EFBIG at [`limits::FILE_MAX`], ENOSPC at the quota, EISDIR, EINVAL, ESTALE.
pub fn write(tx: &mut Txn<'_>, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> FsResult<u32> {
    let mut attr = attr_of(tx, ino)?;
    check_regular(&attr)?;
    if data.is_empty() {
        return Ok(0);
    }
    if offset >= limits::FILE_MAX {
        return Err(FsError::Errno(libc::EFBIG));
    }
    let wanted = (data.len() as u64).min(limits::FILE_MAX - offset);
    let len = room(tx, ino, offset, wanted)?;
    if len == 0 || (mode.whole && len < data.len() as u64) {
        return Err(FsError::Errno(libc::ENOSPC));
    }
    let now = tx.now();
    tx.write(ino, &mut attr, offset, &data[..len as usize])?;
    attr.mtime = now;
    attr.ctime = now;
    if mode.kill_suid_sgid {
        kill_suid_sgid(&mut attr);
    }
    tx.put_attr(ino, attr)?;
    Ok(len as u32)
}

/// How much of a write of `len` bytes the quota has room for. Overwriting needs none.
fn room(tx: &Txn<'_>, ino: Ino, offset: u64, len: u64) -> FsResult<u64> {
    let left = tx.quota_left();
    if len <= left || unallocated(tx, ino, offset, offset + len)? <= left {
        return Ok(len);
    }
    let mut end = (offset + len - 1) / PAGE * PAGE;
    while end > offset {
        if unallocated(tx, ino, offset, end)? <= left {
            return Ok(end - offset);
        }
        end -= PAGE.min(end);
    }
    Ok(0)
}

/// Copies up to [`COPY_MAX`] bytes as a copy-on-write clone and returns how many; 0 at the source's end.
///
/// # Errors
/// EINVAL (not regular files, or overlapping ranges of one file), EISDIR, EFBIG, ENOSPC at the quota, ESTALE.
pub fn copy_range(tx: &mut Txn<'_>, caller: Caller, from: (Ino, u64), to: (Ino, u64), len: u64) -> FsResult<u32> {
    let source = attr_of(tx, from.0)?;
    let mut attr = attr_of(tx, to.0)?;
    check_regular(&source)?;
    check_regular(&attr)?;
    let len = len.min(COPY_MAX).min(source.size.saturating_sub(from.1));
    if len == 0 {
        return Ok(0);
    }
    if to.1 > limits::FILE_MAX || limits::FILE_MAX - to.1 < len {
        return Err(FsError::Errno(libc::EFBIG));
    }
    if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
        return Err(FsError::Errno(libc::EINVAL));
    }
    let left = tx.quota_left();
    let before = attr.allocated;
    let now = tx.now();
    tx.clone_range(from.0, from.1, to.0, &mut attr, to.1, len)?;
    if attr.allocated.saturating_sub(before) > left {
        return Err(FsError::Errno(libc::ENOSPC));
    }
    attr.mtime = now;
    attr.ctime = now;
    if !caller.is_root() {
        kill_suid_sgid(&mut attr);
    }
    tx.put_attr(to.0, attr)?;
    Ok(len as u32)
}

/// `lseek` with SEEK_DATA or SEEK_HOLE. Space reserved and not written counts as a hole; the end of the file is one.
///
/// # Errors
/// ENXIO beyond the end, or where no data follow; EINVAL for another `whence`.
pub fn seek(r: &impl Read, ino: Ino, offset: i64, whence: i32) -> FsResult<i64> {
    let attr = attr_of(r, ino)?;
    let offset = u64::try_from(offset).map_err(|_| FsError::Errno(libc::ENXIO))?;
    if offset >= attr.size {
        return Err(FsError::Errno(libc::ENXIO));
    }
    if attr.kind != FileKind::File {
        return if whence == libc::SEEK_HOLE { Ok(attr.size as i64) } else { Ok(offset as i64) };
    }
    let mut found = None;
    match whence {
        libc::SEEK_DATA => {
            filled(r, ino, offset, attr.size, Holes::Unwritten, |run| {
                found = Some(run.from);
                ControlFlow::Break(())
            })?;
            found.map(|at| at as i64).ok_or(FsError::Errno(libc::ENXIO))
        }
        libc::SEEK_HOLE => {
            let mut at = offset;
            filled(r, ino, offset, attr.size, Holes::Unwritten, |run| {
                if run.from > at {
                    return ControlFlow::Break(());
                }
                at = run.to;
                ControlFlow::Continue(())
            })?;
            Ok(at as i64)
        }
        _ => Err(FsError::Errno(libc::EINVAL)),
    }
}

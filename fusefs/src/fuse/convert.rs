//! Between our types and fuser's.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use hiloop_manifest::schema::{Attr, FileKind, Timestamp};
use hiloop_types::Ino;

use crate::fs::attr::SetTime;

/// Inode numbers are never used twice, so that one generation is enough.
pub(super) const GENERATION: Generation = Generation(0);
/// Shown as the size of a directory, as ext4 shows a small one: programs take 0 for empty.
const DIRECTORY_SIZE: u64 = 4096;
const BLOCK_SIZE: u32 = 4096;

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The type in a mode of mknod; no type bits mean a regular file.
pub(super) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::File,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

pub(super) fn file_attr(ino: Ino, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: if a.kind == FileKind::Directory { DIRECTORY_SIZE } else { a.size },
        blocks: a.allocated.div_ceil(512),
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: system_time(a.btime),
        kind: file_type(a.kind),
        perm: a.mode as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// The answer "no such name, and remember that": an entry without inode.
pub(super) fn negative() -> FileAttr {
    file_attr(Ino(0), &Attr::new(FileKind::File, 0, 0, 0, Timestamp::default()))
}

/// Stands in a listing for attributes that cannot be had: not to be kept, so that whoever wants them asks, and is told.
pub(super) fn unknown(ino: Ino, kind: FileKind) -> FileAttr {
    file_attr(ino, &Attr::new(kind, 0, 0, 0, Timestamp::default()))
}

fn system_time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let at = if t.secs >= 0 { SystemTime::UNIX_EPOCH.checked_add(whole) } else { SystemTime::UNIX_EPOCH.checked_sub(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(u64::from(t.nanos)))).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time of the kernel. fuser 0.18 reads seconds before 1970 and their nanoseconds as `epoch - (|seconds| + nanoseconds)`, where
/// the nanoseconds count forward; this undoes it.
pub(super) fn timestamp(t: SystemTime) -> Timestamp {
    match t.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(d) => Timestamp { secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nanos: d.subsec_nanos() },
        Err(before) => {
            let d = before.duration();
            Timestamp { secs: 0i64.checked_sub_unsigned(d.as_secs()).unwrap_or(i64::MIN), nanos: d.subsec_nanos() }
        }
    }
}

pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(timestamp(t)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        // What fuser makes of the kernel's (-2 s, 800,000,000 ns), which is 1.2 s before 1970.
        let from_fuser = SystemTime::UNIX_EPOCH - Duration::new(2, 800_000_000);
        let t = timestamp(from_fuser);
        assert_eq!(t, Timestamp { secs: -2, nanos: 800_000_000 });
        // What fuser sends is computed from the true instant.
        assert_eq!(system_time(t), SystemTime::UNIX_EPOCH - Duration::from_millis(1200));
        assert_eq!(system_time(Timestamp { secs: 5, nanos: 7 }), SystemTime::UNIX_EPOCH + Duration::new(5, 7));
    }

    #[test]
    fn extreme_times_do_not_panic() {
        for t in [Timestamp { secs: i64::MIN, nanos: 0 }, Timestamp { secs: i64::MAX, nanos: 999_999_999 }] {
            assert_eq!(timestamp(system_time(t)).secs, t.secs);
        }
    }

    #[test]
    fn mknod_knows_all_types_but_directories_and_links() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFSOCK | 0o755), Some(FileKind::Socket));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
    }
}

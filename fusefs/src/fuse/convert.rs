//! Between our types and the protocol's.

use std::time::Duration;

use hiloop_manifest::schema::{Attr, FileKind, Timestamp};
use hiloop_transport as proto;
use hiloop_types::Ino;

use super::kernel::FOREVER;
use crate::fs::Node;
use crate::fs::attr::{SetAttr, SetTime};

/// Inode numbers are never used twice, so that one generation is enough.
const GENERATION: u64 = 0;
/// Shown as the size of a directory, as ext4 shows a small one: programs take 0 for empty.
const DIRECTORY_SIZE: u64 = 4096;
const BLOCK_SIZE: u32 = 4096;

/// The type bits of a mode.
pub(super) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
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

pub(super) fn file_attr(ino: Ino, a: &Attr) -> proto::Attr {
    proto::Attr {
        ino: ino.0,
        size: if a.kind == FileKind::Directory { DIRECTORY_SIZE } else { a.size },
        blocks: a.allocated.div_ceil(512),
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        btime: time(a.btime),
        mode: type_bits(a.kind) | a.mode & 0o7777,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: BLOCK_SIZE,
    }
}

/// A node with its attributes, to be kept for ever.
pub(super) fn entry(ino: Ino, attr: &Attr) -> proto::Entry {
    proto::Entry { nodeid: ino.0, generation: GENERATION, entry_valid: FOREVER, attr_valid: FOREVER, attr: file_attr(ino, attr) }
}

/// As [`entry`].
pub(super) fn node_entry(node: &Node) -> proto::Entry {
    entry(node.ino, &node.attr)
}

fn time(t: Timestamp) -> proto::Time {
    proto::Time { secs: t.secs, nanos: t.nanos }
}

fn timestamp(t: proto::Time) -> Timestamp {
    // The kernel sends no other; a stamp that claims a second or more of nanoseconds could not be stored.
    Timestamp { secs: t.secs, nanos: t.nanos.min(Duration::from_secs(1).as_nanos() as u32 - 1) }
}

pub(super) fn set_attr(set: &proto::SetAttr) -> SetAttr {
    let set_time = |t| match t {
        proto::SetTime::Now => SetTime::Now,
        proto::SetTime::At(t) => SetTime::At(timestamp(t)),
    };
    let proto::SetAttr { mode, uid, gid, size, .. } = *set;
    SetAttr { mode, uid, gid, size, atime: set.atime.map(set_time), mtime: set.mtime.map(set_time), ctime: set.ctime.map(timestamp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_beyond_all_clocks_survive_both_ways() {
        for t in [(-2, 800_000_000), (i64::MIN, 0), (i64::MAX, 999_999_999)].map(|(secs, nanos)| Timestamp { secs, nanos }) {
            assert_eq!(timestamp(time(t)), t);
        }
        assert_eq!(timestamp(proto::Time { secs: 0, nanos: u32::MAX }).nanos, 999_999_999);
    }

    #[test]
    fn mknod_knows_all_types_but_directories_and_links() {
        assert_eq!(kind_of_mode(0o644), Some(FileKind::File));
        assert_eq!(kind_of_mode(libc::S_IFSOCK | 0o755), Some(FileKind::Socket));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
        assert_eq!(kind_of_mode(libc::S_IFLNK), None);
    }

    #[test]
    fn a_mode_has_its_type() {
        let attr = Attr::new(FileKind::Symlink, 0o777, 1, 2, Timestamp::default());
        assert_eq!(file_attr(Ino(3), &attr).mode, 0o120_777);
    }
}

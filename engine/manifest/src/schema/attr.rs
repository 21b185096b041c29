//! Attributes of an inode.

use hiloop_types::{Ino, Result, Session, WriterEpoch, limits};

use super::{Reader, Writer};

const VERSION: u8 = 1;

/// Type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl FileKind {
    /// Reads the stored byte.
    pub fn from_u8(b: u8) -> Option<Self> {
        Some(match b {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// Seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds, below 1e9.
    pub nanos: u32,
}

impl Timestamp {
    /// From a duration since 1970.
    pub fn from_wall(d: std::time::Duration) -> Self {
        Self { secs: d.as_secs() as i64, nanos: d.subsec_nanos() }
    }
    fn encode(self, w: &mut Writer) {
        w.int(self.secs);
        w.uint(u64::from(self.nanos));
    }
    fn decode(r: &mut Reader<'_>, field: &'static str) -> Result<Self> {
        let t = Self { secs: r.int(field)?, nanos: r.u32(field)? };
        if t.nanos >= 1_000_000_000 { Err(r.bad(field, t.nanos)) } else { Ok(t) }
    }
}

/// Attributes of an inode, as `stat` shows them, and what a directory or link needs besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Logical size, bytes (symlinks: length of the target; directories: 0).
    pub size: u64,
    /// Bytes that are not holes: what the quota and `st_blocks` count.
    pub allocated: u64,
    /// Last access as set by people; reads do not move it.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Directories: the directory above (the root: itself). Others: 0.
    pub parent: Ino,
    /// Directories: index of the next entry; never decreases, so a readdir cookie is never reused.
    pub next_index: u64,
    /// Directories: number of entries.
    pub entries: u64,
    /// Directories: about where the numbers of what is in it start, a hint that costs nothing where it is wrong; 0 for none. Who
    /// misses a name fetches the inodes `children..children + entries` with it.
    pub children: Ino,
    /// Epoch of the opening that created the inode: with `birth_session` it tells equal numbers in sibling forks apart.
    pub birth_epoch: WriterEpoch,
    /// Session of the opening that created the inode.
    pub birth_session: Session,
    /// Symbolic links: the target.
    pub target: Vec<u8>,
}

impl Attr {
    /// A new inode with one name (directories: two) and equal times.
    pub fn new(kind: FileKind, mode: u32, uid: u32, gid: u32, now: Timestamp) -> Self {
        Self {
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            rdev: 0,
            parent: Ino(0),
            next_index: 1,
            entries: 0,
            children: Ino(0),
            birth_epoch: WriterEpoch(0),
            birth_session: Session(0),
            target: Vec::new(),
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(96 + self.target.len());
        w.u8(VERSION);
        w.u8(self.kind as u8);
        for v in [u64::from(self.mode), self.uid.into(), self.gid.into(), self.nlink.into(), self.size, self.allocated] {
            w.uint(v);
        }
        for t in [self.atime, self.mtime, self.ctime, self.btime] {
            t.encode(&mut w);
        }
        for v in [u64::from(self.rdev), self.parent.0, self.next_index, self.entries, self.children.0, self.birth_epoch.0] {
            w.uint(v);
        }
        w.raw(&self.birth_session.0.to_be_bytes());
        w.bytes(&self.target);
        w.0
    }

    /// Reads the stored form.
    pub fn decode(b: &[u8]) -> Result<Self> {
        let mut r = Reader::new(b, "inode attributes");
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(r.bad("version", version).hint("a newer hiloop wrote this workspace; upgrade this one"));
        }
        let kind = r.u8("kind")?;
        let kind = FileKind::from_u8(kind).ok_or_else(|| r.bad("kind", kind))?;
        let attr = Self {
            kind,
            mode: r.u32("mode")?,
            uid: r.u32("uid")?,
            gid: r.u32("gid")?,
            nlink: r.u32("nlink")?,
            size: r.uint("size")?,
            allocated: r.uint("allocated")?,
            atime: Timestamp::decode(&mut r, "atime")?,
            mtime: Timestamp::decode(&mut r, "mtime")?,
            ctime: Timestamp::decode(&mut r, "ctime")?,
            btime: Timestamp::decode(&mut r, "btime")?,
            rdev: r.u32("rdev")?,
            parent: Ino(r.uint("parent")?),
            next_index: r.uint("next_index")?,
            entries: r.uint("entries")?,
            children: Ino(r.uint("children")?),
            birth_epoch: WriterEpoch(r.uint("birth_epoch")?),
            birth_session: Session(u64::from_be_bytes(r.array("birth_session")?)),
            target: r.bytes(limits::SYMLINK_MAX, "target")?.to_vec(),
        };
        r.end()?;
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of version 1; a change of format must add a version, not move these.
    const FIXTURE: &str = "0101a403e807e907010a808008010502070609080100000000000300000000000007b0\
                           00";

    fn sample() -> Attr {
        let t = |secs, nanos| Timestamp { secs, nanos };
        Attr {
            nlink: 1,
            size: 10,
            allocated: 0x20000,
            atime: t(-1, 5),
            mtime: t(1, 7),
            ctime: t(3, 9),
            btime: t(4, 1),
            next_index: 0,
            birth_epoch: WriterEpoch(3),
            birth_session: Session(0x7b0),
            ..Attr::new(FileKind::File, 0o644, 1000, 1001, Timestamp::default())
        }
    }

    #[test]
    fn version_1_fixture() {
        let hex: String = sample().encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, FIXTURE.replace([' ', '\n'], ""));
        assert_eq!(Attr::decode(&sample().encode()).unwrap(), sample());
    }

    proptest! {
        #[test]
        fn decode_never_panics(b in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Attr::decode(&b);
        }
    }
}

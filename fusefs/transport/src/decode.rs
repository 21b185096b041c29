//! From the bytes of a request to a [`Request`]. Total: any bytes give a request or a reason, never a panic.

use crate::abi::{IN_HEADER, Opcode, fattr, write};
use crate::request::{Forgets, Groups, Init, Lock, Operation, Request, SetAttr, SetTime, Time};

/// FUSE_GETATTR_FH: the handle is valid.
const GETATTR_FH: u32 = 1;
const READ_LOCKOWNER: u32 = 1 << 1;
const RELEASE_FLUSH: u32 = 1;
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
const FDATASYNC: u32 = 1;
const LK_FLOCK: u32 = 1;
const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Kind of request extension that carries groups; lower kinds are security contexts.
const EXT_GROUPS: u32 = 32;

/// A request that is not what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed FUSE request: {what} (opcode {opcode:?}, unique {unique:#x}, node {nodeid})")]
pub struct Malformed {
    /// Number to answer to; 0 where not even the header is there.
    pub unique: u64,
    /// What it claims to be.
    pub opcode: Opcode,
    /// The node in its header.
    pub nodeid: u64,
    /// What is wrong.
    pub what: &'static str,
}

/// How the requests of a connection are laid out, as far as INIT decides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// SETXATTR has the longer form ([`crate::abi::init::SETXATTR_EXT`]).
    pub setxattr_ext: bool,
}

/// Decodes one message of a connection without extended layouts.
///
/// # Errors
/// What is wrong with it.
pub fn decode(message: &[u8]) -> Result<Request<'_>, Malformed> {
    Layout::default().decode(message)
}

impl Layout {
    /// Decodes one message.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(self, message: &[u8]) -> Result<Request<'_>, Malformed> {
        let mut h = Fields(message);
        let mut header = || Some((h.u32()?, h.u32()?, h.u64()?, h.u64()?, h.u32()?, h.u32()?, h.u32()?, h.u16()?, h.u16()?));
        let Some((len, opcode, unique, nodeid, uid, gid, pid, ext_words, _)) = header() else {
            return Err(Malformed { unique: 0, opcode: Opcode(0), nodeid: 0, what: "shorter than its header" });
        };
        let opcode = Opcode(opcode);
        let wrong = |what| Malformed { unique, opcode, nodeid, what };
        if len as usize != message.len() {
            return Err(wrong("its length is not what it says"));
        }
        let body = &message[IN_HEADER..];
        let (body, extensions) = body
            .split_at_checked(body.len().wrapping_sub(usize::from(ext_words) * 8))
            .ok_or_else(|| wrong("extensions longer than the whole"))?;
        let op = self.operation(opcode, Fields(body)).ok_or_else(|| wrong("arguments too short"))?;
        Ok(Request { unique, opcode, nodeid, uid, gid, pid, groups: groups(extensions), op })
    }

    fn operation(self, opcode: Opcode, mut f: Fields<'_>) -> Option<Operation<'_>> {
        use Operation as Op;
        Some(match opcode {
            Opcode::LOOKUP => Op::Lookup { name: f.name()? },
            Opcode::FORGET => Op::Forget { nlookup: f.u64()? },
            Opcode::BATCH_FORGET => {
                let count = f.u32()? as usize;
                f.skip(4)?;
                Op::BatchForget(Forgets(f.bytes(count.checked_mul(16)?)?))
            }
            Opcode::GETATTR => {
                let flags = f.u32()?;
                f.skip(4)?;
                let fh = f.u64()?;
                Op::GetAttr { fh: (flags & GETATTR_FH != 0).then_some(fh) }
            }
            Opcode::SETATTR => Op::SetAttr(f.setattr()?),
            Opcode::READLINK => Op::ReadLink,
            Opcode::SYMLINK => Op::SymLink { name: f.name()?, target: f.name()? },
            Opcode::MKNOD => {
                let (mode, rdev, umask) = (f.u32()?, f.u32()?, f.u32()?);
                f.skip(4)?;
                Op::MkNod { name: f.name()?, mode, umask, rdev }
            }
            Opcode::MKDIR => {
                let (mode, umask) = (f.u32()?, f.u32()?);
                Op::MkDir { name: f.name()?, mode, umask }
            }
            Opcode::UNLINK => Op::Unlink { name: f.name()? },
            Opcode::RMDIR => Op::RmDir { name: f.name()? },
            Opcode::RENAME => {
                let new_dir = f.u64()?;
                Op::Rename { name: f.name()?, new_dir, new_name: f.name()?, flags: 0 }
            }
            Opcode::RENAME2 => {
                let (new_dir, flags) = (f.u64()?, f.u32()?);
                f.skip(4)?;
                Op::Rename { name: f.name()?, new_dir, new_name: f.name()?, flags }
            }
            Opcode::LINK => Op::Link { node: f.u64()?, new_name: f.name()? },
            Opcode::OPEN => Op::Open { flags: f.i32()?, open_flags: f.u32()? },
            Opcode::OPENDIR => Op::OpenDir { flags: f.i32()?, open_flags: f.u32()? },
            Opcode::READ => {
                let r = f.read()?;
                Op::Read { fh: r.fh, offset: r.offset, size: r.size, flags: r.flags, lock_owner: r.lock_owner }
            }
            Opcode::READDIR => {
                let r = f.read()?;
                Op::ReadDir { fh: r.fh, offset: r.offset, size: r.size, flags: r.flags }
            }
            Opcode::READDIRPLUS => {
                let r = f.read()?;
                Op::ReadDirPlus { fh: r.fh, offset: r.offset, size: r.size, flags: r.flags }
            }
            Opcode::WRITE => {
                let (fh, offset, size, write_flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
                let (owner, flags) = (f.u64()?, f.i32()?);
                f.skip(4)?;
                let lock_owner = (write_flags & write::LOCKOWNER != 0).then_some(owner);
                Op::Write { fh, offset, data: f.bytes(size as usize)?, write_flags, flags, lock_owner }
            }
            Opcode::STATFS => Op::StatFs,
            Opcode::RELEASE => {
                let (fh, flags, how, lock_owner) = (f.u64()?, f.i32()?, f.u32()?, f.u64()?);
                Op::Release { fh, flags, flush: how & RELEASE_FLUSH != 0, flock_unlock: how & RELEASE_FLOCK_UNLOCK != 0, lock_owner }
            }
            Opcode::RELEASEDIR => Op::ReleaseDir { fh: f.u64()?, flags: f.i32()? },
            Opcode::FSYNC => Op::FSync { fh: f.u64()?, datasync: f.u32()? & FDATASYNC != 0 },
            Opcode::FSYNCDIR => Op::FSyncDir { fh: f.u64()?, datasync: f.u32()? & FDATASYNC != 0 },
            Opcode::SETXATTR => {
                let (size, flags) = (f.u32()?, f.i32()?);
                let extra = if self.setxattr_ext { (f.u32()?, f.u32()?).0 } else { 0 };
                let name = f.name()?;
                let acl_kill_sgid = extra & SETXATTR_ACL_KILL_SGID != 0;
                Op::SetXattr { name, value: f.bytes(size as usize)?, flags, acl_kill_sgid }
            }
            Opcode::GETXATTR => {
                let size = f.u32()?;
                f.skip(4)?;
                Op::GetXattr { name: f.name()?, size }
            }
            Opcode::LISTXATTR => Op::ListXattr { size: f.u32()? },
            Opcode::REMOVEXATTR => Op::RemoveXattr { name: f.name()? },
            Opcode::FLUSH => {
                let fh = f.u64()?;
                f.skip(8)?;
                Op::Flush { fh, lock_owner: f.u64()? }
            }
            Opcode::INIT => {
                let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                // Older kernels end here.
                let high = f.u32().unwrap_or(0);
                Op::Init(Init { major, minor, max_readahead, flags: u64::from(high) << 32 | u64::from(low) })
            }
            Opcode::GETLK => {
                let (fh, owner, lock, _) = f.lock()?;
                Op::GetLk { fh, owner, lock }
            }
            Opcode::SETLK | Opcode::SETLKW => {
                let (fh, owner, lock, flags) = f.lock()?;
                Op::SetLk { fh, owner, lock, flock: flags & LK_FLOCK != 0, wait: opcode == Opcode::SETLKW }
            }
            Opcode::ACCESS => Op::Access { mask: f.i32()? },
            Opcode::CREATE => {
                let (flags, mode, umask, open_flags) = (f.i32()?, f.u32()?, f.u32()?, f.u32()?);
                Op::Create { name: f.name()?, flags, mode, umask, open_flags }
            }
            Opcode::TMPFILE => {
                // A name follows, which means nothing.
                Op::TmpFile { flags: f.i32()?, mode: f.u32()?, umask: f.u32()?, open_flags: f.u32()? }
            }
            Opcode::INTERRUPT => Op::Interrupt { unique: f.u64()? },
            Opcode::BMAP => Op::BMap { block: f.u64()?, blocksize: f.u32()? },
            Opcode::DESTROY => Op::Destroy,
            Opcode::IOCTL => {
                let (fh, flags, cmd, arg, in_size, out_size) = (f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?, f.u32()?);
                Op::IoCtl { fh, flags, cmd, arg, data: f.bytes(in_size as usize)?, out_size }
            }
            Opcode::POLL => Op::Poll { fh: f.u64()?, kh: f.u64()?, flags: f.u32()?, events: f.u32()? },
            Opcode::NOTIFY_REPLY => {
                f.skip(8)?;
                let (offset, size) = (f.u64()?, f.u32()?);
                f.skip(20)?;
                Op::NotifyReply { offset, data: f.bytes(size as usize)? }
            }
            Opcode::FALLOCATE => {
                let (fh, offset, length, mode) = (f.u64()?, f.u64()?, f.u64()?, f.i32()?);
                Op::FAllocate { fh, offset, length, mode }
            }
            Opcode::LSEEK => Op::LSeek { fh: f.u64()?, offset: f.i64()?, whence: f.i32()? },
            Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange {
                fh_in: f.u64()?,
                offset_in: f.u64()?,
                node_out: f.u64()?,
                fh_out: f.u64()?,
                offset_out: f.u64()?,
                len: f.u64()?,
                flags: f.u64()?,
            },
            Opcode::SYNCFS => Op::SyncFs,
            Opcode::STATX => {
                let flags = f.u32()?;
                f.skip(4)?;
                let fh = f.u64()?;
                Op::StatX { fh: (flags & GETATTR_FH != 0).then_some(fh), flags: f.u32()?, mask: f.u32()? }
            }
            _ => Op::Unknown,
        })
    }
}

/// The groups among the extensions of a request. What is malformed there counts as absent: groups only ever allow more.
fn groups(extensions: &[u8]) -> Groups<'_> {
    let mut rest = Fields(extensions);
    while let Some((size, kind)) = rest.u32().zip(rest.u32()) {
        let Some(mut body) = (size as usize).checked_sub(8).and_then(|n| rest.bytes(n)).map(Fields) else { break };
        if kind == EXT_GROUPS {
            let count = body.u32().unwrap_or(0) as usize;
            return Groups(count.checked_mul(4).and_then(|n| body.bytes(n)).unwrap_or_default());
        }
    }
    Groups::default()
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

struct ReadArgs {
    fh: u64,
    offset: u64,
    size: u32,
    flags: i32,
    lock_owner: Option<u64>,
}

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }
    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_ne_bytes)
    }
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn skip(&mut self, n: usize) -> Option<()> {
        self.bytes(n).map(drop)
    }
    /// Up to a NUL, which is skipped.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Some(name)
    }

    fn read(&mut self) -> Option<ReadArgs> {
        let (fh, offset, size, read_flags, owner) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?, self.u64()?);
        Some(ReadArgs { fh, offset, size, flags: self.i32()?, lock_owner: (read_flags & READ_LOCKOWNER != 0).then_some(owner) })
    }

    fn lock(&mut self) -> Option<(u64, u64, Lock, u32)> {
        let (fh, owner) = (self.u64()?, self.u64()?);
        let lock = Lock { start: self.u64()?, end: self.u64()?, kind: self.u32()?, pid: self.u32()? };
        Some((fh, owner, lock, self.u32()?))
    }

    fn setattr(&mut self) -> Option<SetAttr> {
        let valid = self.u32()?;
        self.skip(4)?;
        let (fh, size, owner) = (self.u64()?, self.u64()?, self.u64()?);
        let (atime, mtime, ctime) = (self.i64()?, self.i64()?, self.i64()?);
        let (ananos, mnanos, cnanos) = (self.u32()?, self.u32()?, self.u32()?);
        let mode = self.u32()?;
        self.skip(4)?;
        let (uid, gid) = (self.u32()?, self.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let time = |set, now, secs, nanos: u32| {
            // Whoever reads the nanoseconds may rely on their range.
            let at = SetTime::At(Time { secs, nanos: nanos.min(999_999_999) });
            has(set).then_some(if has(now) { SetTime::Now } else { at })
        };
        Some(SetAttr {
            mode: has(fattr::MODE).then_some(mode),
            uid: has(fattr::UID).then_some(uid),
            gid: has(fattr::GID).then_some(gid),
            size: has(fattr::SIZE).then_some(size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, ananos),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mnanos),
            ctime: has(fattr::CTIME).then_some(Time { secs: ctime, nanos: cnanos.min(999_999_999) }),
            fh: has(fattr::FH).then_some(fh),
            lock_owner: has(fattr::LOCKOWNER).then_some(owner),
            kill_suidgid: has(fattr::KILL_SUIDGID),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(opcode: u32, ext_words: u16, body: &[u8]) -> Vec<u8> {
        let mut m = Vec::new();
        for n in [(IN_HEADER + body.len()) as u32, opcode] {
            m.extend(n.to_ne_bytes());
        }
        for n in [6u64, 9] {
            m.extend(n.to_ne_bytes());
        }
        for n in [1000u32, 1001, 42] {
            m.extend(n.to_ne_bytes());
        }
        m.extend(ext_words.to_ne_bytes());
        m.extend([0; 2]);
        m.extend(body);
        m
    }

    /// Touches everything that is read lazily.
    fn walk(r: &Request<'_>) -> u64 {
        let groups: u64 = r.groups.iter().map(u64::from).fold(0, u64::wrapping_add);
        match r.op {
            Operation::BatchForget(f) => f.iter().fold(groups, |n, (node, count)| n.wrapping_add(node ^ count)),
            _ => groups,
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(r) = decode(&bytes) {
                walk(&r);
            }
        }

        #[test]
        fn any_arguments_under_a_right_header_are_decoded_or_refused(
            opcode in 0u32..60, ext in 0u16..8, long in any::<bool>(), body in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200),
        ) {
            let m = message(opcode, ext, &body);
            match (Layout { setxattr_ext: long }).decode(&m) {
                Ok(r) => { walk(&r); }
                Err(e) => prop_assert_eq!((e.unique, e.nodeid), (6, 9)),
            }
        }

        #[test]
        fn a_cut_write_is_refused(data in prop::collection::vec(any::<u8>(), 1..64), cut in 1usize..64) {
            let mut body = vec![0; 40];
            body[16..20].copy_from_slice(&(data.len() as u32).to_ne_bytes());
            body.extend(&data[..data.len().saturating_sub(cut)]);
            prop_assert!(decode(&message(Opcode::WRITE.0, 0, &body)).is_err());
        }
    }

    #[test]
    fn names_end_at_their_nul_and_two_follow_each_other() {
        let mut body = 77u64.to_ne_bytes().to_vec();
        body.extend(5u32.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(b"old\0new name\0");
        let m = message(Opcode::RENAME2.0, 0, &body);
        let r = decode(&m).unwrap();
        assert_eq!((r.uid, r.gid, r.pid, r.nodeid, r.key()), (1000, 1001, 42, 9, 6));
        let Operation::Rename { name, new_dir, new_name, flags } = r.op else { panic!("{:?}", r.op) };
        assert_eq!((name, new_dir, new_name, flags), (&b"old"[..], 77, &b"new name"[..], 5));
        assert!(decode(&message(Opcode::LOOKUP.0, 0, b"no end")).is_err());
    }

    #[test]
    fn all_bits_of_setattr_are_told_apart() {
        let body = |valid: u32| {
            let mut b = valid.to_ne_bytes().to_vec();
            b.extend([0; 4]);
            [1u64, 2, 3, 4, 5, 6].iter().for_each(|n| b.extend(n.to_ne_bytes()));
            [7u32, 8, u32::MAX, 9, 0, 10, 11, 0].iter().for_each(|n| b.extend(n.to_ne_bytes()));
            message(Opcode::SETATTR.0, 0, &b)
        };
        let get = |valid| match decode(&body(valid)).unwrap().op {
            Operation::SetAttr(s) => s,
            op => panic!("{op:?}"),
        };
        assert_eq!(get(0), SetAttr::default());
        assert_eq!(get(fattr::MODE).mode, Some(9));
        assert_eq!((get(fattr::UID).uid, get(fattr::GID).gid), (Some(10), Some(11)));
        assert_eq!((get(fattr::FH).fh, get(fattr::SIZE).size, get(fattr::LOCKOWNER).lock_owner), (Some(1), Some(2), Some(3)));
        assert_eq!(get(fattr::ATIME).atime, Some(SetTime::At(Time { secs: 4, nanos: 7 })));
        assert_eq!(get(fattr::MTIME | fattr::MTIME_NOW).mtime, Some(SetTime::Now));
        assert_eq!(get(fattr::CTIME).ctime, Some(Time { secs: 6, nanos: 999_999_999 }));
        assert!(get(fattr::KILL_SUIDGID).kill_suidgid);
    }

    #[test]
    fn groups_are_found_behind_other_extensions() {
        let mut body = vec![0u8; 8];
        body.extend(b"d\0");
        body.resize(16, 0);
        let mut ext = Vec::new();
        for n in [16u32, 3, 0, 0, 24, EXT_GROUPS, 2, 100, 200, 0] {
            ext.extend(n.to_ne_bytes());
        }
        body.extend(&ext);
        let m = message(Opcode::MKDIR.0, (ext.len() / 8) as u16, &body);
        let r = decode(&m).unwrap();
        assert_eq!(r.groups.iter().collect::<Vec<_>>(), [100, 200]);
        assert!(matches!(r.op, Operation::MkDir { name: b"d", .. }));
    }

    #[test]
    fn unknown_numbers_are_requests_of_their_own() {
        let m = message(4711, 0, b"whatever");
        assert!(matches!(decode(&m).unwrap().op, Operation::Unknown));
    }
}

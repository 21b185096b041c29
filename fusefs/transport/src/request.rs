//! Requests, free of any transport: the device loop decodes them, fuser's trait can fill them in as well.

use crate::abi::{Opcode, UNIQUE_RESEND};

/// A point in time as the kernel tells it: nanoseconds count forward also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the request is done.
    Now,
    /// This one.
    At(Time),
}

/// One request of the kernel. Names and data borrow the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Number of the request, with the bit that marks a resent one; unique on its connection. Zero where the transport has none.
    pub unique: u64,
    /// Its kind.
    pub opcode: Opcode,
    /// The node it is about; for names, their directory.
    pub nodeid: u64,
    /// User of the caller (file system user).
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Thread of the caller, 0 where the kernel asks for itself.
    pub pid: u32,
    /// Supplementary groups, where INIT asked for them ([`crate::abi::init::CREATE_SUPP_GROUP`]) and the kernel found them to matter.
    pub groups: Groups<'a>,
    /// What to do.
    pub op: Operation<'a>,
}

impl Request<'_> {
    /// Number without the mark of a resent request: the same at first sight and when it comes back.
    pub fn key(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }

    /// True for a request that was handed out before, perhaps to a process that died; its effect may have been applied.
    pub fn resent(&self) -> bool {
        self.unique & UNIQUE_RESEND != 0
    }
}

/// Supplementary groups of a caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a>(pub(crate) &'a [u8]);

impl Groups<'_> {
    /// The groups.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.as_chunks::<4>().0.iter().map(|g| u32::from_ne_bytes(*g))
    }
}

/// Nodes that the kernel lets go, each with a number of references.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a>(pub(crate) &'a [u8]);

impl Forgets<'_> {
    /// Pairs of node and references.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.as_chunks::<8>().0.chunks_exact(2).map(|pair| (u64::from_ne_bytes(pair[0]), u64::from_ne_bytes(pair[1])))
    }
}

/// Attributes to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; the type bits repeat what the node is.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last write.
    pub mtime: Option<SetTime>,
    /// Time of the last change; only with the writeback cache.
    pub ctime: Option<Time>,
    /// Handle of an open file, for ftruncate and the like.
    pub fh: Option<u64>,
    /// Owner of locks.
    pub lock_owner: Option<u64>,
    /// Drop the set-user-id and set-group-id bits.
    pub kill_suidgid: bool,
}

/// A record lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// F_RDLCK, F_WRLCK, F_UNLCK.
    pub kind: u32,
    /// Process that holds it.
    pub pid: u32,
}

/// What the kernel offers at the start of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// Version of the protocol.
    pub major: u32,
    /// Its minor part.
    pub minor: u32,
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Flags of [`crate::abi::init`].
    pub flags: u64,
}

/// What a request asks for. Numbers have the kernel's meaning: `flags` of an open are the caller's O_ flags, `fh` is what the answer
/// to the open gave, names have no NUL.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are those of the protocol")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr {
        fh: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_dir: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: i32,
        open_flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        flags: i32,
        lock_owner: Option<u64>,
    },
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: i32,
        lock_owner: Option<u64>,
    },
    StatFs,
    Release {
        fh: u64,
        flags: i32,
        flush: bool,
        flock_unlock: bool,
        lock_owner: u64,
    },
    FSync {
        fh: u64,
        datasync: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
        acl_kill_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Init(Init),
    OpenDir {
        flags: i32,
        open_flags: u32,
    },
    ReadDir {
        fh: u64,
        offset: u64,
        size: u32,
        flags: i32,
    },
    ReadDirPlus {
        fh: u64,
        offset: u64,
        size: u32,
        flags: i32,
    },
    ReleaseDir {
        fh: u64,
        flags: i32,
    },
    FSyncDir {
        fh: u64,
        datasync: bool,
    },
    GetLk {
        fh: u64,
        owner: u64,
        lock: Lock,
    },
    SetLk {
        fh: u64,
        owner: u64,
        lock: Lock,
        flock: bool,
        wait: bool,
    },
    Access {
        mask: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    TmpFile {
        flags: i32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    Interrupt {
        unique: u64,
    },
    BMap {
        block: u64,
        blocksize: u32,
    },
    Destroy,
    IoCtl {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        data: &'a [u8],
        out_size: u32,
    },
    Poll {
        fh: u64,
        kh: u64,
        flags: u32,
        events: u32,
    },
    NotifyReply {
        offset: u64,
        data: &'a [u8],
    },
    FAllocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    LSeek {
        fh: u64,
        offset: i64,
        whence: i32,
    },
    CopyFileRange {
        fh_in: u64,
        offset_in: u64,
        node_out: u64,
        fh_out: u64,
        offset_out: u64,
        len: u64,
        flags: u64,
    },
    SyncFs,
    StatX {
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// Nothing this crate knows; it is answered with ENOSYS, after which the kernel does without.
    Unknown,
}

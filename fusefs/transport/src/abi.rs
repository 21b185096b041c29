//! The numbers of the kernel's FUSE protocol, version 7.
//!
//! Facts of `include/uapi/linux/fuse.h` (Miklos Szeredi and others; GPL-2.0 WITH Linux-syscall-note OR BSD-2-Clause) up to 7.45, the
//! version of Linux 6.18, written down anew. Layouts are where they are used: requests in `decode`, answers in `encode`,
//! notifications in `notify`, INIT in `init`. All numbers are in the byte order of the machine.

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version whose layouts are known here.
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: the first whose INIT carries 64 flags (Linux 5.17).
pub const MINOR_MIN: u32 = 36;

/// Node number of a mount's root.
pub const ROOT: u64 = 1;
/// Bit of `unique` that marks a request which was handed out before and came back after RESEND. The answer keeps it.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Bytes of a request's header.
pub const IN_HEADER: usize = 40;
/// Bytes of an answer's header.
pub const OUT_HEADER: usize = 16;

/// A kind of request, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u32);

macro_rules! opcodes {
    ($($name:ident = $number:literal $text:literal),* $(,)?) => {
        impl Opcode {
            $(#[doc = concat!("FUSE_", stringify!($name), ".")] pub const $name: Opcode = Opcode($number);)*

            /// The protocol's name in lower case; `unknown` for a number this crate has never heard of.
            pub const fn name(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "unknown" }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1 "lookup", FORGET = 2 "forget", GETATTR = 3 "getattr", SETATTR = 4 "setattr", READLINK = 5 "readlink",
    SYMLINK = 6 "symlink", MKNOD = 8 "mknod", MKDIR = 9 "mkdir", UNLINK = 10 "unlink", RMDIR = 11 "rmdir", RENAME = 12 "rename",
    LINK = 13 "link", OPEN = 14 "open", READ = 15 "read", WRITE = 16 "write", STATFS = 17 "statfs", RELEASE = 18 "release",
    FSYNC = 20 "fsync", SETXATTR = 21 "setxattr", GETXATTR = 22 "getxattr", LISTXATTR = 23 "listxattr",
    REMOVEXATTR = 24 "removexattr", FLUSH = 25 "flush", INIT = 26 "init", OPENDIR = 27 "opendir", READDIR = 28 "readdir",
    RELEASEDIR = 29 "releasedir", FSYNCDIR = 30 "fsyncdir", GETLK = 31 "getlk", SETLK = 32 "setlk", SETLKW = 33 "setlkw",
    ACCESS = 34 "access", CREATE = 35 "create", INTERRUPT = 36 "interrupt", BMAP = 37 "bmap", DESTROY = 38 "destroy",
    IOCTL = 39 "ioctl", POLL = 40 "poll", NOTIFY_REPLY = 41 "notify_reply", BATCH_FORGET = 42 "batch_forget",
    FALLOCATE = 43 "fallocate", READDIRPLUS = 44 "readdirplus", RENAME2 = 45 "rename2", LSEEK = 46 "lseek",
    COPY_FILE_RANGE = 47 "copy_file_range", SETUPMAPPING = 48 "setupmapping", REMOVEMAPPING = 49 "removemapping",
    SYNCFS = 50 "syncfs", TMPFILE = 51 "tmpfile", STATX = 52 "statx", COPY_FILE_RANGE_64 = 53 "copy_file_range_64",
}

impl Opcode {
    /// True where doing the request twice may differ from doing it once, or where its answer names something it made: these are
    /// answered from their record when they come back after RESEND.
    pub const fn mutates(self) -> bool {
        matches!(
            self,
            Self::SETATTR
                | Self::SYMLINK
                | Self::MKNOD
                | Self::MKDIR
                | Self::UNLINK
                | Self::RMDIR
                | Self::RENAME
                | Self::RENAME2
                | Self::LINK
                | Self::WRITE
                | Self::RELEASE
                | Self::RELEASEDIR
                | Self::SETXATTR
                | Self::REMOVEXATTR
                | Self::CREATE
                | Self::TMPFILE
                | Self::FALLOCATE
                | Self::COPY_FILE_RANGE
                | Self::COPY_FILE_RANGE_64
        )
    }
}

impl std::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// Flags of INIT, offered by the kernel and chosen by us.
#[allow(missing_docs, reason = "named after the protocol, which describes them")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const SUBMOUNTS: u64 = 1 << 27;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// Flags in the answer to OPEN, OPENDIR, CREATE and TMPFILE.
#[allow(missing_docs, reason = "named after the protocol, which describes them")]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Flags of WRITE.
pub mod write {
    /// Written-back pages: the handle is a guess, and nobody completes a short count.
    pub const CACHE: u32 = 1 << 0;
    /// The lock owner is valid.
    pub const LOCKOWNER: u32 = 1 << 1;
    /// Drop the set-user-id and set-group-id bits.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Flags of OPEN and CREATE: drop the set-user-id and set-group-id bits of a file that is truncated.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// Bits of `valid` in SETATTR.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Kinds of notification.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RETRIEVE: i32 = 5;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const RESEND: i32 = 7;
    pub(crate) const INC_EPOCH: i32 = 8;
    pub(crate) const PRUNE: i32 = 9;
}

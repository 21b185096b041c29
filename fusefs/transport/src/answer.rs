//! Answers, free of any transport.

use std::io::IoSlice;
use std::time::Duration;

use crate::dirbuf::{Listing, ListingPlus};
use crate::request::{Lock, Time};

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number as stat shows it.
    pub ino: u64,
    /// Length, bytes.
    pub size: u64,
    /// Allocated, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Time,
    /// Time of the last write.
    pub mtime: Time,
    /// Time of the last change.
    pub ctime: Time,
    /// Time of creation; only statx shows it.
    pub btime: Time,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// Block size for programs that ask for a good one, bytes.
    pub blksize: u32,
}

/// A name's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Node number; 0 says that there is no such name, and that the kernel may remember so.
    pub nodeid: u64,
    /// Tells apart nodes that had the same number one after the other.
    pub generation: u64,
    /// How long the kernel may keep the name.
    pub entry_valid: Duration,
    /// How long it may keep the attributes.
    pub attr_valid: Duration,
    /// The attributes.
    pub attr: Attr,
}

impl Entry {
    /// No such name, to be remembered for `valid`.
    pub fn negative(valid: Duration) -> Self {
        Self { entry_valid: valid, ..Self::default() }
    }
}

/// What an open gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Handle that later requests carry.
    pub fh: u64,
    /// Flags of [`crate::abi::fopen`].
    pub flags: u32,
    /// Backing file ([`crate::device::backing_open`]), with `PASSTHROUGH` among the flags.
    pub backing_id: i32,
}

/// Space of a file system; sizes in units of `frsize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of statvfs(3)")]
pub struct StatFs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// One answer. Borrowed data go to the kernel from where they are.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the fields are those of the protocol")]
pub enum Answer<'a> {
    /// A positive errno.
    Error(i32),
    /// Done, nothing to say.
    Empty,
    Entry(&'a Entry),
    Attr {
        valid: Duration,
        attr: &'a Attr,
    },
    StatX {
        valid: Duration,
        attr: &'a Attr,
    },
    Opened(Opened),
    Created(&'a Entry, Opened),
    /// Content, a link's target, an attribute's value, names of attributes.
    Data(&'a [u8]),
    /// As `Data`, in parts.
    Parts(&'a [IoSlice<'a>]),
    Written(u32),
    /// Bytes copied; only the longer form of the request can tell more than 32 bits.
    Copied(u64),
    StatFs(&'a StatFs),
    /// How long an extended attribute, or the list of names, is.
    XattrSize(u32),
    LSeek(u64),
    Lock(Lock),
    BMap(u64),
    IoCtl {
        result: i32,
        data: &'a [u8],
    },
    /// Events that are ready.
    Poll(u32),
    Listing(&'a Listing),
    ListingPlus(&'a ListingPlus),
    /// The message that a request was answered with before, as [`crate::InHand::applied`] got it.
    Recorded(&'a [u8]),
}

//! Requests by opcode and what became of them. Counters only: the path of a request takes no lock for them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

macro_rules! opcodes {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(missing_docs, reason = "named after the requests of the FUSE protocol")]
        pub enum Opcode { $($variant),* }

        impl Opcode {
            /// All of them, in order of their discriminants.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$variant),*];
            /// The protocol's name in lower case, as `status` and metrics show it.
            pub const fn name(self) -> &'static str {
                match self { $(Opcode::$variant => $name),* }
            }
        }
    };
}

opcodes! {
    Lookup = "lookup", Forget = "forget", GetAttr = "getattr", SetAttr = "setattr", ReadLink = "readlink", MkNod = "mknod",
    MkDir = "mkdir", Unlink = "unlink", RmDir = "rmdir", SymLink = "symlink", Rename = "rename", Link = "link", Open = "open",
    Read = "read", Write = "write", Flush = "flush", Release = "release", FSync = "fsync", OpenDir = "opendir", ReadDir = "readdir",
    ReadDirPlus = "readdirplus", ReleaseDir = "releasedir", FSyncDir = "fsyncdir", StatFs = "statfs", SetXattr = "setxattr",
    GetXattr = "getxattr", ListXattr = "listxattr", RemoveXattr = "removexattr", Access = "access", Create = "create", Lock = "lock",
    BMap = "bmap", IoCtl = "ioctl", Poll = "poll", FAllocate = "fallocate", LSeek = "lseek", CopyFileRange = "copy_file_range",
}

/// Live counters of one mount.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: [AtomicU64; Opcode::ALL.len()],
    pub(crate) errors: AtomicU64,
    pub(crate) io_errors: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) parked_now: AtomicU64,
    pub(crate) waiting_now: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
            errors: AtomicU64::new(0),
            io_errors: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            parked_now: AtomicU64::new(0),
            waiting_now: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(crate) fn count(&self, op: Opcode) {
        self.requests[op as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self, inodes: usize, orphans: usize) -> FuseStats {
        let get = |c: &AtomicU64| c.load(Relaxed);
        FuseStats {
            requests: Opcode::ALL.iter().map(|&op| (op.name(), get(&self.requests[op as usize]))).filter(|(_, n)| *n > 0).collect(),
            errors: get(&self.errors),
            io_errors: get(&self.io_errors),
            parked: get(&self.parked),
            parked_now: get(&self.parked_now),
            waited: get(&self.waited),
            waiting_now: get(&self.waiting_now),
            delayed: get(&self.delayed),
            inodes: inodes as u64,
            orphans: orphans as u64,
        }
    }
}

/// What a mount has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FuseStats {
    /// Requests by opcode, those that came at all.
    pub requests: std::collections::BTreeMap<&'static str, u64>,
    /// Requests answered with an errno (a name that does not exist counts as an answer).
    pub errors: u64,
    /// Of these, EIO.
    pub io_errors: u64,
    /// Times a request left the reader thread to have something fetched.
    pub parked: u64,
    /// Requests that wait for a fetch now.
    pub parked_now: u64,
    /// Times a change waited for room in the backlog.
    pub waited: u64,
    /// Changes that wait for room now.
    pub waiting_now: u64,
    /// Changes whose answer was held back to slow the writer.
    pub delayed: u64,
    /// Inodes that the kernel holds.
    pub inodes: u64,
    /// Unlinked inodes that are still open.
    pub orphans: u64,
}

impl FuseStats {
    /// All requests.
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_count_under_their_own_names() {
        let c = Counters::default();
        c.count(Opcode::Lookup);
        c.count(Opcode::CopyFileRange);
        c.count(Opcode::CopyFileRange);
        let s = c.snapshot(3, 1);
        assert_eq!(s.requests.into_iter().collect::<Vec<_>>(), [("copy_file_range", 2), ("lookup", 1)]);
        assert_eq!((s.inodes, s.orphans), (3, 1));
        assert!(Opcode::ALL.iter().enumerate().all(|(i, op)| *op as usize == i));
    }
}

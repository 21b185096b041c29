//! Attributes: stat, chmod, chown, truncate, utimens.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::{Attr, Timestamp};
use hiloop_types::{Ino, limits};

use super::{Caller, FsError, FsResult, acl, attr_of, check_regular, kill_suid_sgid, xattr};

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This one.
    At(Timestamp),
}

impl SetTime {
    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(t) => t,
        }
    }
}

/// What to change; `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission and set-id bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Last change of attributes; the time of the operation where not given.
    pub ctime: Option<Timestamp>,
}

impl SetAttr {
    /// A request that changes nothing: `chown(-1, -1)`, or the kernel asking to clear set-id bits before a write.
    fn is_bare(&self) -> bool {
        *self == Self::default()
    }
}

/// Attributes of an inode, also of one without a name that is still open.
pub fn getattr(r: &impl Read, ino: Ino) -> FsResult<Attr> {
    attr_of(r, ino)
}

/// Changes attributes and returns the new ones.
///
/// Every successful call moves ctime. A change of owner clears set-id bits always (the kernel's rule for non-directories), a
/// change of size where the caller is not root; both drop `security.capability`.
///
/// # Errors
/// EISDIR or EINVAL for the size of what is no regular file, EFBIG beyond [`limits::FILE_MAX`], ESTALE.
pub fn setattr(tx: &mut Txn<'_>, caller: Caller, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
    let mut attr = attr_of(tx, ino)?;
    let now = tx.now();
    if set.uid.is_some() || set.gid.is_some() {
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        kill_suid_sgid(&mut attr);
        xattr::drop_capability(tx, ino, attr.kind)?;
    }
    if set.is_bare() && !caller.is_root() {
        kill_suid_sgid(&mut attr);
    }
    if let Some(mode) = set.mode {
        attr.mode = mode & 0o7777;
        acl::follow_chmod(tx, ino, &attr)?;
    }
    if let Some(size) = set.size {
        check_regular(&attr)?;
        if size > limits::FILE_MAX {
            return Err(FsError::Errno(libc::EFBIG));
        }
        if !caller.is_root() {
            kill_suid_sgid(&mut attr);
        }
        xattr::drop_capability(tx, ino, attr.kind)?;
        tx.truncate(ino, &mut attr, size)?;
        attr.mtime = now;
    }
    if let Some(t) = set.atime {
        attr.atime = t.resolve(now);
    }
    if let Some(t) = set.mtime {
        attr.mtime = t.resolve(now);
    }
    attr.ctime = set.ctime.unwrap_or(now);
    tx.put_attr(ino, attr.clone())?;
    Ok(attr)
}

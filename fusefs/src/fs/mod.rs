//! The file system: what every operation means, as plain functions without FUSE types.
//!
//! A function reads through [`Read`] (a `View` or a `Txn`) and changes through `Txn`; it keeps no state of its own.
//! [`FsError::Stop`] with a miss means that something is not in memory: the caller fetches it and runs the whole function again.
//! That is safe because nothing is changed before the transaction commits, and a failed one leaves no trace.
//!
//! Permissions are checked by the kernel (`default_permissions`, POSIX ACLs); what only the file system can do about them (set-id
//! bits, inherited groups and ACLs, the mask) is done here. `fusefs/SEMANTICS.md` states the rules for users.

pub mod acl;
pub mod again;
pub mod attr;
pub mod create;
pub mod data;
pub mod dir;
mod errno;
pub mod extents;
pub mod link;
pub mod lookup;
pub mod orphan;
pub mod rename;
pub mod space;
#[cfg(test)]
mod tests;
pub mod xattr;

use hiloop_engine::stop::Stop;
use hiloop_engine::workspace::{Near, Read};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_types::{Error, Ino, limits};

pub use errno::{FsError, FsResult, errno};

/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;
/// Group execute bit: with it, the set-group-id bit means set-group-id and not mandatory locking.
pub const S_IXGRP: u32 = 0o010;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
}

impl Caller {
    /// Stands in for CAP_FSETID and CAP_SYS_ADMIN, which a FUSE request does not carry.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// An inode and its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Inode number.
    pub ino: Ino,
    /// Attributes.
    pub attr: Attr,
}

/// Attributes of an inode that the kernel holds a reference to; gone means that the reference is stale.
fn attr_of(r: &impl Read, ino: Ino) -> FsResult<Attr> {
    r.attr(ino).map_err(|stop| r.near(stop, Near::Inode(ino)))?.ok_or(FsError::Errno(libc::ESTALE))
}

/// Attributes of a directory, removed or not.
fn dir_of(r: &impl Read, ino: Ino) -> FsResult<Attr> {
    let attr = attr_of(r, ino)?;
    if attr.kind == FileKind::Directory { Ok(attr) } else { Err(FsError::Errno(libc::ENOTDIR)) }
}

/// Attributes of a directory that still has a name, so that entries may be added to it.
fn live_dir(r: &impl Read, ino: Ino) -> FsResult<Attr> {
    let attr = dir_of(r, ino)?;
    if attr.nlink == 0 { Err(FsError::Errno(libc::ENOENT)) } else { Ok(attr) }
}

/// Attributes of an inode that an entry names; their absence is damage, not a stale reference.
fn attr_behind(r: &impl Read, dir: Ino, name: &[u8], ino: Ino) -> FsResult<Attr> {
    match r.attr(ino).map_err(|stop| r.near(stop, Near::Inode(ino)))? {
        Some(attr) => Ok(attr),
        None => Err(FsError::Stop(Stop::Error(
            Error::corrupt(format!(
                "the entry {:?} of directory {dir} names inode {ino}, which has no attributes",
                name.escape_ascii().to_string()
            ))
            .hint("run `sandbox-workspace fsck`"),
        ))),
    }
}

/// Refuses names that cannot stand in a directory. The kernel resolves `.` and `..` and never sends a slash.
fn check_name(name: &[u8]) -> FsResult<()> {
    if name.len() > limits::NAME_MAX {
        return Err(FsError::Errno(libc::ENAMETOOLONG));
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Errno(libc::EINVAL));
    }
    Ok(())
}

/// Clears the set-user-id bit, and the set-group-id bit where the group may execute, as every change of owner or content does.
fn kill_suid_sgid(attr: &mut Attr) {
    if attr.kind == FileKind::Directory {
        return;
    }
    attr.mode &= !S_ISUID;
    if attr.mode & S_IXGRP != 0 {
        attr.mode &= !S_ISGID;
    }
}

/// True for what can hold bytes; the error is the one `write` and `truncate` give.
fn check_regular(attr: &Attr) -> FsResult<()> {
    match attr.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::Errno(libc::EISDIR)),
        _ => Err(FsError::Errno(libc::EINVAL)),
    }
}

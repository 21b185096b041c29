//! Extended attributes.
//!
//! Namespaces: `user.` (files and directories), `trusted.` (root only), `security.`, and the two POSIX ACLs of `system.`; all
//! others are EOPNOTSUPP. The kernel checks permissions; limits and what a process may see are checked here.

use bytes::Bytes;
use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, limits};

use super::{Caller, FsError, FsResult, S_ISGID, acl, attr_of};

/// The file capability that any change of content or owner removes.
const CAPABILITY: &[u8] = b"security.capability";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

fn space(name: &[u8]) -> FsResult<Space> {
    if name.len() > limits::NAME_MAX {
        return Err(FsError::Errno(libc::ERANGE));
    }
    if name == acl::ACCESS {
        return Ok(Space::AccessAcl);
    }
    if name == acl::DEFAULT {
        return Ok(Space::DefaultAcl);
    }
    for (prefix, space) in [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { Err(FsError::Errno(libc::EINVAL)) } else { Ok(space) };
        }
    }
    Err(FsError::Errno(libc::EOPNOTSUPP))
}

fn holds_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::File | FileKind::Directory)
}

/// The value of an attribute.
///
/// # Errors
/// ENODATA (absent, or hidden from the caller), EOPNOTSUPP, EINVAL, ESTALE.
pub fn get(r: &impl Read, caller: Caller, ino: Ino, name: &[u8]) -> FsResult<Bytes> {
    if space(name)? == Space::Trusted && !caller.is_root() {
        return Err(FsError::Errno(libc::ENODATA));
    }
    if let Some(value) = r.xattr(ino, name)? {
        return Ok(value);
    }
    attr_of(r, ino)?;
    Err(FsError::Errno(libc::ENODATA))
}

/// The names, each ended by a NUL, as listxattr returns them.
pub fn list(r: &impl Read, caller: Caller, ino: Ino) -> FsResult<Vec<u8>> {
    attr_of(r, ino)?;
    let mut out = Vec::new();
    r.xattrs(ino, &mut |name, _| {
        if caller.is_root() || !name.starts_with(b"trusted.") {
            out.extend_from_slice(name);
            out.push(0);
        }
        true
    })?;
    Ok(out)
}

/// Sets an attribute. `flags` are XATTR_CREATE and XATTR_REPLACE. `drop_sgid`: the kernel found that the caller may not keep the
/// set-group-id bit of a file whose access ACL it sets.
///
/// # Errors
/// EEXIST, ENODATA (flags), E2BIG (value), ENOSPC (all names together above [`limits::XATTR_LIST_MAX`]), EPERM, EACCES (default
/// ACL of what is no directory), EINVAL (malformed ACL), EOPNOTSUPP, ESTALE.
pub fn set(tx: &mut Txn<'_>, caller: Caller, drop_sgid: bool, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> FsResult<()> {
    let space = space(name)?;
    if value.len() > limits::XATTR_VALUE_MAX {
        return Err(FsError::Errno(libc::E2BIG));
    }
    let mut attr = attr_of(tx, ino)?;
    match space {
        Space::Trusted if !caller.is_root() => return Err(FsError::Errno(libc::EPERM)),
        Space::User if !holds_user_attributes(attr.kind) => return Err(FsError::Errno(libc::EPERM)),
        Space::AccessAcl | Space::DefaultAcl if attr.kind == FileKind::Symlink => return Err(FsError::Errno(libc::EOPNOTSUPP)),
        Space::DefaultAcl if attr.kind != FileKind::Directory => return Err(FsError::Errno(libc::EACCES)),
        _ => {}
    }
    let present = tx.xattr(ino, name)?.is_some();
    if flags & libc::XATTR_CREATE != 0 && present {
        return Err(FsError::Errno(libc::EEXIST));
    }
    if flags & libc::XATTR_REPLACE != 0 && !present {
        return Err(FsError::Errno(libc::ENODATA));
    }
    if !present && names_len(tx, ino)? + name.len() + 1 > limits::XATTR_LIST_MAX {
        return Err(FsError::Errno(libc::ENOSPC));
    }
    match space {
        Space::AccessAcl => {
            if drop_sgid {
                attr.mode &= !S_ISGID;
            }
            acl::set_access(tx, ino, &mut attr, value)?;
        }
        Space::DefaultAcl => {
            acl::Acl::parse(value).ok_or(FsError::Errno(libc::EINVAL))?;
            tx.set_xattr(ino, name, value);
        }
        Space::User | Space::Trusted | Space::Security => tx.set_xattr(ino, name, value),
    }
    attr.ctime = tx.now();
    tx.put_attr(ino, attr)?;
    Ok(())
}

/// Removes an attribute.
///
/// # Errors
/// ENODATA, EPERM, EOPNOTSUPP, EINVAL, ESTALE.
pub fn remove(tx: &mut Txn<'_>, caller: Caller, ino: Ino, name: &[u8]) -> FsResult<()> {
    let space = space(name)?;
    let mut attr = attr_of(tx, ino)?;
    match space {
        Space::Trusted if !caller.is_root() => return Err(FsError::Errno(libc::EPERM)),
        Space::User if !holds_user_attributes(attr.kind) => return Err(FsError::Errno(libc::EPERM)),
        _ => {}
    }
    if tx.xattr(ino, name)?.is_none() {
        return Err(FsError::Errno(libc::ENODATA));
    }
    tx.remove_xattr(ino, name);
    attr.ctime = tx.now();
    tx.put_attr(ino, attr)?;
    Ok(())
}

/// Drops the file capability, as the kernel does before a write. A write itself does not look: the kernel asked before it.
pub(super) fn drop_capability(tx: &mut Txn<'_>, ino: Ino, kind: FileKind) -> FsResult<()> {
    if kind == FileKind::File && tx.xattr(ino, CAPABILITY)?.is_some() {
        tx.remove_xattr(ino, CAPABILITY);
    }
    Ok(())
}

fn names_len(r: &impl Read, ino: Ino) -> FsResult<usize> {
    let mut sum = 0;
    r.xattrs(ino, &mut |name, _| {
        sum += name.len() + 1;
        true
    })?;
    Ok(sum)
}

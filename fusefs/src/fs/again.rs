//! Requests that come again after a takeover, with nothing to tell whether they were done.
//!
//! Most may be done twice: what they write depends on nothing but themselves. Not so what makes, moves or removes names. There the tree
//! tells: while such a request is under way the kernel lets nobody else touch its names, it has found before that the name to be made is
//! free and the one to be removed is there, and no change comes but through this mount. So a name that is there was made by the request
//! itself, and one that is missing was removed by it.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_types::Ino;

use super::create::New;
use super::rename::{Place, Renamed};
use super::{FsError, FsResult, Node, attr_behind};

/// What the creation made before.
///
/// # Errors
/// A miss.
pub fn made(tx: &Txn<'_>, new: &New<'_>) -> FsResult<Option<Node>> {
    match tx.entry(new.dir, new.name)? {
        Some(e) if e.kind == new.kind => Ok(Some(Node { ino: e.ino, attr: attr_behind(tx, new.dir, new.name, e.ino)? })),
        _ => Ok(None),
    }
}

/// The inode, where it was given the name before.
///
/// # Errors
/// A miss.
pub fn linked(tx: &Txn<'_>, ino: Ino, dir: Ino, name: &[u8]) -> FsResult<Option<Node>> {
    match tx.entry(dir, name)? {
        Some(e) if e.ino == ino => Ok(Some(Node { ino, attr: attr_behind(tx, dir, name, ino)? })),
        _ => Ok(None),
    }
}

/// True where the name was removed before.
///
/// # Errors
/// A miss.
pub fn removed(tx: &Txn<'_>, dir: Ino, name: &[u8]) -> FsResult<bool> {
    Ok(tx.entry(dir, name)?.is_none())
}

/// What was moved before.
///
/// # Errors
/// A miss; EIO for an exchange and for one that leaves a whiteout behind: both look the same done and not done, and done twice they are wrong.
pub fn renamed(tx: &Txn<'_>, from: Place<'_>, to: Place<'_>, flags: u32) -> FsResult<Option<Renamed>> {
    if flags & (libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
        return Err(FsError::Errno(libc::EIO));
    }
    if tx.entry(from.dir, from.name)?.is_some() {
        return Ok(None);
    }
    Ok(tx.entry(to.dir, to.name)?.map(|e| Renamed { moved: e.ino, other: None }))
}

/// True where the attribute has this value already (or, without one, is gone).
///
/// # Errors
/// A miss.
pub fn attribute_is(tx: &Txn<'_>, ino: Ino, name: &[u8], value: Option<&[u8]>) -> FsResult<bool> {
    Ok(tx.xattr(ino, name)?.as_deref() == value)
}

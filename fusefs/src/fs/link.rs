//! Names: link, unlink, rmdir.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::{Attr, FileKind, Timestamp};
use hiloop_types::{Ino, limits};

use super::{FsError, FsResult, Node, attr_behind, attr_of, check_name, dir_of, live_dir};

/// What became of an inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode.
    pub ino: Ino,
    /// It has no name left: it stands in the orphan list until the kernel forgets it.
    pub orphaned: bool,
}

/// Gives an inode another name, or a first one: what has none the kernel lets through only where O_TMPFILE made it.
///
/// # Errors
/// EPERM for directories, EEXIST, EMLINK at [`limits::LINK_MAX`], ENOENT for a directory without a name.
pub fn link(tx: &mut Txn<'_>, ino: Ino, dir_ino: Ino, name: &[u8]) -> FsResult<Node> {
    check_name(name)?;
    let mut dir = live_dir(tx, dir_ino)?;
    let mut attr = attr_of(tx, ino)?;
    if attr.kind == FileKind::Directory {
        return Err(FsError::Errno(libc::EPERM));
    }
    if tx.entry(dir_ino, name)?.is_some() {
        return Err(FsError::Errno(libc::EEXIST));
    }
    if attr.nlink >= limits::LINK_MAX {
        return Err(FsError::Errno(libc::EMLINK));
    }
    let now = tx.now();
    if attr.nlink == 0 {
        tx.unorphan(ino);
    }
    attr.nlink += 1;
    attr.ctime = now;
    tx.link(dir_ino, &mut dir, name, ino, attr.kind);
    dir.mtime = now;
    dir.ctime = now;
    tx.put_attr(dir_ino, dir)?;
    tx.put_attr(ino, attr.clone())?;
    Ok(Node { ino, attr })
}

/// Removes a name of anything but a directory.
///
/// # Errors
/// ENOENT, EISDIR.
pub fn unlink(tx: &mut Txn<'_>, dir_ino: Ino, name: &[u8]) -> FsResult<Removed> {
    remove(tx, dir_ino, name, false)
}

/// Removes an empty directory.
///
/// # Errors
/// ENOENT, ENOTDIR, ENOTEMPTY.
pub fn rmdir(tx: &mut Txn<'_>, dir_ino: Ino, name: &[u8]) -> FsResult<Removed> {
    remove(tx, dir_ino, name, true)
}

fn remove(tx: &mut Txn<'_>, dir_ino: Ino, name: &[u8], want_dir: bool) -> FsResult<Removed> {
    if name.len() > limits::NAME_MAX {
        return Err(FsError::Errno(libc::ENAMETOOLONG));
    }
    let mut dir = dir_of(tx, dir_ino)?;
    let entry = tx.entry(dir_ino, name)?.ok_or(FsError::Errno(libc::ENOENT))?;
    match (want_dir, entry.kind == FileKind::Directory) {
        (true, false) => return Err(FsError::Errno(libc::ENOTDIR)),
        (false, true) => return Err(FsError::Errno(libc::EISDIR)),
        _ => {}
    }
    let attr = attr_behind(tx, dir_ino, name, entry.ino)?;
    if want_dir && attr.entries > 0 {
        return Err(FsError::Errno(libc::ENOTEMPTY));
    }
    let now = tx.now();
    tx.unlink(dir_ino, &mut dir, name, &entry);
    if want_dir {
        dir.nlink = dir.nlink.saturating_sub(1);
    }
    dir.mtime = now;
    dir.ctime = now;
    tx.put_attr(dir_ino, dir)?;
    drop_name(tx, entry.ino, attr, now)
}

/// Takes one name off the count of `ino`, whose entry is gone already; the last one puts it on the orphan list.
pub(super) fn drop_name(tx: &mut Txn<'_>, ino: Ino, mut attr: Attr, now: Timestamp) -> FsResult<Removed> {
    attr.nlink = if attr.kind == FileKind::Directory { 0 } else { attr.nlink.saturating_sub(1) };
    attr.ctime = now;
    let orphaned = attr.nlink == 0;
    tx.put_attr(ino, attr)?;
    if orphaned {
        tx.orphan(ino);
    }
    Ok(Removed { ino, orphaned })
}

//! New inodes: files, directories, symbolic links, fifos, sockets, device nodes.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_types::{Ino, limits};

use super::attr::{SetAttr, setattr};
use super::{Caller, FsError, FsResult, Node, S_ISGID, acl, attr_behind, check_name, live_dir};

/// What to make, and where.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// The directory.
    pub dir: Ino,
    /// The name in it.
    pub name: &'a [u8],
    /// Type.
    pub kind: FileKind,
    /// Permission bits as the caller gave them.
    pub mode: u32,
    /// The caller's umask; a default ACL of the directory takes its place.
    pub umask: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Target of symbolic links.
    pub target: &'a [u8],
}

impl<'a> New<'a> {
    /// Something of `kind` without device number or target.
    pub fn of(kind: FileKind, dir: Ino, name: &'a [u8], mode: u32, umask: u32) -> Self {
        Self { dir, name, kind, mode, umask, rdev: 0, target: &[] }
    }
    /// A symbolic link.
    pub fn symlink(dir: Ino, name: &'a [u8], target: &'a [u8]) -> Self {
        Self { target, ..Self::of(FileKind::Symlink, dir, name, 0o777, 0) }
    }
}

/// Makes an inode with one name.
///
/// Below a set-group-id directory the group comes from it, and a new directory has the bit too. A default ACL of the directory is
/// inherited in place of the umask.
///
/// # Errors
/// EEXIST, ENAMETOOLONG, EINVAL (name), ENOTDIR, ENOENT (the directory was removed, or an empty link target), EMLINK.
pub fn make(tx: &mut Txn<'_>, caller: Caller, new: &New<'_>) -> FsResult<Node> {
    check_name(new.name)?;
    let mut dir = live_dir(tx, new.dir)?;
    if tx.entry(new.dir, new.name)?.is_some() {
        return Err(FsError::Errno(libc::EEXIST));
    }
    if new.kind == FileKind::Symlink {
        match new.target.len() {
            0 => return Err(FsError::Errno(libc::ENOENT)),
            1..=limits::SYMLINK_MAX => {}
            _ => return Err(FsError::Errno(libc::ENAMETOOLONG)),
        }
    }
    let now = tx.now();
    let (mut attr, inherited) = start(tx, caller, new, &dir)?;
    match new.kind {
        FileKind::Directory => {
            attr.parent = new.dir;
            dir.nlink = dir.nlink.checked_add(1).ok_or(FsError::Errno(libc::EMLINK))?;
        }
        FileKind::Symlink => {
            attr.size = new.target.len() as u64;
            attr.target = new.target.to_vec();
        }
        FileKind::CharDevice | FileKind::BlockDevice => attr.rdev = new.rdev,
        FileKind::File | FileKind::Fifo | FileKind::Socket => {}
    }
    let ino = tx.new_ino()?;
    tx.create_inode(ino, attr.clone());
    inherited.store(tx, ino);
    tx.link(new.dir, &mut dir, new.name, ino, new.kind);
    dir.mtime = now;
    dir.ctime = now;
    tx.put_attr(new.dir, dir)?;
    Ok(Node { ino, attr })
}

/// The attributes that a new inode begins with, and the ACLs that it gets from its directory.
fn start(tx: &Txn<'_>, caller: Caller, new: &New<'_>, dir: &Attr) -> FsResult<(Attr, acl::Inherited)> {
    let inherited = acl::inherit(tx, new.dir, new.kind, new.mode, new.umask)?;
    let mut attr = Attr::new(new.kind, inherited.mode, caller.uid, caller.gid, tx.now());
    if dir.mode & S_ISGID != 0 {
        attr.gid = dir.gid;
        if new.kind == FileKind::Directory {
            attr.mode |= S_ISGID;
        }
    }
    Ok((attr, inherited))
}

/// `open` with O_TMPFILE: a regular file without a name, which is gone with its last descriptor unless `link` gives it one. It gets from
/// the directory what a named one would; `new.name` means nothing.
///
/// # Errors
/// ENOTDIR, ENOENT (the directory was removed), ENOSPC.
pub fn tmpfile(tx: &mut Txn<'_>, caller: Caller, new: &New<'_>) -> FsResult<Node> {
    let dir = live_dir(tx, new.dir)?;
    let (mut attr, inherited) = start(tx, caller, new, &dir)?;
    attr.nlink = 0;
    let ino = tx.new_ino()?;
    tx.create_inode(ino, attr.clone());
    inherited.store(tx, ino);
    tx.orphan(ino);
    Ok(Node { ino, attr })
}

/// `open` with O_CREAT: makes a regular file, or opens the one that another process made since the kernel looked.
///
/// # Errors
/// As [`make`]; EEXIST with O_EXCL; EISDIR; ESTALE where a race put something else there, so that the kernel looks again.
pub fn create(tx: &mut Txn<'_>, caller: Caller, new: &New<'_>, flags: i32) -> FsResult<Node> {
    check_name(new.name)?;
    let Some(entry) = tx.entry(new.dir, new.name)? else {
        return make(tx, caller, new);
    };
    if flags & libc::O_EXCL != 0 {
        return Err(FsError::Errno(libc::EEXIST));
    }
    match entry.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(FsError::Errno(libc::EISDIR)),
        // The kernel looks again after ESTALE and then handles the link, fifo or device itself.
        _ => return Err(FsError::Errno(libc::ESTALE)),
    }
    let mut attr = attr_behind(tx, new.dir, new.name, entry.ino)?;
    if flags & libc::O_TRUNC != 0 {
        attr = setattr(tx, caller, entry.ino, &SetAttr { size: Some(0), ..SetAttr::default() })?;
    }
    Ok(Node { ino: entry.ino, attr })
}

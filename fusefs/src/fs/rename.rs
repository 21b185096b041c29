//! rename, renameat2.

use hiloop_engine::workspace::{Read, Txn};
use hiloop_manifest::schema::{Attr, Entry, FileKind, Timestamp};
use hiloop_types::{Error, Ino, ROOT_INO};

use super::create::{New, make};
use super::link::{Removed, drop_name};
use super::{Caller, FsError, FsResult, attr_behind, check_name, dir_of, live_dir};

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: &'a [u8],
}

/// What a rename touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that moved.
    pub moved: Ino,
    /// The one that stood at the target: lost that name, or changed places.
    pub other: Option<Removed>,
}

/// Directories nest at most this deep before the check against loops calls it damage: a path of PATH_MAX bytes cannot reach it.
const DEPTH_MAX: usize = 1 << 20;

/// The one or two directories of a rename, each read and written once.
struct Dirs {
    from: (Ino, Attr),
    to: Option<(Ino, Attr)>,
}

impl Dirs {
    fn from(&mut self) -> &mut Attr {
        &mut self.from.1
    }
    fn to(&mut self) -> &mut Attr {
        match &mut self.to {
            Some((_, attr)) => attr,
            None => &mut self.from.1,
        }
    }
    fn differ(&self) -> bool {
        self.to.is_some()
    }
    fn store(self, tx: &mut Txn<'_>, now: Timestamp) -> FsResult<()> {
        for (ino, mut attr) in std::iter::once(self.from).chain(self.to) {
            attr.mtime = now;
            attr.ctime = now;
            tx.put_attr(ino, attr)?;
        }
        Ok(())
    }
}

/// Moves `from` to `to`, replacing what stands there. `flags` are those of renameat2.
///
/// Two names of one inode are left alone (POSIX). RENAME_WHITEOUT leaves a character device 0:0 behind, as overlayfs wants.
///
/// # Errors
/// ENOENT, EEXIST (RENAME_NOREPLACE), EISDIR, ENOTDIR, ENOTEMPTY, EINVAL (a directory into itself, unknown flags), ENAMETOOLONG.
pub fn rename(tx: &mut Txn<'_>, caller: Caller, from: Place<'_>, to: Place<'_>, flags: u32) -> FsResult<Renamed> {
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    let whiteout = flags & libc::RENAME_WHITEOUT != 0;
    let noreplace = flags & libc::RENAME_NOREPLACE != 0;
    if flags & !(libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE) != 0 || (exchange && (noreplace || whiteout)) {
        return Err(FsError::Errno(libc::EINVAL));
    }
    check_name(from.name)?;
    check_name(to.name)?;
    let mut dirs =
        Dirs { from: (from.dir, dir_of(tx, from.dir)?), to: if from.dir == to.dir { None } else { Some((to.dir, live_dir(tx, to.dir)?)) } };
    let source = tx.entry(from.dir, from.name)?.ok_or(FsError::Errno(libc::ENOENT))?;
    let target = tx.entry(to.dir, to.name)?;
    if noreplace && target.is_some() {
        return Err(FsError::Errno(libc::EEXIST));
    }
    if exchange && target.is_none() {
        return Err(FsError::Errno(libc::ENOENT));
    }
    if target.is_some_and(|t| t.ino == source.ino) {
        return Ok(Renamed { moved: source.ino, other: None });
    }
    if dirs.differ() {
        refuse_loop(tx, &source, to.dir)?;
        if let (true, Some(t)) = (exchange, &target) {
            refuse_loop(tx, t, from.dir)?;
        }
    }
    let now = tx.now();
    let moved = attr_behind(tx, from.dir, from.name, source.ino)?;
    let mut other = None;
    if let Some(target) = target {
        let there = attr_behind(tx, to.dir, to.name, target.ino)?;
        if !exchange {
            refuse_replace(&source, &target, &there)?;
        }
        tx.unlink(to.dir, dirs.to(), to.name, &target);
        if target.kind == FileKind::Directory {
            less(dirs.to());
        }
        if exchange {
            tx.unlink(from.dir, dirs.from(), from.name, &source);
            if source.kind == FileKind::Directory {
                less(dirs.from());
            }
            put_at(tx, from, dirs.from(), &target, there, now)?;
            put_at(tx, to, dirs.to(), &source, moved, now)?;
            dirs.store(tx, now)?;
            return Ok(Renamed { moved: source.ino, other: Some(Removed { ino: target.ino, orphaned: false }) });
        }
        other = Some(drop_name(tx, target.ino, there, now)?);
    }
    tx.unlink(from.dir, dirs.from(), from.name, &source);
    if source.kind == FileKind::Directory {
        less(dirs.from());
    }
    put_at(tx, to, dirs.to(), &source, moved, now)?;
    dirs.store(tx, now)?;
    if whiteout {
        make(tx, caller, &New::of(FileKind::CharDevice, from.dir, from.name, 0, 0))?;
    }
    Ok(Renamed { moved: source.ino, other })
}

/// A directory may not move into itself or below itself.
fn refuse_loop(tx: &Txn<'_>, entry: &Entry, into: Ino) -> FsResult<()> {
    if entry.kind != FileKind::Directory {
        return Ok(());
    }
    let mut at = into;
    for _ in 0..DEPTH_MAX {
        if at == entry.ino {
            return Err(FsError::Errno(libc::EINVAL));
        }
        if at == ROOT_INO {
            return Ok(());
        }
        at = dir_of(tx, at)?.parent;
    }
    Err(Error::corrupt(format!("the parents of directory {into} do not lead to the root")).hint("run `sandbox-workspace fsck`").into())
}

fn refuse_replace(source: &Entry, target: &Entry, there: &Attr) -> FsResult<()> {
    let code = match (source.kind == FileKind::Directory, target.kind == FileKind::Directory) {
        (true, false) => libc::ENOTDIR,
        (false, true) => libc::EISDIR,
        (true, true) if there.entries > 0 => libc::ENOTEMPTY,
        _ => return Ok(()),
    };
    Err(FsError::Errno(code))
}

fn less(dir: &mut Attr) {
    dir.nlink = dir.nlink.saturating_sub(1);
}

/// Names `entry` at `place`, whose old entry is gone, and moves its ctime (as ext4 does; backup tools look at it).
fn put_at(tx: &mut Txn<'_>, place: Place<'_>, dir: &mut Attr, entry: &Entry, mut attr: Attr, now: Timestamp) -> FsResult<()> {
    tx.link(place.dir, dir, place.name, entry.ino, entry.kind);
    if entry.kind == FileKind::Directory {
        dir.nlink = dir.nlink.checked_add(1).ok_or(FsError::Errno(libc::EMLINK))?;
        attr.parent = place.dir;
    }
    attr.ctime = now;
    Ok(tx.put_attr(entry.ino, attr)?)
}

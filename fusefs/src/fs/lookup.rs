//! Finding a name.

use hiloop_engine::workspace::{Near, Read};
use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, limits};

use super::{FsError, FsResult, Node, attr_behind, attr_of, dir_of};

/// The inode that `name` points to in `dir`, or `None` where there is no such name (which the kernel may remember for ever: every
/// change comes through it).
pub fn lookup(r: &impl Read, dir: Ino, name: &[u8]) -> FsResult<Option<Node>> {
    if name.len() > limits::NAME_MAX {
        return Err(FsError::Errno(libc::ENAMETOOLONG));
    }
    let attr = dir_of(r, dir)?;
    match r.entry(dir, name).map_err(|stop| r.near(stop, Near::Name(&attr)))? {
        None => Ok(None),
        Some(entry) => Ok(Some(Node { ino: entry.ino, attr: attr_behind(r, dir, name, entry.ino)? })),
    }
}

/// Target of a symbolic link.
pub fn readlink(r: &impl Read, ino: Ino) -> FsResult<Vec<u8>> {
    let attr = attr_of(r, ino)?;
    match attr.kind {
        FileKind::Symlink => Ok(attr.target),
        _ => Err(FsError::Errno(libc::EINVAL)),
    }
}

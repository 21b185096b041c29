//! Directory streams.
//!
//! A cookie is the entry's index plus two, and indexes are never reused, so a stream loses and repeats nothing whatever is created,
//! removed or renamed meanwhile. A stream ends at the index that was next when it was opened or rewound: else a program that
//! renames what it reads (each new name stands at the end) would never come to the end.

use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Near, Read, View, Workspace};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_manifest::tree::NodeRef;
use hiloop_types::{Error, Ino, Result};

use super::{FsError, FsResult, dir_of};

/// Cookie behind `.`.
const AFTER_DOT: u64 = 1;
/// Cookie behind `..`; the entry with index `i` has cookie `i + AFTER_DOTS`.
const AFTER_DOTS: u64 = 2;

/// Entries whose attributes a listing fetches at once: many more than one answer to the kernel holds.
const AHEAD: usize = 2048;
/// Entries whose attributes are brought with a directory: what a person looks at.
const LOCAL: usize = 512;

/// An entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
    /// Where the next call starts.
    pub cookie: u64,
}

impl Item<'_> {
    /// `.` and `..`, which the kernel does not look up.
    pub fn is_dot(&self) -> bool {
        self.cookie <= AFTER_DOTS
    }
}

/// Where a stream that starts now ends.
pub fn end(r: &impl Read, dir: Ino) -> FsResult<u64> {
    Ok(dir_of(r, dir)?.next_index)
}

/// Calls `f` for each entry behind `cookie` (0: from the start) and before the index `end`, until it returns false. A removed
/// directory is empty.
pub fn read(r: &impl Read, dir: Ino, cookie: u64, end: u64, f: &mut dyn FnMut(Item<'_>) -> bool) -> FsResult<()> {
    let attr = dir_of(r, dir)?;
    if attr.nlink == 0 {
        return Ok(());
    }
    if cookie < AFTER_DOT && !f(Item { ino: dir, kind: FileKind::Directory, name: b".", cookie: AFTER_DOT }) {
        return Ok(());
    }
    if cookie < AFTER_DOTS && !f(Item { ino: attr.parent, kind: FileKind::Directory, name: b"..", cookie: AFTER_DOTS }) {
        return Ok(());
    }
    let from = cookie.saturating_sub(AFTER_DOTS).saturating_add(1);
    r.entries_from(dir, from, &mut |index, entry| {
        index < end && f(Item { ino: entry.ino, kind: entry.kind, name: &entry.name, cookie: index.saturating_add(AFTER_DOTS) })
    })
    .map_err(|stop| r.near(stop, Near::Listing(dir, from, &attr)))?;
    Ok(())
}

/// As [`read`], with the attributes of each entry but `.` and `..`. `None` where they cannot be had: damage to what one entry names does
/// not hide the others. A miss is of all that the listing needs soon; nodes in `waited` were fetched before, so those that are not here are
/// lost.
///
/// # Errors
/// As [`read`].
pub fn read_plus(
    view: &View<'_>,
    dir: Ino,
    cookie: u64,
    end: u64,
    waited: &[NodeRef],
    f: &mut dyn FnMut(Item<'_>, Option<&Attr>) -> bool,
) -> FsResult<()> {
    let (mut at, mut missed) = (cookie, false);
    read(view, dir, cookie, end, &mut |item| {
        let found = if item.is_dot() { Ok(None) } else { view.attr(item.ino) };
        let attr = match found {
            Ok(attr) => attr,
            Err(Stop::Miss(Miss::Node(node))) if !waited.contains(&node) => {
                missed = true;
                return false;
            }
            Err(_) => None,
        };
        let more = f(item, attr.as_ref());
        if more {
            at = item.cookie;
        }
        more
    })?;
    if missed { Err(FsError::Stop(Stop::Miss(Miss::Listing(missing(view, dir, at, end, AHEAD)?)))) } else { Ok(()) }
}

/// The nodes that hold the attributes of the next `shown` entries behind `cookie` and are not in memory.
///
/// # Errors
/// As [`read`].
fn missing(view: &View<'_>, dir: Ino, cookie: u64, end: u64, shown: usize) -> FsResult<Vec<NodeRef>> {
    let mut inodes = Vec::new();
    let listed = read(view, dir, cookie, end, &mut |item| {
        if !item.is_dot() {
            inodes.push(item.ino);
        }
        inodes.len() < shown
    });
    match listed {
        Err(e) if inodes.is_empty() => Err(e),
        // Names that are not here are missed when the listing comes to them.
        _ => Ok(view.missing_attrs(&inodes)?),
    }
}

/// Brings a directory and what a first `ls -l` shows of it to this node. An entry whose attributes are lost hides no others.
///
/// # Errors
/// Those of the store; `Corrupt` where the directory itself cannot be read.
pub async fn local(workspace: &Workspace, dir: Ino) -> Result<()> {
    let mut waited: Vec<NodeRef> = Vec::new();
    workspace
        .settled(|w| {
            let found = missing(&w.view(), dir, 0, u64::MAX, LOCAL).map_err(|e| match e {
                FsError::Stop(stop) => stop,
                FsError::Errno(code) => Stop::Error(Error::corrupt(format!("directory {dir} cannot be listed (errno {code})"))),
            })?;
            if found.iter().all(|n| waited.contains(n)) {
                return Ok(());
            }
            waited.extend(&found);
            Err(Stop::Miss(Miss::Listing(found)))
        })
        .await
}

//! Directory streams.
//!
//! A cookie is the entry's index plus two, and indexes are never reused, so a stream loses and repeats nothing whatever is created,
//! removed or renamed meanwhile. A stream ends at the index that was next when it was opened or rewound: else a program that
//! renames what it reads (each new name stands at the end) would never come to the end.

use hiloop_engine::workspace::Read;
use hiloop_manifest::schema::FileKind;
use hiloop_types::Ino;

use super::{FsResult, dir_of};

/// Cookie behind `.`.
const AFTER_DOT: u64 = 1;
/// Cookie behind `..`; the entry with index `i` has cookie `i + AFTER_DOTS`.
const AFTER_DOTS: u64 = 2;

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
    })?;
    Ok(())
}

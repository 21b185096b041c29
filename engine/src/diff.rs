//! What two trees differ in, by path.
//!
//! Trees of one lineage (built on the same base, or on none) are compared record by record, which costs what differs: changes are grouped
//! by inode, and paths found through back-references, so that every path of a hard link is told ([`by_inode`]). Equal inode numbers of
//! sibling forks are told apart by birth epoch and session. Trees of different bases share no inode numbers and are compared name by
//! name, which costs their size ([`by_path`]).
//!
//! What is told: a path that is only in one tree; a path whose inode has other content or attributes; a path that now leads to another
//! inode (`replaced`); a path that is the new name of an inode. A directory that is renamed is told once, not with all below it; one whose
//! times moved only because its entries did is not told.

mod by_inode;
mod by_path;
mod compare;

use futures::future::BoxFuture;
use hiloop_manifest::schema::FileKind;
use hiloop_types::Result;
use serde::Serialize;

use crate::context::StoreContext;
use crate::lease::ReadLease;
use crate::look::SourceRoot;
use crate::view::View;

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// Only in the second tree.
    Added,
    /// Only in the first tree.
    Removed,
    /// In both.
    Modified,
    /// The new name of something that had another.
    Renamed,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiffEntry {
    /// How.
    pub kind: DiffKind,
    /// Path below the root, in the second tree where it is there; empty for the root.
    #[serde(serialize_with = "lossy")]
    pub path: Vec<u8>,
    /// Renamed: the name in the first tree.
    #[serde(serialize_with = "lossy_opt")]
    pub from: Option<Vec<u8>>,
    /// Type of what is there, as `stat` names it.
    pub file: &'static str,
    /// Inode number in the tree that `path` is of.
    pub ino: u64,
    /// Content differs (files, targets of links).
    pub data: bool,
    /// Attributes or extended attributes differ.
    pub metadata: bool,
    /// The path leads to another inode than before.
    pub replaced: bool,
}

fn lossy<S: serde::Serializer>(path: &[u8], s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&String::from_utf8_lossy(path))
}
fn lossy_opt<S: serde::Serializer>(path: &Option<Vec<u8>>, s: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(p) => lossy(p, s),
        None => s.serialize_none(),
    }
}

/// Takes entries as they are found; an error ends the comparison.
pub type EntryFn<'a> = dyn FnMut(DiffEntry) -> Result<()> + Send + 'a;

/// Compares what `a` and `b` name and tells `each` path that differs; answers how many did. Paths come in no useful order.
///
/// # Errors
/// As [`resolve`](crate::look::resolve); `Closed` where a lease was dropped meanwhile; those of `each`.
pub fn diff<'a>(ctx: &'a StoreContext, a: &'a str, b: &'a str, each: &'a mut EntryFn<'a>) -> BoxFuture<'a, Result<u64>> {
    Box::pin(async move {
        let old = ReadLease::take(ctx, a).await?;
        let new = match ReadLease::take(ctx, b).await {
            Ok(new) => new,
            Err(e) => return old.end_with(Err(e)).await,
        };
        let done = compare(ctx, old.source(), new.source(), each).await;
        let done = old.end_with(done).await;
        new.end_with(done).await
    })
}

async fn compare(ctx: &StoreContext, old: &SourceRoot, new: &SourceRoot, each: &mut EntryFn<'_>) -> Result<u64> {
    let mut told = 0;
    let mut count = |entry: DiffEntry| {
        told += 1;
        each(entry)
    };
    let view = |s: &SourceRoot| s.root.map(|root| View::new(&ctx.hydrator, root));
    match (view(old), view(new)) {
        (Some(va), Some(vb)) if !same_numbers(old, new) => by_path::run(va, vb, &mut count).await?,
        (va, vb) => by_inode::run(&ctx.hydrator, va, vb, &mut count).await?,
    }
    Ok(told)
}

/// True where an inode number with the same birth is the same inode in both: numbers of a base are positions in it.
fn same_numbers(a: &SourceRoot, b: &SourceRoot) -> bool {
    let base = |s: &SourceRoot| s.bases.first().map(|b| b.root.node.id);
    base(a) == base(b)
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// An entry of which only kind and path are known yet.
fn entry(kind: DiffKind, path: Vec<u8>, file: FileKind, ino: u64) -> DiffEntry {
    DiffEntry { kind, path, from: None, file: word(file), ino, data: false, metadata: false, replaced: false }
}

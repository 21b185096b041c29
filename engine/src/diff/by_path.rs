//! Comparison of two trees that share no inode numbers, directory by directory.

use std::collections::BTreeMap;

use hiloop_manifest::schema::{FileKind, IndexEntry};
use hiloop_types::{Ino, ROOT_INO, Result};

use super::compare::inodes;
use super::{DiffEntry, DiffKind, entry};
use crate::view::View;

/// Entries read at once.
const PAGE: usize = 4096;

type Each<'e> = &'e mut (dyn FnMut(DiffEntry) -> Result<()> + Send);

/// A directory that is still to be compared; absent on one side where it is new or gone.
struct Ahead {
    path: Vec<u8>,
    a: Option<Ino>,
    b: Option<Ino>,
}

pub(super) async fn run(a: View<'_>, b: View<'_>, each: Each<'_>) -> Result<()> {
    let mut ahead = vec![Ahead { path: Vec::new(), a: Some(ROOT_INO), b: Some(ROOT_INO) }];
    while let Some(dir) = ahead.pop() {
        let (mut in_a, mut in_b) = (names(&a, dir.a).await?, names(&b, dir.b).await?);
        let all: std::collections::BTreeSet<Vec<u8>> = in_a.keys().chain(in_b.keys()).cloned().collect();
        for name in all {
            let mut path = dir.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            let (x, y) = (in_a.remove(&name), in_b.remove(&name));
            match (&x, &y) {
                (Some(x), Some(y)) => {
                    let d = inodes(&a, x.ino, &b, y.ino).await?;
                    if d.any() {
                        let e = entry(DiffKind::Modified, path.clone(), y.kind, y.ino.0);
                        each(DiffEntry { data: d.data, metadata: d.metadata, replaced: x.kind != y.kind, ..e })?;
                    }
                }
                (Some(x), None) => each(entry(DiffKind::Removed, path.clone(), x.kind, x.ino.0))?,
                (None, Some(y)) => each(entry(DiffKind::Added, path.clone(), y.kind, y.ino.0))?,
                (None, None) => {}
            }
            let directory = |e: Option<IndexEntry>| e.filter(|e| e.kind == FileKind::Directory).map(|e| e.ino);
            let (x, y) = (directory(x), directory(y));
            if x.is_some() || y.is_some() {
                ahead.push(Ahead { path, a: x, b: y });
            }
        }
    }
    Ok(())
}

async fn names(view: &View<'_>, dir: Option<Ino>) -> Result<BTreeMap<Vec<u8>, IndexEntry>> {
    let mut out = BTreeMap::new();
    let Some(dir) = dir else { return Ok(out) };
    let mut after = 0;
    loop {
        let page = view.entries(dir, after, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(out) };
        after = *last;
        out.extend(page.into_iter().map(|(_, e)| (e.name.clone(), e)));
    }
}

//! When are two inodes the same to a reader?

use bytes::Bytes;
use hiloop_manifest::schema::{Attr, Block, FileKind, KeyKind, Prefix, Source};
use hiloop_manifest::tree::KeyRange;
use hiloop_types::{Ino, Result};

use crate::view::View;

/// Records read at once.
const PAGE: usize = 1024;

/// What differs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Differs {
    pub(super) data: bool,
    pub(super) metadata: bool,
}

impl Differs {
    pub(super) fn any(self) -> bool {
        self.data || self.metadata
    }
}

/// Compares attributes. `times` says whether ctime and, for directories, mtime count: they follow from changes of names.
pub(super) fn attrs(a: &Attr, b: &Attr, times: bool) -> Differs {
    let directory = b.kind == FileKind::Directory;
    let kept = (a.mode, a.uid, a.gid, a.rdev, a.atime, a.btime) == (b.mode, b.uid, b.gid, b.rdev, b.atime, b.btime);
    let moved = (times || !directory) && a.mtime != b.mtime || times && a.ctime != b.ctime || !directory && a.nlink != b.nlink;
    Differs { data: a.kind != b.kind || a.size != b.size || a.target != b.target, metadata: !kept || moved }
}

/// True where two blocks hold the same, wherever their chunks lie.
pub(super) fn same_block(a: Option<&Bytes>, b: Option<&Bytes>) -> Result<bool> {
    let (Some(a), Some(b)) = (a, b) else { return Ok(a.is_none() && b.is_none()) };
    let (a, b) = (Block::decode(a, &[])?, Block::decode(b, &[])?);
    let same = |x: &Source, y: &Source| match (x, y) {
        (Source::Chunk { chunk: c, skip: s }, Source::Chunk { chunk: d, skip: t }) => (c.domain, c.id, s) == (d.domain, d.id, t),
        (x, y) => x == y,
    };
    let pairs = a.pieces().iter().zip(b.pieces());
    Ok(a.pieces().len() == b.pieces().len()
        && pairs.into_iter().all(|(p, q)| (p.start, p.len) == (q.start, q.len) && same(&p.source, &q.source)))
}

/// Compares two inodes of two trees whole.
pub(super) async fn inodes(a: &View<'_>, ino_a: Ino, b: &View<'_>, ino_b: Ino) -> Result<Differs> {
    let (x, y) = (a.require_attr(ino_a).await?, b.require_attr(ino_b).await?);
    // Two lineages have two histories: their ctime and birth say nothing.
    let y = Attr { btime: x.btime, ..y };
    let mut differs = attrs(&x, &y, false);
    if x.kind == y.kind {
        differs.metadata |= !same_records(a, ino_a, b, ino_b, Prefix::xattrs).await?;
        differs.data |= x.kind == FileKind::File && !differs.data && !same_records(a, ino_a, b, ino_b, Prefix::blocks).await?;
    }
    Ok(differs)
}

async fn same_records(a: &View<'_>, ino_a: Ino, b: &View<'_>, ino_b: Ino, prefix: impl Fn(Ino) -> Prefix) -> Result<bool> {
    let (mut ra, mut rb) = (KeyRange::prefix(prefix(ino_a).start()), KeyRange::prefix(prefix(ino_b).start()));
    loop {
        let (pa, pb) = (a.page(&ra, PAGE).await?, b.page(&rb, PAGE).await?);
        if pa.len() != pb.len() {
            return Ok(false);
        }
        for ((ka, va), (kb, vb)) in pa.iter().zip(&pb) {
            // Behind the inode number.
            let same = ka[8..] == kb[8..]
                && match KeyKind::parse(ka)? {
                    KeyKind::Block(..) => same_block(Some(va), Some(vb))?,
                    _ => va == vb,
                };
            if !same {
                return Ok(false);
            }
        }
        match (pa.last(), pb.last()) {
            (Some((ka, _)), Some((kb, _))) if pa.len() == PAGE => (ra, rb) = (ra.after(ka), rb.after(kb)),
            _ => return Ok(true),
        }
    }
}

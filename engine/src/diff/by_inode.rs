//! Comparison of two trees of one lineage, inode by inode.

use bytes::Bytes;
use hiloop_manifest::schema::{Attr, FileKind, Key, KeyKind};
use hiloop_manifest::tree::{Access, Change, Diff, KeyRange, RootRef};
use hiloop_types::{Ino, ROOT_INO, Result};

use super::compare::{Differs, attrs, same_block};
use super::{DiffEntry, DiffKind, entry};
use crate::hydrate::Hydrator;
use crate::view::{NameAt, View};

/// Records of a tree that is compared with nothing, read at once.
const PAGE: usize = 1024;

/// Compares `a` with `b`; an absent one is an empty tree.
pub(super) async fn run(
    hydrator: &Hydrator,
    a: Option<View<'_>>,
    b: Option<View<'_>>,
    each: &mut (dyn FnMut(DiffEntry) -> Result<()> + Send),
) -> Result<()> {
    let roots = (a.as_ref().map(|v| *v.root()), b.as_ref().map(|v| *v.root()));
    let mut sides = Sides { a, b };
    let mut group = Group::default();
    match roots {
        (Some(ra), Some(rb)) => {
            let mut diff = Diff::new(hydrator, &ra, &rb);
            loop {
                match diff.next() {
                    None => break,
                    Some(Ok(change)) => sides.take(&mut group, change, each).await?,
                    Some(Err(Access::Miss(n))) => _ = hydrator.node_now(&n).await?,
                    Some(Err(Access::Error(e))) => return Err(e),
                }
            }
        }
        (Some(only), None) => sides.all_of(hydrator, only, &mut group, |v| (Some(v), None), each).await?,
        (None, Some(only)) => sides.all_of(hydrator, only, &mut group, |v| (None, Some(v)), each).await?,
        (None, None) => {}
    }
    sides.tell(&mut group, each).await
}

/// What differs in one inode's records.
#[derive(Default)]
struct Group {
    ino: Ino,
    attr: Option<(Option<Bytes>, Option<Bytes>)>,
    data: bool,
    xattrs: bool,
    lost: Vec<NameAt>,
    gained: Vec<NameAt>,
}

struct Sides<'h> {
    a: Option<View<'h>>,
    b: Option<View<'h>>,
}

type Each<'e> = &'e mut (dyn FnMut(DiffEntry) -> Result<()> + Send);

impl Sides<'_> {
    async fn all_of(
        &mut self,
        hydrator: &Hydrator,
        root: RootRef,
        group: &mut Group,
        side: impl Fn(Bytes) -> (Option<Bytes>, Option<Bytes>),
        each: Each<'_>,
    ) -> Result<()> {
        let view = View::new(hydrator, root);
        let mut range = KeyRange::all();
        loop {
            let page = view.page(&range, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            range = range.after(last);
            for (key, value) in page {
                let (old, new) = side(value);
                self.take(group, Change { key, old, new }, each).await?;
            }
        }
    }

    /// Adds a change to the group of its inode; a change of the next inode tells the group before.
    async fn take(&mut self, group: &mut Group, change: Change, each: Each<'_>) -> Result<()> {
        let kind = KeyKind::parse(&change.key)?;
        let ino = match kind {
            // What names changed, the back-references of the inodes tell.
            KeyKind::Super | KeyKind::Orphan(_) | KeyKind::Entry { .. } | KeyKind::Index(..) => return Ok(()),
            KeyKind::Attr(ino) | KeyKind::Block(ino, _) | KeyKind::Xattr(ino, _) | KeyKind::BackRef { ino, .. } => ino,
        };
        if ino != group.ino {
            self.tell(group, each).await?;
            *group = Group { ino, ..Group::default() };
        }
        match kind {
            KeyKind::Attr(_) => group.attr = Some((change.old, change.new)),
            KeyKind::Block(..) => group.data |= !same_block(change.old.as_ref(), change.new.as_ref())?,
            KeyKind::Xattr(..) => group.xattrs = true,
            KeyKind::BackRef { dir, index, .. } => {
                let list = if change.old.is_some() { &mut group.lost } else { &mut group.gained };
                list.push(NameAt { dir, index });
            }
            KeyKind::Super | KeyKind::Orphan(_) | KeyKind::Entry { .. } | KeyKind::Index(..) => {}
        }
        Ok(())
    }

    async fn tell(&mut self, group: &mut Group, each: Each<'_>) -> Result<()> {
        let group = std::mem::take(group);
        if group.ino == Ino(0) {
            return Ok(());
        }
        let (old, new) = match &group.attr {
            Some((old, new)) => (decode(old)?, decode(new)?),
            None => {
                let both = attr_in(&self.a, group.ino).await?;
                (both.clone(), both)
            }
        };
        match (old, new) {
            (Some(o), Some(n)) if same_inode(group.ino, &o, &n) => self.changed(group, &o, &n, each).await,
            (Some(o), Some(n)) => {
                let (lost, gained) = (names_in(&self.a, group.ino).await?, names_in(&self.b, group.ino).await?);
                for at in lost {
                    self.removed(group.ino, &o, at, each).await?;
                }
                for at in gained {
                    self.added(group.ino, &n, at, each).await?;
                }
                Ok(())
            }
            (Some(o), None) => {
                for at in group.lost {
                    self.removed(group.ino, &o, at, each).await?;
                }
                Ok(())
            }
            (None, Some(n)) => {
                if group.ino == ROOT_INO {
                    return each(entry(DiffKind::Added, Vec::new(), n.kind, ROOT_INO.0));
                }
                for at in group.gained {
                    self.added(group.ino, &n, at, each).await?;
                }
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// An inode that is in both trees.
    async fn changed(&mut self, group: Group, old: &Attr, new: &Attr, each: Each<'_>) -> Result<()> {
        let (Some(a), Some(b)) = (&mut self.a, &mut self.b) else { return Ok(()) };
        let moved = !group.lost.is_empty() || !group.gained.is_empty();
        let differs = |times: bool| {
            let d = attrs(old, new, times);
            Differs { data: d.data || group.data, metadata: d.metadata || group.xattrs }
        };
        let told = |mut e: DiffEntry, d: Differs| {
            (e.data, e.metadata) = (d.data, d.metadata);
            e
        };
        let (ino, file) = (group.ino.0, new.kind);
        for i in 0..group.lost.len().max(group.gained.len()) {
            match (group.lost.get(i), group.gained.get(i)) {
                (Some(from), Some(to)) => {
                    let e = entry(DiffKind::Renamed, b.path(*to).await?, file, ino);
                    each(told(DiffEntry { from: Some(a.path(*from).await?), ..e }, differs(false)))?;
                }
                (Some(from), None) => each(entry(DiffKind::Removed, a.path(*from).await?, file, ino))?,
                (None, Some(to)) => each(entry(DiffKind::Added, b.path(*to).await?, file, ino))?,
                (None, None) => {}
            }
        }
        // A name that came moved the next index, one that went and none that came the number.
        let entries = (old.next_index, old.entries) != (new.next_index, new.entries);
        let d = differs(!(file == FileKind::Directory && (entries || moved)));
        if !d.any() {
            return Ok(());
        }
        if group.ino == ROOT_INO {
            return each(told(entry(DiffKind::Modified, Vec::new(), file, ino), d));
        }
        for at in b.names(group.ino).await? {
            if !group.gained.contains(&at) {
                each(told(entry(DiffKind::Modified, b.path(at).await?, file, ino), d))?;
            }
        }
        Ok(())
    }

    /// A name of an inode that is only in the first tree; if the second has something else of that name there, that is told instead.
    async fn removed(&mut self, ino: Ino, attr: &Attr, at: NameAt, each: Each<'_>) -> Result<()> {
        let Some(a) = &mut self.a else { return Ok(()) };
        if let Some(b) = &self.b {
            let name = a.entry(at).await?.name;
            if b.get(&b.hasher().await?.entry(at.dir, &name)).await?.is_some() {
                return Ok(());
            }
        }
        each(entry(DiffKind::Removed, a.path(at).await?, attr.kind, ino.0))
    }

    async fn added(&mut self, ino: Ino, attr: &Attr, at: NameAt, each: Each<'_>) -> Result<()> {
        let Some(b) = &mut self.b else { return Ok(()) };
        let mut there = false;
        if let Some(a) = &self.a {
            let name = b.entry(at).await?.name;
            there = a.get(&a.hasher().await?.entry(at.dir, &name)).await?.is_some();
        }
        let kind = if there { DiffKind::Modified } else { DiffKind::Added };
        let e = entry(kind, b.path(at).await?, attr.kind, ino.0);
        each(DiffEntry { replaced: there, data: there, metadata: there, ..e })
    }
}

/// The root directory is the same in all trees; other inodes are where they were born in the same opening.
fn same_inode(ino: Ino, a: &Attr, b: &Attr) -> bool {
    let birth = |x: &Attr| (x.birth_epoch, x.birth_session, x.kind);
    ino == ROOT_INO || birth(a) == birth(b)
}

fn decode(b: &Option<Bytes>) -> Result<Option<Attr>> {
    b.as_ref().map(|b| Attr::decode(b)).transpose()
}

async fn attr_in(view: &Option<View<'_>>, ino: Ino) -> Result<Option<Attr>> {
    match view {
        Some(v) => v.get(&Key::attr(ino)).await?.map(|b| Attr::decode(&b)).transpose(),
        None => Ok(None),
    }
}

async fn names_in(view: &Option<View<'_>>, ino: Ino) -> Result<Vec<NameAt>> {
    match view {
        Some(v) => v.names(ino).await,
        None => Ok(Vec::new()),
    }
}

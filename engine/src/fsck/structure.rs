//! Is a tree a file system? One pass over its records in key order.
//!
//! Within an inode, links, blocks and counts are compared; within a directory, whose names stand behind all inodes, entries by name and by
//! index one to one, and with the counts of its inode. What two inodes
//! say about each other (an entry names an inode of some type; a back-reference names the entry) is compared by a sum of digests over
//! all names from either side: equal sums, equal sets. Only where they differ a second pass asks for each name.

use std::collections::{HashMap, HashSet};

use hiloop_manifest::schema::{Attr, Block, Entry, FileKind, IndexEntry, Key, KeyKind, NameHasher, Source, Super, Totals};
use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, ErrorKind, Ino, ROOT_INO, Result};

use crate::hydrate::Hydrator;
use crate::traverse::Traverse;
use crate::view::{NameAt, View};

/// Faults of one tree that are listed.
const FAULTS_MAX: usize = 1000;

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) inodes: u64,
    pub(super) faults: Vec<(Option<u64>, String)>,
}

/// Checks one tree. One with nodes that cannot be read has nothing to say.
pub(super) async fn check(hydrator: &Hydrator, root: RootRef) -> Result<Found> {
    let mut s = Structure::default();
    let mut walk = Traverse::new(&root);
    while let Some((_, node)) = walk.next(hydrator, |_| true).await {
        let node = match node {
            Ok(node) => node,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => return Ok(Found::default()),
            Err(e) => return Err(e),
        };
        for i in 0..if node.level() == 0 { node.len() } else { 0 } {
            if let Err(e) = s.record(node.key(i), node.value(i)) {
                s.fault(None, e.to_string());
            }
        }
    }
    s.end();
    if s.from_directories != s.from_inodes {
        let found = names_one_by_one(hydrator, root, FAULTS_MAX.saturating_sub(s.found.faults.len())).await?;
        s.found.faults.extend(found);
    }
    Ok(s.found)
}

#[derive(Default)]
struct Structure {
    found: Found,
    superblock: Option<(Super, NameHasher)>,
    orphans: HashSet<u64>,
    totals: Totals,
    open: Option<Open>,
    /// Directories whose names have not passed.
    counts: HashMap<u64, Counts>,
    names: Option<Names>,
    /// Parent of each directory.
    parents: HashMap<u64, u64>,
    from_directories: u128,
    from_inodes: u128,
    highest: u64,
}

/// The inode whose records are passing.
struct Open {
    ino: u64,
    attr: Attr,
    allocated: u64,
    names: u32,
    dir: Option<u64>,
}

/// What a directory's inode says about its names.
struct Counts {
    entries: u64,
    next_index: u64,
    nlink: u32,
    orphan: bool,
}

/// The directory whose names are passing.
#[derive(Default)]
struct Names {
    dir: u64,
    /// Entries by name, waiting for the same by index.
    by_name: HashMap<u64, (Entry, u64)>,
    indexed: u64,
    subdirectories: u32,
    last_index: u64,
}

fn digest(ino: u64, dir: u64, index: u64, kind: FileKind) -> u128 {
    let mut h = blake3::Hasher::new();
    for v in [ino, dir, index, kind as u64] {
        h.update(&v.to_le_bytes());
    }
    let mut low = [0; 16];
    low.copy_from_slice(&h.finalize().as_bytes()[..16]);
    u128::from_le_bytes(low)
}

impl Structure {
    fn fault(&mut self, ino: Option<u64>, why: impl Into<String>) {
        if self.found.faults.len() < FAULTS_MAX {
            self.found.faults.push((ino, why.into()));
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match KeyKind::parse(key)? {
            KeyKind::Super => {
                let s = Super::decode(value)?;
                let hasher = NameHasher::new(s.name_key);
                self.superblock = Some((s, hasher));
            }
            KeyKind::Orphan(ino) => {
                self.orphans.insert(ino.0);
            }
            KeyKind::Attr(ino) => {
                self.close();
                self.begin(ino, Attr::decode(value)?);
            }
            KeyKind::Block(ino, number) => {
                let block = Block::decode(value, &[])?;
                let bad = block.pieces().iter().any(|p| matches!(p.source, Source::Staged { .. }));
                let open = self.of(ino)?;
                open.allocated += block.allocated();
                let is_file = open.attr.kind == FileKind::File;
                if bad || !is_file || block.is_empty() {
                    self.fault(Some(ino.0), format!("block {number} cannot stand in a published tree"));
                }
            }
            KeyKind::Entry { dir, hash, name } => {
                let entry = Entry::decode(value)?;
                let honest = self.superblock.as_ref().is_some_and(|(_, h)| h.hash(name) == hash);
                let twice = self.names_of(dir).by_name.insert(entry.index, (entry, hash)).is_some();
                if !honest || twice || !good_name(name) {
                    self.fault(Some(dir.0), format!("entry {:?} has a wrong hash, index or name", String::from_utf8_lossy(name)));
                }
            }
            KeyKind::Index(dir, index) => self.index(dir, index, &IndexEntry::decode(value)?),
            KeyKind::BackRef { ino, dir, index } => {
                let open = self.of(ino)?;
                open.names += 1;
                open.dir = Some(dir.0);
                let kind = open.attr.kind;
                self.from_inodes = self.from_inodes.wrapping_add(digest(ino.0, dir.0, index, kind));
            }
            KeyKind::Xattr(ino, _) => {
                self.of(ino)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, ino: Ino, attr: Attr) {
        self.totals.inodes += 1;
        self.highest = self.highest.max(ino.0);
        self.open = Some(Open { ino: ino.0, attr, allocated: 0, names: 0, dir: None });
    }

    fn of(&mut self, ino: Ino) -> Result<&mut Open> {
        self.open.as_mut().filter(|o| o.ino == ino.0).ok_or_else(|| Error::corrupt(format!("inode {ino} has records but no attributes")))
    }

    /// The names that are passing; those of the directory before are told.
    fn names_of(&mut self, dir: Ino) -> &mut Names {
        if self.names.as_ref().is_none_or(|n| n.dir != dir.0) {
            self.close();
            self.close_names();
        }
        self.names.get_or_insert_with(|| Names { dir: dir.0, ..Names::default() })
    }

    fn index(&mut self, dir: Ino, index: u64, by_index: &IndexEntry) {
        let hash = self.superblock.as_ref().map(|(_, h)| h.hash(&by_index.name));
        let names = self.names_of(dir);
        names.indexed += 1;
        names.last_index = index;
        names.subdirectories += u32::from(by_index.kind == FileKind::Directory);
        let by_name = names.by_name.remove(&index);
        let agree = by_name.is_some_and(|(e, h)| (e.ino, e.kind) == (by_index.ino, by_index.kind) && Some(h) == hash);
        if !agree {
            self.fault(
                Some(dir.0),
                format!("entry {index} ({:?}) is not the same by name and by index", String::from_utf8_lossy(&by_index.name)),
            );
        }
        self.from_directories = self.from_directories.wrapping_add(digest(by_index.ino.0, dir.0, index, by_index.kind));
    }

    fn close_names(&mut self) {
        let Some(names) = self.names.take() else { return };
        match self.counts.remove(&names.dir) {
            Some(counts) => self.compare(&names, &counts),
            None => self.fault(Some(names.dir), "has entries and is no directory"),
        }
    }

    fn compare(&mut self, n: &Names, c: &Counts) {
        let mut bad = |holds: bool, why: String| {
            if !holds {
                self.fault(Some(n.dir), why);
            }
        };
        bad(c.entries == n.indexed, format!("counts {} entries and has {}", c.entries, n.indexed));
        bad(n.by_name.is_empty(), format!("has {} entries by name that are not there by index", n.by_name.len()));
        bad(c.next_index > n.last_index, format!("would use index {} again, {} is in use", c.next_index, n.last_index));
        bad(c.orphan || c.nlink == n.subdirectories + 2, format!("counts {} links and has {} directories", c.nlink, n.subdirectories));
    }

    fn close(&mut self) {
        let Some(o) = self.open.take() else { return };
        let a = &o.attr;
        self.totals.bytes += a.allocated;
        let orphan = self.orphans.remove(&o.ino);
        let mut bad = |holds: bool, why: String| {
            if !holds {
                self.fault(Some(o.ino), why);
            }
        };
        bad(a.allocated == o.allocated, format!("counts {} bytes, its blocks hold {}", a.allocated, o.allocated));
        if a.kind == FileKind::Directory {
            let named = if o.ino == ROOT_INO.0 { o.names == 0 && a.parent == ROOT_INO } else { o.names == 1 && o.dir == Some(a.parent.0) };
            bad(orphan || named, format!("has {} names, its parent is inode {}", o.names, a.parent));
            self.counts.insert(o.ino, Counts { entries: a.entries, next_index: a.next_index, nlink: a.nlink, orphan });
            if !orphan {
                self.parents.insert(o.ino, a.parent.0);
            }
        } else {
            bad(a.nlink == o.names, format!("counts {} links and has {} names", a.nlink, o.names));
            bad(orphan == (o.names == 0), "has no name and is not in the orphan list, or the reverse".into());
        }
    }

    fn end(&mut self) {
        self.close();
        self.close_names();
        let mut nameless: Vec<_> = std::mem::take(&mut self.counts).into_iter().collect();
        nameless.sort_unstable_by_key(|(dir, _)| *dir);
        for (dir, counts) in nameless {
            self.compare(&Names { dir, ..Names::default() }, &counts);
        }
        self.found.inodes = self.totals.inodes;
        let highest = self.highest;
        match self.superblock.take() {
            None => self.fault(None, "the tree has no superblock"),
            Some((s, _)) => {
                if s.totals != self.totals {
                    self.fault(None, format!("the superblock counts {:?}, the inodes are {:?}", s.totals, self.totals));
                }
                if s.next_ino <= highest {
                    self.fault(Some(highest), format!("the next inode number is {}, which is in use or was", s.next_ino));
                }
            }
        }
        if !self.parents.contains_key(&ROOT_INO.0) {
            self.fault(Some(ROOT_INO.0), "there is no root directory");
        }
        for ino in std::mem::take(&mut self.orphans) {
            self.fault(Some(ino), "is in the orphan list and does not exist");
        }
        self.circles();
    }

    /// Every directory must lead to the root.
    fn circles(&mut self) {
        let mut good: HashSet<u64> = HashSet::from([ROOT_INO.0]);
        let mut lost = Vec::new();
        for start in self.parents.keys() {
            let (mut way, mut at) = (HashSet::new(), *start);
            while !good.contains(&at) && way.insert(at) {
                match self.parents.get(&at) {
                    Some(parent) => at = *parent,
                    None => break,
                }
            }
            if good.contains(&at) { good.extend(way) } else { lost.push(*start) }
        }
        for ino in lost {
            self.fault(Some(ino), "does not lead to the root directory");
        }
    }
}

fn good_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// Asks both sides about every name.
async fn names_one_by_one(hydrator: &Hydrator, root: RootRef, limit: usize) -> Result<Vec<(Option<u64>, String)>> {
    let view = View::new(hydrator, root);
    let mut faults = Vec::new();
    let mut walk = Traverse::new(&root);
    while let Some((_, node)) = walk.next(hydrator, |_| true).await {
        let node = node?;
        for i in 0..if node.level() == 0 { node.len() } else { 0 } {
            if faults.len() >= limit {
                return Ok(faults);
            }
            match KeyKind::parse(node.key(i)) {
                Ok(KeyKind::Index(dir, index)) => {
                    let Ok(e) = IndexEntry::decode(node.value(i)) else { continue };
                    let kind = view.attr(e.ino).await?.map(|a| a.kind);
                    if kind != Some(e.kind) || view.get(&Key::backref(e.ino, dir, index)).await?.is_none() {
                        let name = String::from_utf8_lossy(&e.name).into_owned();
                        faults.push((Some(dir.0), format!("names {name:?} as inode {}, which does not say so", e.ino)));
                    }
                }
                Ok(KeyKind::BackRef { ino, dir, index }) => {
                    let named = view.entry(NameAt { dir, index }).await.is_ok_and(|e| e.ino == ino);
                    if !named {
                        faults.push((Some(ino.0), format!("says that directory {dir} names it at index {index}, which it does not")));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(faults)
}

//! A published tree as a file system, read only: for commands that look at a store without mounting.

use std::collections::HashMap;

use bytes::Bytes;
use hiloop_manifest::schema::{Attr, IndexEntry, Key, KeyKind, NameHasher, Prefix, Super};
use hiloop_manifest::tree::{Access, KeyRange, RootRef, Scan, get, missing};
use hiloop_types::{Error, Ino, ROOT_INO, Result};

use crate::hydrate::Hydrator;

/// Nodes fetched ahead of a scan.
const AHEAD: usize = 16;
/// Paths of directories that are remembered.
const PATHS_MAX: usize = 100_000;
/// Deepest directory, a defence against parents that form a circle.
const DEPTH_MAX: usize = 100_000;

/// A tree and the directory paths that were asked for.
pub(crate) struct View<'h> {
    hydrator: &'h Hydrator,
    root: RootRef,
    directories: HashMap<Ino, Vec<u8>>,
}

/// One name of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NameAt {
    pub(crate) dir: Ino,
    pub(crate) index: u64,
}

impl<'h> View<'h> {
    pub(crate) fn new(hydrator: &'h Hydrator, root: RootRef) -> Self {
        Self { hydrator, root, directories: HashMap::new() }
    }
    pub(crate) fn root(&self) -> &RootRef {
        &self.root
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.hydrator.with_nodes(|h| get(h, &self.root, key.as_bytes())).await
    }

    /// At most `limit` records of a range.
    pub(crate) async fn page(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let mut out: Vec<(Bytes, Bytes)> = Vec::new();
        loop {
            let left = match out.last() {
                Some((last, _)) => range.clone().after(last),
                None => range.clone(),
            };
            match scan(self.hydrator, &self.root, &left, limit, &mut out) {
                Ok(()) => return Ok(out),
                Err(Access::Error(e)) => return Err(e),
                Err(Access::Miss(_)) => {
                    let left = out.last().map_or_else(|| range.clone(), |(last, _)| range.clone().after(last));
                    // A page seldom spans more than a leaf or two; what lies far behind it is not fetched.
                    let ahead = if limit > 256 { AHEAD } else { 2 };
                    self.hydrator.nodes_now(&missing(self.hydrator, &self.root, &left, ahead)?).await?;
                }
            }
        }
    }

    pub(crate) async fn superblock(&self) -> Result<Super> {
        let found = self.get(&Key::superblock()).await?;
        Super::decode(&found.ok_or_else(|| Error::corrupt("the tree has no superblock").at(self.root.node.id))?)
    }
    pub(crate) async fn hasher(&self) -> Result<NameHasher> {
        Ok(NameHasher::new(self.superblock().await?.name_key))
    }
    pub(crate) async fn attr(&self, ino: Ino) -> Result<Option<Attr>> {
        self.get(&Key::attr(ino)).await?.map(|b| Attr::decode(&b)).transpose()
    }
    pub(crate) async fn require_attr(&self, ino: Ino) -> Result<Attr> {
        self.attr(ino).await?.ok_or_else(|| Error::corrupt(format!("inode {ino} has no attributes")).at(self.root.node.id))
    }

    /// At most `limit` entries of a directory behind index `after`, in order of creation.
    pub(crate) async fn entries(&self, dir: Ino, after: u64, limit: usize) -> Result<Vec<(u64, IndexEntry)>> {
        let prefix = Prefix::index(dir);
        let range = KeyRange::between(Key::index(dir, after.saturating_add(1)).as_bytes(), &prefix.end());
        let mut out = Vec::new();
        for (key, value) in self.page(&range, limit).await? {
            if let KeyKind::Index(_, index) = KeyKind::parse(&key)? {
                out.push((index, IndexEntry::decode(&value)?));
            }
        }
        Ok(out)
    }

    /// All names of an inode.
    pub(crate) async fn names(&self, ino: Ino) -> Result<Vec<NameAt>> {
        let found = self.page(&KeyRange::prefix(Prefix::backrefs(ino).start()), usize::MAX).await?;
        found
            .iter()
            .map(|(key, _)| match KeyKind::parse(key)? {
                KeyKind::BackRef { dir, index, .. } => Ok(NameAt { dir, index }),
                _ => Err(Error::corrupt("a key that is no back-reference stands among them")),
            })
            .collect()
    }

    /// The entry that a back-reference points to.
    pub(crate) async fn entry(&self, at: NameAt) -> Result<IndexEntry> {
        let found = self.get(&Key::index(at.dir, at.index)).await?;
        let lost = || Error::corrupt(format!("directory {} has no entry {}", at.dir, at.index)).at(self.root.node.id);
        IndexEntry::decode(&found.ok_or_else(lost)?)
    }

    /// Path of a name below the root, without a leading slash.
    pub(crate) async fn path(&mut self, at: NameAt) -> Result<Vec<u8>> {
        let name = self.entry(at).await?.name;
        let mut path = self.directory(at.dir).await?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        Ok(path)
    }

    async fn directory(&mut self, dir: Ino) -> Result<Vec<u8>> {
        let (mut parts, mut at, mut known): (Vec<(Ino, Vec<u8>)>, _, _) = (Vec::new(), dir, Vec::new());
        while at != ROOT_INO {
            if let Some(path) = self.directories.get(&at) {
                known.clone_from(path);
                break;
            }
            let names = self.names(at).await?;
            let Some(name) = names.first().filter(|_| parts.len() < DEPTH_MAX) else {
                return Err(Error::corrupt(format!("directory {at} does not lead to the root")).at(self.root.node.id));
            };
            parts.push((at, self.entry(*name).await?.name));
            at = name.dir;
        }
        for (ino, name) in parts.into_iter().rev() {
            if !known.is_empty() {
                known.push(b'/');
            }
            known.extend_from_slice(&name);
            if self.directories.len() >= PATHS_MAX {
                self.directories.clear();
            }
            self.directories.insert(ino, known.clone());
        }
        Ok(known)
    }
}

fn scan(h: &Hydrator, root: &RootRef, range: &KeyRange, limit: usize, out: &mut Vec<(Bytes, Bytes)>) -> Result<(), Access> {
    for record in Scan::new(h, root, range.clone()) {
        if out.len() >= limit {
            break;
        }
        out.push(record?);
    }
    Ok(())
}

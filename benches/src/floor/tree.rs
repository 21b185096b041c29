//! Inodes and names in memory.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use fuser::{FileAttr, FileType, INodeNo};

use super::content::Content;

pub(super) const ROOT: u64 = 1;

/// An errno.
pub(super) type Answer<T> = Result<T, i32>;

pub(super) enum Kind {
    File(Content),
    Directory(Directory),
    Link(Vec<u8>),
}

/// Names with the cookies of their entries: a listing goes on where it was, whatever was removed meanwhile.
#[derive(Default)]
pub(super) struct Directory {
    names: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    parent: u64,
}

impl Directory {
    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).and_then(|cookie| self.entries.get(cookie)).map(|(_, ino)| *ino)
    }
    fn add(&mut self, name: &[u8], ino: u64) {
        // The first two cookies are those of `.` and `..`.
        let cookie = self.entries.last_key_value().map_or(3, |(last, _)| last + 1);
        self.names.insert(name.to_vec(), cookie);
        self.entries.insert(cookie, (name.to_vec(), ino));
    }
    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        self.names.remove(name).and_then(|cookie| self.entries.remove(&cookie)).map(|(_, ino)| ino)
    }
}

pub(super) struct Node {
    pub(super) attr: FileAttr,
    pub(super) kind: Kind,
    /// References that the kernel holds.
    lookups: u64,
}

impl Node {
    pub(super) fn attr(&self) -> FileAttr {
        let size = match &self.kind {
            Kind::File(content) => content.len(),
            Kind::Directory(_) => 4096,
            Kind::Link(target) => target.len() as u64,
        };
        FileAttr { size, blocks: size.div_ceil(512), ..self.attr }
    }
    pub(super) fn file(&mut self) -> Answer<&mut Content> {
        match &mut self.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(libc::EISDIR),
            Kind::Link(_) => Err(libc::EINVAL),
        }
    }
}

/// What a new inode is.
pub(super) struct New {
    pub(super) kind: Kind,
    pub(super) perm: u16,
    pub(super) owner: (u32, u32),
}

pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    pub(super) fn new(now: SystemTime) -> Self {
        let mut tree = Self { nodes: HashMap::new(), next: ROOT };
        let new = New { kind: Kind::Directory(Directory { parent: ROOT, ..Directory::default() }), perm: 0o755, owner: (0, 0) };
        tree.insert(new, now);
        tree
    }

    fn insert(&mut self, new: New, now: SystemTime) -> u64 {
        let ino = self.next;
        self.next += 1;
        let kind = match &new.kind {
            Kind::File(_) => FileType::RegularFile,
            Kind::Directory(_) => FileType::Directory,
            Kind::Link(_) => FileType::Symlink,
        };
        let attr = FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm: new.perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: new.owner.0,
            gid: new.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        self.nodes.insert(ino, Node { attr, kind: new.kind, lookups: 0 });
        ino
    }

    pub(super) fn node(&mut self, ino: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(libc::ESTALE)
    }

    pub(super) fn directory(&mut self, ino: u64) -> Answer<&mut Directory> {
        match &mut self.node(ino)?.kind {
            Kind::Directory(dir) => Ok(dir),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// The inode of a name with one more reference; none where there is no such name.
    pub(super) fn lookup(&mut self, dir: u64, name: &[u8]) -> Answer<Option<FileAttr>> {
        match self.directory(dir)?.get(name) {
            Some(ino) => self.referred(ino).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn referred(&mut self, ino: u64) -> Answer<FileAttr> {
        let node = self.node(ino)?;
        node.lookups += 1;
        Ok(node.attr())
    }

    pub(super) fn forget(&mut self, ino: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
            self.reap(ino);
        }
    }

    fn reap(&mut self, ino: u64) {
        if self.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && n.lookups == 0) {
            self.nodes.remove(&ino);
        }
    }

    fn touch(&mut self, dir: u64, now: SystemTime) -> Answer<()> {
        let attr = &mut self.node(dir)?.attr;
        (attr.mtime, attr.ctime) = (now, now);
        Ok(())
    }

    pub(super) fn make(&mut self, dir: u64, name: &[u8], mut new: New, now: SystemTime) -> Answer<FileAttr> {
        if self.directory(dir)?.get(name).is_some() {
            return Err(libc::EEXIST);
        }
        if let Kind::Directory(made) = &mut new.kind {
            made.parent = dir;
            self.node(dir)?.attr.nlink += 1;
        }
        let ino = self.insert(new, now);
        self.directory(dir)?.add(name, ino);
        self.touch(dir, now)?;
        self.referred(ino)
    }

    pub(super) fn link(&mut self, ino: u64, dir: u64, name: &[u8], now: SystemTime) -> Answer<FileAttr> {
        if self.directory(dir)?.get(name).is_some() {
            return Err(libc::EEXIST);
        }
        let attr = &mut self.node(ino)?.attr;
        (attr.nlink, attr.ctime) = (attr.nlink + 1, now);
        self.directory(dir)?.add(name, ino);
        self.touch(dir, now)?;
        self.referred(ino)
    }

    pub(super) fn remove(&mut self, dir: u64, name: &[u8], is_directory: bool, now: SystemTime) -> Answer<()> {
        let ino = self.directory(dir)?.get(name).ok_or(libc::ENOENT)?;
        match &self.node(ino)?.kind {
            Kind::Directory(d) if is_directory && !d.names.is_empty() => return Err(libc::ENOTEMPTY),
            Kind::Directory(_) if !is_directory => return Err(libc::EISDIR),
            Kind::Directory(_) => {}
            _ if is_directory => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.directory(dir)?.remove(name);
        self.unname(dir, ino, now)?;
        self.touch(dir, now)
    }

    /// A name of `ino` in `dir` went.
    fn unname(&mut self, dir: u64, ino: u64, now: SystemTime) -> Answer<()> {
        let node = self.node(ino)?;
        node.attr.ctime = now;
        if matches!(node.kind, Kind::Directory(_)) {
            node.attr.nlink = 0;
            self.node(dir)?.attr.nlink -= 1;
        } else {
            node.attr.nlink -= 1;
        }
        self.reap(ino);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), keep: bool, now: SystemTime) -> Answer<()> {
        let ino = self.directory(from.0)?.get(from.1).ok_or(libc::ENOENT)?;
        let moved_directory = matches!(self.node(ino)?.kind, Kind::Directory(_));
        match self.directory(to.0)?.get(to.1) {
            Some(_) if keep => return Err(libc::EEXIST),
            Some(other) if other == ino => return Ok(()),
            Some(_) => self.remove(to.0, to.1, moved_directory, now)?,
            None => {}
        }
        self.directory(from.0)?.remove(from.1);
        self.directory(to.0)?.add(to.1, ino);
        if moved_directory {
            self.node(from.0)?.attr.nlink -= 1;
            self.node(to.0)?.attr.nlink += 1;
            self.directory(ino)?.parent = to.0;
        }
        self.node(ino)?.attr.ctime = now;
        self.touch(from.0, now)?;
        self.touch(to.0, now)
    }

    /// Entries after `cookie` until `add(cookie, ino, name, attributes)` says that there is no room.
    pub(super) fn list(&mut self, dir: u64, cookie: u64, mut add: impl FnMut(u64, &[u8], FileAttr) -> bool) -> Answer<Vec<u64>> {
        let parent = self.directory(dir)?.parent;
        let dots = [(1, dir, &b"."[..]), (2, parent, &b".."[..])];
        for (at, ino, name) in dots.into_iter().filter(|(at, _, _)| *at > cookie) {
            let attr = self.node(ino)?.attr();
            if !add(at, name, attr) {
                return Ok(Vec::new());
            }
        }
        let Kind::Directory(directory) = &self.nodes.get(&dir).ok_or(libc::ESTALE)?.kind else { return Err(libc::ENOTDIR) };
        let mut listed = Vec::new();
        for (at, (name, ino)) in directory.entries.range(cookie.max(2) + 1..) {
            let node = self.nodes.get(ino).ok_or(libc::EIO)?;
            if !add(*at, name, node.attr()) {
                break;
            }
            listed.push(*ino);
        }
        Ok(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> New {
        New { kind: Kind::File(Content::default()), perm: 0o644, owner: (0, 0) }
    }

    #[test]
    fn a_listing_goes_on_after_removals_and_an_inode_lives_while_it_is_held() {
        let now = SystemTime::UNIX_EPOCH;
        let mut tree = Tree::new(now);
        for name in ["a", "b", "c"] {
            tree.make(ROOT, name.as_bytes(), file(), now).unwrap();
        }
        let mut names = Vec::new();
        tree.list(ROOT, 0, |cookie, name, _| {
            names.push((cookie, name.to_vec()));
            names.len() < 3
        })
        .unwrap();
        assert_eq!(names[2], (3, b"a".to_vec()));
        let held = tree.lookup(ROOT, b"a").unwrap().unwrap().ino.0;
        tree.remove(ROOT, b"a", false, now).unwrap();
        tree.remove(ROOT, b"b", false, now).unwrap();
        let rest = tree.list(ROOT, 3, |_, name, _| name == b"c").unwrap();
        assert_eq!(rest.len(), 1);
        assert!(tree.node(held).is_ok());
        tree.forget(held, 2);
        assert_eq!(tree.node(held).err(), Some(libc::ESTALE));
    }

    #[test]
    fn rename_replaces_and_moves_directories() {
        let now = SystemTime::UNIX_EPOCH;
        let mut tree = Tree::new(now);
        let dir = || New { kind: Kind::Directory(Directory::default()), perm: 0o755, owner: (0, 0) };
        let a = tree.make(ROOT, b"a", dir(), now).unwrap().ino.0;
        tree.make(ROOT, b"b", dir(), now).unwrap();
        tree.make(a, b"f", file(), now).unwrap();
        assert_eq!(tree.rename((ROOT, b"b"), (ROOT, b"a"), false, now), Err(libc::ENOTEMPTY));
        tree.rename((ROOT, b"a"), (ROOT, b"b"), false, now).unwrap();
        assert_eq!(tree.lookup(ROOT, b"a").unwrap().map(|x| x.ino.0), None);
        assert_eq!(tree.node(ROOT).unwrap().attr().nlink, 3);
        assert!(tree.lookup(a, b"f").unwrap().is_some());
    }
}

//! The nodes of [`super::NullFs`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::abi::ROOT;
use crate::answer::Attr;
use crate::request::Time;

/// An answer, or a positive errno.
pub(super) type Answer<T> = Result<T, i32>;

/// Content of a file; read without the tree's lock.
pub(super) type Content = Arc<RwLock<Vec<u8>>>;

#[derive(Default)]
pub(super) struct Directory {
    /// Names in the order in which they came, by cookie. Cookies are never used twice.
    pub(super) order: BTreeMap<u64, (Vec<u8>, u64)>,
    pub(super) names: HashMap<Vec<u8>, (u64, u64)>,
    next: u64,
}

/// Cookies 1 and 2 are those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

impl Directory {
    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).map(|(ino, _)| *ino)
    }

    fn insert(&mut self, name: &[u8], ino: u64) {
        let cookie = self.next.max(FIRST_COOKIE);
        self.next = cookie + 1;
        self.remove(name);
        self.names.insert(name.to_vec(), (ino, cookie));
        self.order.insert(cookie, (name.to_vec(), ino));
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}

pub(super) enum Kind {
    Directory(Directory),
    File(Content),
    Link(Vec<u8>),
    Other,
}

pub(super) struct Node {
    /// All but the length of a file.
    attr: Attr,
    pub(super) kind: Kind,
    parent: u64,
    lookups: u64,
}

const BLOCK: u64 = 512;
const DIRECTORY_SIZE: u64 = 4096;
const NAME_MAX: usize = 255;

impl Node {
    pub(super) fn attr(&self) -> Attr {
        let size = match &self.kind {
            Kind::Directory(_) => DIRECTORY_SIZE,
            Kind::File(content) => content.read().len() as u64,
            Kind::Link(target) => target.len() as u64,
            Kind::Other => 0,
        };
        Attr { size, blocks: size.div_ceil(BLOCK), ..self.attr }
    }

    pub(super) fn attr_mut(&mut self) -> &mut Attr {
        &mut self.attr
    }

    pub(super) fn touch(&mut self, now: Time) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    pub(super) fn content(&self) -> Answer<&Content> {
        match &self.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }
}

/// What a new node is made of.
pub(super) struct New {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) kind: Kind,
    pub(super) now: Time,
}

pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    pub(super) fn new(now: Time) -> Self {
        let mut tree = Self { nodes: HashMap::new(), next: ROOT };
        let root = New { mode: libc::S_IFDIR | 0o755, uid: 0, gid: 0, rdev: 0, kind: Kind::Directory(Directory::default()), now };
        tree.add(root, ROOT);
        tree
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn get(&self, ino: u64) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(libc::ESTALE)
    }

    pub(super) fn get_mut(&mut self, ino: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(libc::ESTALE)
    }

    pub(super) fn directory(&self, ino: u64) -> Answer<&Directory> {
        match &self.get(ino)?.kind {
            Kind::Directory(d) => Ok(d),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn directory_mut(&mut self, ino: u64, now: Time) -> Answer<&mut Directory> {
        let node = self.get_mut(ino)?;
        node.touch(now);
        match &mut node.kind {
            Kind::Directory(d) => Ok(d),
            _ => Err(libc::ENOTDIR),
        }
    }

    pub(super) fn parent(&self, ino: u64) -> u64 {
        self.nodes.get(&ino).map_or(ROOT, |n| n.parent)
    }

    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Answer<u64> {
        if name.len() > NAME_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        self.directory(dir)?.get(name).ok_or(libc::ENOENT)
    }

    /// Counts a reference that the kernel gets.
    pub(super) fn hold(&mut self, ino: u64) {
        if let Some(n) = self.nodes.get_mut(&ino) {
            n.lookups += 1;
        }
    }

    pub(super) fn forget(&mut self, ino: u64, lookups: u64) {
        if let Some(n) = self.nodes.get_mut(&ino) {
            n.lookups = n.lookups.saturating_sub(lookups);
        }
        self.collect(ino);
    }

    fn collect(&mut self, ino: u64) {
        if self.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && n.lookups == 0) {
            self.nodes.remove(&ino);
        }
    }

    /// A node without a name.
    pub(super) fn add(&mut self, new: New, parent: u64) -> u64 {
        let ino = self.next;
        self.next += 1;
        let New { mut mode, uid, mut gid, rdev, kind, now } = new;
        if let Some(dir) = self.nodes.get(&parent).filter(|d| d.attr.mode & libc::S_ISGID != 0) {
            gid = dir.attr.gid;
            if matches!(kind, Kind::Directory(_)) {
                mode |= libc::S_ISGID;
            }
        }
        let nlink = if matches!(kind, Kind::Directory(_)) { 2 } else { 0 };
        let blksize = DIRECTORY_SIZE as u32;
        let attr = Attr { ino, mode, nlink, uid, gid, rdev, blksize, atime: now, mtime: now, ctime: now, btime: now, ..Attr::default() };
        self.nodes.insert(ino, Node { attr, kind, parent, lookups: 0 });
        ino
    }

    pub(super) fn make(&mut self, dir: u64, name: &[u8], new: New) -> Answer<u64> {
        match self.lookup(dir, name) {
            Ok(_) => return Err(libc::EEXIST),
            Err(libc::ENOENT) => {}
            Err(e) => return Err(e),
        }
        let now = new.now;
        let ino = self.add(new, dir);
        self.enter(dir, name, ino, now)?;
        Ok(ino)
    }

    /// Gives a node a name.
    fn enter(&mut self, dir: u64, name: &[u8], ino: u64, now: Time) -> Answer<()> {
        self.directory_mut(dir, now)?.insert(name, ino);
        let node = self.get_mut(ino)?;
        node.attr.ctime = now;
        if node.is_directory() {
            node.parent = dir;
            self.get_mut(dir)?.attr.nlink += 1;
        } else {
            node.attr.nlink += 1;
        }
        Ok(())
    }

    /// Takes a name away; the node stays as long as the kernel holds it.
    fn leave(&mut self, dir: u64, name: &[u8], ino: u64, now: Time) -> Answer<()> {
        self.directory_mut(dir, now)?.remove(name);
        let node = self.get_mut(ino)?;
        node.attr.ctime = now;
        if node.is_directory() {
            self.get_mut(dir)?.attr.nlink -= 1;
        } else {
            node.attr.nlink -= 1;
        }
        Ok(())
    }

    fn drop_directory(&mut self, ino: u64) {
        if let Some(n) = self.nodes.get_mut(&ino).filter(|n| n.is_directory()) {
            n.attr.nlink = 0;
        }
        self.collect(ino);
    }

    pub(super) fn link(&mut self, ino: u64, dir: u64, name: &[u8], now: Time) -> Answer<()> {
        match self.lookup(dir, name) {
            Ok(_) => Err(libc::EEXIST),
            Err(libc::ENOENT) if self.get(ino)?.is_directory() => Err(libc::EPERM),
            Err(libc::ENOENT) => self.enter(dir, name, ino, now),
            Err(e) => Err(e),
        }
    }

    pub(super) fn remove(&mut self, dir: u64, name: &[u8], want_directory: bool, now: Time) -> Answer<()> {
        let ino = self.lookup(dir, name)?;
        self.removable(ino, want_directory)?;
        self.leave(dir, name, ino, now)?;
        self.drop_directory(ino);
        Ok(())
    }

    fn removable(&self, ino: u64, want_directory: bool) -> Answer<()> {
        match &self.get(ino)?.kind {
            Kind::Directory(_) if !want_directory => Err(libc::EISDIR),
            Kind::Directory(d) if !d.names.is_empty() => Err(libc::ENOTEMPTY),
            Kind::Directory(_) => Ok(()),
            _ if want_directory => Err(libc::ENOTDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32, now: Time) -> Answer<()> {
        let ino = self.lookup(from.0, from.1)?;
        let there = match self.lookup(to.0, to.1) {
            Ok(there) => Some(there),
            Err(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        match (flags, there) {
            (libc::RENAME_EXCHANGE, None) => return Err(libc::ENOENT),
            (libc::RENAME_NOREPLACE, Some(_)) => return Err(libc::EEXIST),
            (0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE, _) => {}
            _ => return Err(libc::EINVAL),
        }
        if there == Some(ino) {
            return Ok(());
        }
        let Some(other) = there else {
            self.leave(from.0, from.1, ino, now)?;
            return self.enter(to.0, to.1, ino, now);
        };
        if flags == libc::RENAME_EXCHANGE {
            self.leave(from.0, from.1, ino, now)?;
            self.leave(to.0, to.1, other, now)?;
            self.enter(from.0, from.1, other, now)?;
            return self.enter(to.0, to.1, ino, now);
        }
        self.removable(other, self.get(ino)?.is_directory())?;
        self.leave(to.0, to.1, other, now)?;
        self.drop_directory(other);
        self.leave(from.0, from.1, ino, now)?;
        self.enter(to.0, to.1, ino, now)
    }
}

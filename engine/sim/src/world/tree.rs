//! What a workspace should hold, and the operations that change it: in the model and, as a file system would do it, in the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hiloop_engine::stop::Stop;
use hiloop_engine::workspace::{Read, Txn, View};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_types::{Error, Ino, ROOT_INO, Result};

/// Names that operations choose from; a few, so that they meet.
pub const PATHS: [&str; 8] = ["a", "b", "c", "d", "p/a", "p/b", "q/a", "q/b"];
/// Directories that may be there.
pub const DIRS: [&str; 2] = ["p", "q"];

/// A tree: names, and contents by inode number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Directories but the root.
    pub dirs: BTreeMap<String, u64>,
    /// Names of files.
    pub names: BTreeMap<String, u64>,
    /// Contents.
    pub files: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (path, ino) in &self.dirs {
            write!(f, " {path}/={ino}")?;
        }
        for (path, ino) in &self.names {
            let content = self.files.get(ino).map_or(&[][..], |c| c);
            write!(f, " {path}={ino}:{}:{:08x}", content.len(), crc32c::crc32c(content))?;
        }
        write!(f, " ]")
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes bytes of pattern `fill`, making the file where it is not.
    Write {
        /// Where.
        path: &'static str,
        /// From which byte on.
        offset: u64,
        /// How many.
        len: u64,
        /// Which bytes: equal numbers are equal bytes.
        fill: u64,
    },
    /// Cuts or lengthens a file.
    Truncate {
        /// Which.
        path: &'static str,
        /// New size.
        size: u64,
    },
    /// Makes a range a hole.
    Punch {
        /// Which file.
        path: &'static str,
        /// First byte.
        from: u64,
        /// Behind the last byte.
        to: u64,
    },
    /// Shares the first bytes of a file with another.
    Clone {
        /// Source.
        from: &'static str,
        /// Target, which exists.
        to: &'static str,
        /// How many bytes.
        len: u64,
    },
    /// Removes a name.
    Unlink(&'static str),
    /// Moves a name over whatever is there.
    Rename(&'static str, &'static str),
    /// Gives a file another name.
    Link(&'static str, &'static str),
    /// Makes a directory.
    Mkdir(&'static str),
    /// Removes an empty directory.
    Rmdir(&'static str),
}

/// Bytes of pattern `fill`: even ones compress, odd ones do not.
pub fn pattern(fill: u64, len: u64) -> Vec<u8> {
    if fill.is_multiple_of(2) {
        return format!("line {fill} of text that repeats\n").bytes().cycle().take(len as usize).collect();
    }
    let mut word = fill.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.flatten().take(len as usize).collect()
}

fn split(path: &str) -> (Option<&str>, &str) {
    path.rsplit_once('/').map_or((None, path), |(dir, name)| (Some(dir), name))
}

impl Tree {
    /// Whether a file system would do this.
    pub fn admits(&self, op: &Op) -> bool {
        let room = |path: &str| split(path).0.is_none_or(|dir| self.dirs.contains_key(dir));
        let there = |path: &str| self.names.contains_key(path);
        match op {
            Op::Write { path, .. } => room(path),
            Op::Truncate { path, .. } | Op::Punch { path, .. } | Op::Unlink(path) => there(path),
            Op::Clone { from, to, len } => {
                there(from) && there(to) && self.names[*from] != self.names[*to] && self.files[&self.names[*from]].len() as u64 >= *len
            }
            Op::Rename(from, to) => there(from) && room(to) && self.names.get(*from) != self.names.get(*to),
            Op::Link(from, to) => there(from) && room(to) && !there(to),
            Op::Mkdir(path) => !self.dirs.contains_key(*path),
            Op::Rmdir(path) => self.dirs.contains_key(*path) && !self.names.keys().any(|n| split(n).0 == Some(path)),
        }
    }

    /// Does it. `made` is the number of the inode that it makes.
    pub fn apply(&mut self, op: &Op, made: u64) {
        match op {
            Op::Write { path, offset, len, fill } => {
                let ino = *self.names.entry((*path).to_owned()).or_insert(made);
                let content = Arc::make_mut(self.files.entry(ino).or_default());
                let end = (offset + len) as usize;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset as usize..end].copy_from_slice(&pattern(*fill, *len));
            }
            Op::Truncate { path, size } => self.content(path).resize(*size as usize, 0),
            Op::Punch { path, from, to } => {
                let content = self.content(path);
                let end = content.len().min(*to as usize);
                if let Some(hole) = content.get_mut(*from as usize..end) {
                    hole.fill(0);
                }
            }
            Op::Clone { from, to, len } => {
                let source = self.content(from)[..*len as usize].to_vec();
                let target = self.content(to);
                if target.len() < source.len() {
                    target.resize(source.len(), 0);
                }
                target[..source.len()].copy_from_slice(&source);
            }
            Op::Unlink(path) => self.remove(path),
            Op::Rename(from, to) => {
                self.remove(to);
                if let Some(ino) = self.names.remove(*from) {
                    self.names.insert((*to).to_owned(), ino);
                }
            }
            Op::Link(from, to) => {
                let ino = self.names[*from];
                self.names.insert((*to).to_owned(), ino);
            }
            Op::Mkdir(path) => _ = self.dirs.insert((*path).to_owned(), made),
            Op::Rmdir(path) => _ = self.dirs.remove(*path),
        }
    }
    fn content(&mut self, path: &str) -> &mut Vec<u8> {
        let ino = self.names[path];
        Arc::make_mut(self.files.entry(ino).or_default())
    }
    fn remove(&mut self, path: &str) {
        let Some(ino) = self.names.remove(path) else { return };
        if !self.names.values().any(|i| *i == ino) {
            self.files.remove(&ino);
        }
    }
}

fn gone(what: &str) -> Stop {
    Error::internal(format!("{what} should be there and is not")).into()
}

fn attr(r: &impl Read, ino: Ino) -> Result<Attr, Stop> {
    r.attr(ino)?.ok_or_else(|| gone(&format!("inode {}", ino.0)))
}

fn lookup(r: &impl Read, path: &str) -> Result<Option<Ino>, Stop> {
    let mut at = ROOT_INO;
    for part in path.split('/') {
        match r.entry(at, part.as_bytes())? {
            Some(e) => at = e.ino,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

fn parent(r: &impl Read, path: &str) -> Result<Ino, Stop> {
    match split(path).0 {
        None => Ok(ROOT_INO),
        Some(dir) => lookup(r, dir)?.ok_or_else(|| gone(dir)),
    }
}

fn required(r: &impl Read, path: &str) -> Result<Ino, Stop> {
    lookup(r, path)?.ok_or_else(|| gone(path))
}

/// Does an operation in the engine; the number of the inode that it made, or 0.
///
/// # Errors
/// Those of the engine; `Internal` where the tree is not what the model says.
pub fn perform(txn: &mut Txn<'_>, op: &Op) -> Result<u64, Stop> {
    let now = txn.now();
    match op {
        Op::Write { path, offset, len, fill } => {
            let (ino, made) = match lookup(txn, path)? {
                Some(ino) => (ino, 0),
                None => {
                    let ino = txn.new_ino()?;
                    txn.create_inode(ino, Attr::new(FileKind::File, 0o644, 0, 0, now));
                    add_name(txn, path, ino, FileKind::File)?;
                    (ino, ino.0)
                }
            };
            let mut a = attr(txn, ino)?;
            txn.write(ino, &mut a, *offset, &pattern(*fill, *len))?;
            (a.mtime, a.ctime) = (now, now);
            txn.put_attr(ino, a)?;
            Ok(made)
        }
        Op::Truncate { path, size } => change(txn, path, |txn, ino, a| txn.truncate(ino, a, *size)),
        Op::Punch { path, from, to } => change(txn, path, |txn, ino, a| {
            let end = a.size.min(*to);
            txn.punch(ino, a, *from, end)
        }),
        Op::Clone { from, to, len } => {
            let source = required(txn, from)?;
            change(txn, to, |txn, ino, a| txn.clone_range(source, 0, ino, a, 0, *len))
        }
        Op::Unlink(path) => drop_name(txn, path).map(|()| 0),
        Op::Rename(from, to) => {
            let ino = required(txn, from)?;
            if lookup(txn, to)?.is_some() {
                drop_name(txn, to)?;
            }
            take_name(txn, from)?;
            add_name(txn, to, ino, FileKind::File)?;
            Ok(0)
        }
        Op::Link(from, to) => {
            let ino = required(txn, from)?;
            add_name(txn, to, ino, FileKind::File)?;
            let mut a = attr(txn, ino)?;
            a.nlink += 1;
            a.ctime = now;
            txn.put_attr(ino, a)?;
            Ok(0)
        }
        Op::Mkdir(path) => {
            let ino = txn.new_ino()?;
            let dir = parent(txn, path)?;
            let mut a = Attr::new(FileKind::Directory, 0o755, 0, 0, now);
            a.parent = dir;
            txn.create_inode(ino, a);
            add_name(txn, path, ino, FileKind::Directory)?;
            Ok(ino.0)
        }
        Op::Rmdir(path) => {
            let ino = required(txn, path)?;
            take_name(txn, path)?;
            txn.remove_inode(ino)?;
            Ok(0)
        }
    }
}

fn change(txn: &mut Txn<'_>, path: &str, f: impl FnOnce(&mut Txn<'_>, Ino, &mut Attr) -> Result<(), Stop>) -> Result<u64, Stop> {
    let ino = required(txn, path)?;
    let mut a = attr(txn, ino)?;
    f(txn, ino, &mut a)?;
    (a.mtime, a.ctime) = (txn.now(), txn.now());
    txn.put_attr(ino, a)?;
    Ok(0)
}

fn add_name(txn: &mut Txn<'_>, path: &str, ino: Ino, kind: FileKind) -> Result<(), Stop> {
    let dir = parent(txn, path)?;
    let mut a = attr(txn, dir)?;
    txn.link(dir, &mut a, split(path).1.as_bytes(), ino, kind);
    a.nlink += u32::from(kind == FileKind::Directory);
    (a.mtime, a.ctime) = (txn.now(), txn.now());
    txn.put_attr(dir, a)
}

fn take_name(txn: &mut Txn<'_>, path: &str) -> Result<(), Stop> {
    let (dir, name) = (parent(txn, path)?, split(path).1.as_bytes());
    let entry = txn.entry(dir, name)?.ok_or_else(|| gone(path))?;
    let mut a = attr(txn, dir)?;
    txn.unlink(dir, &mut a, name, &entry);
    a.nlink -= u32::from(entry.kind == FileKind::Directory);
    (a.mtime, a.ctime) = (txn.now(), txn.now());
    txn.put_attr(dir, a)
}

fn drop_name(txn: &mut Txn<'_>, path: &str) -> Result<(), Stop> {
    let ino = required(txn, path)?;
    take_name(txn, path)?;
    let mut a = attr(txn, ino)?;
    a.nlink -= 1;
    if a.nlink == 0 {
        return txn.remove_inode(ino);
    }
    a.ctime = txn.now();
    txn.put_attr(ino, a)
}

/// Reads the whole tree of a view.
///
/// # Errors
/// A miss, or damage; `Internal` where names and attributes do not fit together.
pub fn read_tree(view: &View<'_>) -> Result<Tree, Stop> {
    let mut tree = Tree::default();
    let mut ahead = vec![(String::new(), ROOT_INO)];
    while let Some((prefix, dir)) = ahead.pop() {
        let mut entries = Vec::new();
        view.entries_from(dir, 0, &mut |_, e| {
            entries.push((String::from_utf8_lossy(&e.name).into_owned(), e.ino, e.kind));
            true
        })?;
        for (name, ino, kind) in entries {
            let by_name = view.entry(dir, name.as_bytes())?.ok_or_else(|| gone(&name))?;
            if by_name.ino != ino {
                return Err(Error::internal(format!("{name} is inode {} by name and {} by index", by_name.ino.0, ino.0)).into());
            }
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if kind == FileKind::Directory {
                tree.dirs.insert(path.clone(), ino.0);
                ahead.push((path, ino));
                continue;
            }
            tree.names.insert(path, ino.0);
            if let std::collections::btree_map::Entry::Vacant(free) = tree.files.entry(ino.0) {
                let size = attr(view, ino)?.size;
                let mut content = Vec::new();
                view.read(ino, 0, size, &mut content)?;
                free.insert(Arc::new(content));
            }
        }
    }
    Ok(tree)
}

/// Reads one file.
///
/// # Errors
/// As [`read_tree`].
pub fn read_file(view: &View<'_>, path: &str) -> Result<Option<Vec<u8>>, Stop> {
    let Some(ino) = lookup(view, path)? else { return Ok(None) };
    let mut content = Vec::new();
    view.read(ino, 0, attr(view, ino)?.size, &mut content)?;
    Ok(Some(content))
}

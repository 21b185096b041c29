//! The reference: what a tree holds after each operation, and what a mount shows.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::xattr;

const PAGE: u64 = 4096;
/// Modes that no umask changes.
const NEW_FILE: u32 = 0o600;
const NEW_DIR: u32 = 0o700;

/// Attributes of one inode, whatever its names.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// `None`: a directory.
    pub bytes: Option<Arc<Vec<u8>>>,
    pub mode: u32,
    /// Seconds and nanoseconds where they were set; a change of the content makes them unknown.
    pub mtime: Option<(u64, u32)>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Everything below the root: names, and the inodes that they name.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    names: BTreeMap<String, u64>,
    inodes: BTreeMap<u64, Node>,
    next: u64,
}

#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(String),
    Create(String),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Rename(String, String),
    Unlink(String),
    Link(String, String),
    Mode(String, u32),
    Times(String, u64, u32),
    SetXattr(String, String, Vec<u8>),
    RemoveXattr(String, String),
}

impl Tree {
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }
    pub fn contains(&self, path: &str) -> bool {
        self.names.contains_key(path)
    }
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.inodes.get(self.names.get(path)?)
    }
    /// Renaming one of two names of a file to the other does nothing and is not told to the file system.
    pub fn same_inode(&self, a: &str, b: &str) -> bool {
        self.names.contains_key(a) && self.names.get(a) == self.names.get(b)
    }
    /// The first of all names of the inode at `path`: what tells two trees with the same links apart from others.
    fn first_name(&self, path: &str) -> Option<&String> {
        let ino = self.names.get(path)?;
        self.names.iter().find(|(_, i)| *i == ino).map(|(name, _)| name)
    }
    fn add(&mut self, path: &str, node: Node) {
        self.next += 1;
        self.inodes.insert(self.next, node);
        self.names.insert(path.to_owned(), self.next);
    }
    fn change(&mut self, path: &str, change: impl FnOnce(&mut Node)) {
        match self.names.get(path).and_then(|ino| self.inodes.get_mut(ino)) {
            Some(node) => change(node),
            None => panic!("{path} is not there"),
        }
    }
    fn content(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        self.change(path, |node| {
            node.mtime = None;
            change(Arc::make_mut(node.bytes.as_mut().unwrap()));
        });
    }
    fn drop_unnamed(&mut self) {
        let named: std::collections::BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|ino, _| named.contains(ino));
    }
    /// True where `found`, as a mount shows it, is this tree.
    pub fn is(&self, found: &Self) -> bool {
        self.names.len() == found.names.len() && self.names.keys().all(|p| self.unlike(found, p).is_none())
    }
    fn unlike(&self, found: &Self, path: &str) -> Option<String> {
        let say = |what: String| Some(format!("{path}: {what}"));
        let (a, b) = match (self.node(path), found.node(path)) {
            (None, None) => return None,
            (Some(_), None) => return say("missing".into()),
            (None, Some(_)) => return say("should not be there".into()),
            (Some(a), Some(b)) => (a, b),
        };
        if a.bytes != b.bytes {
            let (x, y) = (a.bytes.as_ref(), b.bytes.as_ref());
            let first = x.zip(y).and_then(|(x, y)| x.iter().zip(y.iter()).position(|(x, y)| x != y));
            let len = |v: Option<&Arc<Vec<u8>>>| v.map(|v| v.len());
            return say(format!("content of {:?} bytes, found {:?}, first difference {first:?}", len(x), len(y)));
        }
        if a.mode != b.mode {
            return say(format!("mode {:o}, found {:o}", a.mode, b.mode));
        }
        if a.mtime.is_some() && a.mtime != b.mtime {
            return say(format!("mtime {:?}, found {:?}", a.mtime, b.mtime));
        }
        if a.xattrs != b.xattrs {
            return say(format!("attributes {:?}, found {:?}", a.xattrs, b.xattrs));
        }
        let (x, y) = (self.first_name(path), found.first_name(path));
        if x == y { None } else { say(format!("the same file as {x:?}, found to be that of {y:?}")) }
    }
}

impl Op {
    /// On the reference model; the operation is valid there.
    pub fn apply(&self, tree: &mut Tree) {
        let node = |bytes, mode| Node { bytes, mode, mtime: None, xattrs: BTreeMap::new() };
        match self {
            Self::Mkdir(path) => tree.add(path, node(None, NEW_DIR)),
            Self::Create(path) => tree.add(path, node(Some(Arc::default()), NEW_FILE)),
            Self::Write(path, at, data) => tree.content(path, |bytes| {
                let end = *at as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at as usize..end].copy_from_slice(data);
            }),
            Self::Truncate(path, len) => tree.content(path, |bytes| bytes.resize(*len as usize, 0)),
            Self::Rename(from, to) => {
                let ino = tree.names.remove(from).unwrap();
                tree.names.insert(to.clone(), ino);
                tree.drop_unnamed();
            }
            Self::Unlink(path) => {
                tree.names.remove(path);
                tree.drop_unnamed();
            }
            Self::Link(from, to) => {
                let ino = tree.names[from];
                tree.names.insert(to.clone(), ino);
            }
            Self::Mode(path, mode) => tree.change(path, |n| n.mode = *mode),
            Self::Times(path, secs, nanos) => tree.change(path, |n| n.mtime = Some((*secs, *nanos))),
            Self::SetXattr(path, name, value) => tree.change(path, |n| drop(n.xattrs.insert(name.clone(), value.clone()))),
            Self::RemoveXattr(path, name) => tree.change(path, |n| drop(n.xattrs.remove(name))),
        }
    }
    /// The requests that the kernel may make of it: a write into a page that it does not hold ends at the end of that page.
    pub fn requests(self) -> Vec<Self> {
        match self {
            Self::Write(path, at, mut data) if at % PAGE + data.len() as u64 > PAGE && at % PAGE > 0 => {
                let rest = data.split_off((PAGE - at % PAGE) as usize);
                let second = Self::Write(path.clone(), at + data.len() as u64, rest);
                vec![Self::Write(path, at, data), second]
            }
            op => vec![op],
        }
    }
    /// Whether fsync of `path`, a file or a directory that has this name afterwards, makes it durable.
    pub fn touches(&self, path: &str) -> bool {
        let inside = |p: &String| p.rsplit_once('/').map_or("", |(dir, _)| dir) == path;
        match self {
            Self::Mkdir(p) | Self::Create(p) | Self::Unlink(p) => p == path || inside(p),
            Self::Write(p, ..) | Self::Truncate(p, _) | Self::Mode(p, _) | Self::Times(p, ..) => p == path,
            Self::SetXattr(p, ..) | Self::RemoveXattr(p, _) => p == path,
            Self::Rename(from, to) => to == path || inside(from) || inside(to),
            Self::Link(from, to) => from == path || to == path || inside(to),
        }
    }
    /// Through the kernel: one request that changes something.
    pub fn run(&self, root: &Path) -> io::Result<()> {
        let at = |path: &String| root.join(path);
        let writable = |path: &String| OpenOptions::new().write(true).open(at(path));
        match self {
            Self::Mkdir(path) => DirBuilder::new().mode(NEW_DIR).create(at(path)),
            Self::Create(path) => OpenOptions::new().write(true).create_new(true).mode(NEW_FILE).open(at(path)).map(drop),
            Self::Write(path, offset, data) => writable(path)?.write_all_at(data, *offset),
            Self::Truncate(path, len) => writable(path)?.set_len(*len),
            Self::Rename(from, to) => fs::rename(at(from), at(to)),
            Self::Unlink(path) => fs::remove_file(at(path)),
            Self::Link(from, to) => fs::hard_link(at(from), at(to)),
            Self::Mode(path, mode) => fs::set_permissions(at(path), Permissions::from_mode(*mode)),
            Self::Times(path, secs, nanos) => {
                let time = SystemTime::UNIX_EPOCH + Duration::new(*secs, *nanos);
                fs::File::open(at(path))?.set_modified(time)
            }
            Self::SetXattr(path, name, value) => xattr::set(&at(path), name, value),
            Self::RemoveXattr(path, name) => xattr::remove(&at(path), name),
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write(path, at, data) => write!(f, "Write({path}, {} bytes at {at})", data.len()),
            other => write!(f, "{other:?}"),
        }
    }
}

pub fn differences(model: &Tree, found: &Tree) -> Vec<String> {
    let paths: std::collections::BTreeSet<&String> = model.names.keys().chain(found.names.keys()).collect();
    paths.into_iter().filter_map(|p| model.unlike(found, p)).collect()
}

pub fn listing(root: &Path) -> io::Result<Tree> {
    let (mut out, mut open) = (Tree::default(), vec![String::new()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = format!("{dir}{}", entry.file_name().to_str().unwrap());
            let named = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
            let m = entry.metadata().map_err(named)?;
            let bytes = if m.is_dir() {
                open.push(format!("{path}/"));
                None
            } else {
                Some(Arc::new(fs::read(entry.path()).map_err(named)?))
            };
            let xattrs = xattr::user(&entry.path()).map_err(named)?.into_iter().collect();
            let node = Node { bytes, mode: m.mode() & 0o7777, mtime: Some((m.mtime() as u64, m.mtime_nsec() as u32)), xattrs };
            // All names of a file must show the same.
            if let Some(other) = out.inodes.insert(m.ino(), node.clone())
                && other != node
            {
                return Err(io::Error::other(format!("{path} and another name of it differ: {node:?}, {other:?}")));
            }
            out.names.insert(path, m.ino());
        }
    }
    Ok(out)
}

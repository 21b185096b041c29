//! The reference: what a tree holds after each operation, and what a mount shows.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: u64 = 4096;

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Directory,
    File(Vec<u8>),
}

/// Everything below the root, by path.
pub type Tree = BTreeMap<String, Node>;

#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(String),
    Create(String),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Rename(String, String),
    Unlink(String),
}

impl Op {
    /// On the reference model; the operation is valid there.
    pub fn apply(&self, tree: &mut Tree) {
        let content = |tree: &mut Tree, path: &String, change: &mut dyn FnMut(&mut Vec<u8>)| match tree.get_mut(path) {
            Some(Node::File(bytes)) => change(bytes),
            other => panic!("{path} is {other:?}"),
        };
        match self {
            Self::Mkdir(path) => drop(tree.insert(path.clone(), Node::Directory)),
            Self::Create(path) => drop(tree.insert(path.clone(), Node::File(Vec::new()))),
            Self::Write(path, at, data) => content(tree, path, &mut |bytes| {
                let end = *at as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at as usize..end].copy_from_slice(data);
            }),
            Self::Truncate(path, len) => content(tree, path, &mut |bytes| bytes.resize(*len as usize, 0)),
            Self::Rename(from, to) => {
                let node = tree.remove(from).unwrap();
                tree.insert(to.clone(), node);
            }
            Self::Unlink(path) => drop(tree.remove(path)),
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
            Self::Write(p, ..) | Self::Truncate(p, _) => p == path,
            Self::Rename(from, to) => to == path || inside(from) || inside(to),
        }
    }
    /// Through the kernel: one request that changes something.
    pub fn run(&self, root: &Path) -> io::Result<()> {
        let writable = |path: &String| OpenOptions::new().write(true).open(root.join(path));
        match self {
            Self::Mkdir(path) => fs::create_dir(root.join(path)),
            Self::Create(path) => OpenOptions::new().write(true).create_new(true).open(root.join(path)).map(drop),
            Self::Write(path, at, data) => writable(path)?.write_all_at(data, *at),
            Self::Truncate(path, len) => writable(path)?.set_len(*len),
            Self::Rename(from, to) => fs::rename(root.join(from), root.join(to)),
            Self::Unlink(path) => fs::remove_file(root.join(path)),
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
    let of = |n: Option<&Node>| match n {
        None => "nothing".to_owned(),
        Some(Node::Directory) => "a directory".to_owned(),
        Some(Node::File(b)) => format!("a file of {}", b.len()),
    };
    let paths: std::collections::BTreeSet<&String> = model.keys().chain(found.keys()).collect();
    let unlike = paths.into_iter().filter(|p| model.get(*p) != found.get(*p));
    unlike
        .map(|p| {
            let at = match (model.get(p), found.get(p)) {
                (Some(Node::File(a)), Some(Node::File(b))) => a.iter().zip(b).position(|(x, y)| x != y),
                _ => None,
            };
            format!("{p}: {} in the model, {} found, first difference {at:?}", of(model.get(p)), of(found.get(p)))
        })
        .collect()
}

pub fn listing(root: &Path) -> io::Result<Tree> {
    let (mut out, mut open) = (Tree::new(), vec![String::new()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = format!("{dir}{}", entry.file_name().to_str().unwrap());
            if entry.file_type()?.is_dir() {
                open.push(format!("{path}/"));
                out.insert(path, Node::Directory);
            } else {
                let bytes = fs::read(entry.path()).map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
                out.insert(path, Node::File(bytes));
            }
        }
    }
    Ok(out)
}

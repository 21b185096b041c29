//! Random operations on the real thing and on a small obvious file system: the same answers, the same tree.

use std::collections::BTreeMap;

use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, ROOT_INO};
use proptest::prelude::*;

use super::{Fs, ROOT};
use crate::fs::attr::{SetAttr, setattr};
use crate::fs::create::{New, make};
use crate::fs::rename::{Place, rename};
use crate::fs::{FsError, FsResult, dir, link};

#[derive(Clone, Debug)]
enum Op {
    Make(usize, u8, FileKind),
    Link(usize, usize, u8),
    Unlink(usize, u8),
    RmDir(usize, u8),
    Rename(usize, u8, usize, u8, u32),
    Write(usize, u16, u8, u16),
    Truncate(usize, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let node = 0..24usize;
    let name = 0..5u8;
    let kind = prop_oneof![4 => Just(FileKind::File), 3 => Just(FileKind::Directory), 1 => Just(FileKind::Fifo)];
    let flags = prop_oneof![5 => Just(0), 1 => Just(libc::RENAME_NOREPLACE), 2 => Just(libc::RENAME_EXCHANGE)];
    prop_oneof![
        5 => (node.clone(), name.clone(), kind).prop_map(|(d, n, k)| Op::Make(d, n, k)),
        2 => (node.clone(), node.clone(), name.clone()).prop_map(|(i, d, n)| Op::Link(i, d, n)),
        2 => (node.clone(), name.clone()).prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => (node.clone(), name.clone()).prop_map(|(d, n)| Op::RmDir(d, n)),
        5 => (node.clone(), name.clone(), node.clone(), name, flags).prop_map(|(a, n, b, m, f)| Op::Rename(a, n, b, m, f)),
        3 => (node.clone(), any::<u16>(), any::<u8>(), 1..9000u16).prop_map(|(i, at, b, len)| Op::Write(i, at, b, len)),
        1 => (node, 0..70_000u32).prop_map(|(i, s)| Op::Truncate(i, s)),
    ]
}

#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    names: u32,
    parent: usize,
    entries: BTreeMap<u8, usize>,
    data: Vec<u8>,
}

/// The obvious file system; inodes are positions, the first is the top directory.
struct Model(Vec<Node>);

impl Model {
    fn new() -> Self {
        Self(vec![Node { kind: FileKind::Directory, names: 1, parent: 0, entries: BTreeMap::new(), data: Vec::new() }])
    }
    fn is_dir(&self, i: usize) -> bool {
        self.0[i].kind == FileKind::Directory
    }
    fn dir(&self, i: usize, alive: bool) -> Result<(), i32> {
        match self.is_dir(i) {
            false => Err(libc::ENOTDIR),
            true if alive && self.0[i].names == 0 => Err(libc::ENOENT),
            true => Ok(()),
        }
    }
    fn links(&self, i: usize) -> u32 {
        match (self.is_dir(i), self.0[i].names) {
            (true, 1) => 2 + self.0[i].entries.values().filter(|c| self.is_dir(**c)).count() as u32,
            (_, n) => n,
        }
    }
    fn below(&self, mut at: usize, top: usize) -> bool {
        loop {
            if at == top {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.0[at].parent;
        }
    }
    fn run(&mut self, op: &Op) -> Result<(), i32> {
        match *op {
            Op::Make(d, n, kind) => {
                self.dir(d, true)?;
                if self.0[d].entries.contains_key(&n) {
                    return Err(libc::EEXIST);
                }
                self.0.push(Node { kind, names: 1, parent: d, entries: BTreeMap::new(), data: Vec::new() });
                let new = self.0.len() - 1;
                self.0[d].entries.insert(n, new);
            }
            Op::Link(i, d, n) => {
                self.dir(d, true)?;
                if self.is_dir(i) {
                    return Err(libc::EPERM);
                }
                if self.0[d].entries.contains_key(&n) {
                    return Err(libc::EEXIST);
                }
                self.0[i].names += 1;
                self.0[d].entries.insert(n, i);
            }
            Op::Unlink(d, n) | Op::RmDir(d, n) => {
                self.dir(d, false)?;
                let i = *self.0[d].entries.get(&n).ok_or(libc::ENOENT)?;
                match (matches!(op, Op::RmDir(..)), self.is_dir(i)) {
                    (true, false) => return Err(libc::ENOTDIR),
                    (false, true) => return Err(libc::EISDIR),
                    (true, true) if !self.0[i].entries.is_empty() => return Err(libc::ENOTEMPTY),
                    _ => {}
                }
                self.0[d].entries.remove(&n);
                self.0[i].names -= 1;
            }
            Op::Rename(a, n, b, m, flags) => return self.rename(a, n, b, m, flags),
            Op::Write(i, at, byte, len) => {
                self.file(i)?;
                let (at, end) = (usize::from(at), usize::from(at) + usize::from(len));
                let data = &mut self.0[i].data;
                data.resize(data.len().max(end), 0);
                data[at..end].fill(byte);
            }
            Op::Truncate(i, size) => {
                self.file(i)?;
                self.0[i].data.resize(size as usize, 0);
            }
        }
        Ok(())
    }
    fn file(&self, i: usize) -> Result<(), i32> {
        match self.0[i].kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }
    fn rename(&mut self, a: usize, n: u8, b: usize, m: u8, flags: u32) -> Result<(), i32> {
        self.dir(a, false)?;
        if a != b {
            self.dir(b, true)?;
        }
        let from = *self.0[a].entries.get(&n).ok_or(libc::ENOENT)?;
        let to = self.0[b].entries.get(&m).copied();
        let exchange = flags == libc::RENAME_EXCHANGE;
        if to.is_some() && flags == libc::RENAME_NOREPLACE {
            return Err(libc::EEXIST);
        }
        if to.is_none() && exchange {
            return Err(libc::ENOENT);
        }
        if to == Some(from) {
            return Ok(());
        }
        if a != b && ((self.is_dir(from) && self.below(b, from)) || (exchange && to.is_some_and(|t| self.is_dir(t) && self.below(a, t)))) {
            return Err(libc::EINVAL);
        }
        if let (Some(t), false) = (to, exchange) {
            match (self.is_dir(from), self.is_dir(t)) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !self.0[t].entries.is_empty() => return Err(libc::ENOTEMPTY),
                _ => {}
            }
            self.0[t].names -= 1;
        }
        self.0[a].entries.remove(&n);
        self.0[b].entries.insert(m, from);
        self.0[from].parent = b;
        if let (Some(t), true) = (to, exchange) {
            self.0[a].entries.insert(n, t);
            self.0[t].parent = a;
        }
        Ok(())
    }
}

fn name(n: u8) -> String {
    format!("n{n}")
}

fn apply(fs: &Fs, inos: &mut Vec<Ino>, op: &Op) -> FsResult<()> {
    match *op {
        Op::Make(d, n, kind) => {
            let name = name(n);
            let new = New::of(kind, inos[d], name.as_bytes(), 0o755, 0);
            inos.push(fs.change(|tx| make(tx, ROOT, &new))?.ino);
        }
        Op::Link(i, d, n) => drop(fs.change(|tx| link::link(tx, inos[i], inos[d], name(n).as_bytes()))?),
        Op::Unlink(d, n) => drop(fs.change(|tx| link::unlink(tx, inos[d], name(n).as_bytes()))?),
        Op::RmDir(d, n) => drop(fs.change(|tx| link::rmdir(tx, inos[d], name(n).as_bytes()))?),
        Op::Rename(a, n, b, m, flags) => {
            let (n, m) = (name(n), name(m));
            let places = (Place { dir: inos[a], name: n.as_bytes() }, Place { dir: inos[b], name: m.as_bytes() });
            fs.change(|tx| rename(tx, ROOT, places.0, places.1, flags))?;
        }
        Op::Write(i, at, byte, len) => drop(fs.write(inos[i], at.into(), &vec![byte; len.into()])?),
        Op::Truncate(i, size) => {
            let set = SetAttr { size: Some(size.into()), ..SetAttr::default() };
            fs.change(|tx| setattr(tx, ROOT, inos[i], &set))?;
        }
    }
    Ok(())
}

/// Positions above the number of inodes name one that exists.
fn within(op: &Op, count: usize) -> Op {
    let w = |i: usize| i % count;
    match *op {
        Op::Make(d, n, k) => Op::Make(w(d), n, k),
        Op::Link(i, d, n) => Op::Link(w(i), w(d), n),
        Op::Unlink(d, n) => Op::Unlink(w(d), n),
        Op::RmDir(d, n) => Op::RmDir(w(d), n),
        Op::Rename(a, n, b, m, f) => Op::Rename(w(a), n, w(b), m, f),
        Op::Write(i, at, b, l) => Op::Write(w(i), at, b, l),
        Op::Truncate(i, s) => Op::Truncate(w(i), s),
    }
}

fn compare(fs: &Fs, model: &Model, inos: &[Ino]) {
    for (i, node) in model.0.iter().enumerate() {
        let attr = fs.attr(inos[i]);
        assert_eq!(attr.kind, node.kind);
        assert_eq!(attr.nlink, model.links(i), "links of {i}");
        if node.kind == FileKind::File {
            assert_eq!(attr.size, node.data.len() as u64);
            assert_eq!(fs.read(inos[i], 0, 1 << 20), node.data, "content of {i}");
        }
        if node.kind == FileKind::Directory && node.names > 0 {
            assert_eq!(attr.entries, node.entries.len() as u64);
            let mut listed = BTreeMap::new();
            let read = |v: &hiloop_engine::workspace::View<'_>| {
                let mut all = Vec::new();
                dir::read(v, inos[i], 0, u64::MAX, &mut |item| {
                    all.push((String::from_utf8_lossy(item.name).into_owned(), item.ino));
                    true
                })?;
                Ok(all)
            };
            listed.extend(fs.see(read).unwrap());
            assert_eq!(listed.remove(".."), Some(if i == 0 { ROOT_INO } else { inos[node.parent] }));
            assert_eq!(listed.remove("."), Some(inos[i]));
            let wanted: BTreeMap<_, _> = node.entries.iter().map(|(n, c)| (name(*n), inos[*c])).collect();
            assert_eq!(listed, wanted, "entries of {i}");
        }
    }
}

#[test]
fn random_operations_answer_as_the_model_does() {
    let fs = Fs::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 60, ..ProptestConfig::default() });
    let case = std::cell::Cell::new(0);
    runner
        .run(&proptest::collection::vec(op(), 1..80), |ops| {
            case.set(case.get() + 1);
            let before = fs.ws.totals();
            let mut model = Model::new();
            let mut inos = vec![fs.dir(&format!("top{}", case.get()))];
            for op in &ops {
                let op = within(op, inos.len());
                let wanted = model.run(&op);
                let got = match apply(&fs, &mut inos, &op) {
                    Ok(()) => Ok(()),
                    Err(FsError::Errno(code)) => Err(code),
                    Err(other) => panic!("{op:?}: {other:?}"),
                };
                assert_eq!(got, wanted, "{op:?}");
            }
            compare(&fs, &model, &inos);
            let bytes: u64 = inos.iter().map(|i| fs.attr(*i).allocated).sum();
            let after = fs.ws.totals();
            assert_eq!((after.inodes - before.inodes, after.bytes - before.bytes), (inos.len() as u64, bytes));
            Ok(())
        })
        .unwrap();
}

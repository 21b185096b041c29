//! The rules of `fusefs/SEMANTICS.md` against the real engine.

mod attributes;
mod content;
mod fixture;
mod listings;
mod model;
mod names;

use hiloop_engine::stop::Stop;
use hiloop_engine::workspace::{Read, Txn, View, Workspace};
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_types::{Ino, ROOT_INO};

use super::create::{New, make};
use super::data::{self, WriteMode};
use super::{Caller, FsError, FsResult, link};

const ROOT: Caller = Caller { uid: 0, gid: 0 };
const USER: Caller = Caller { uid: 1000, gid: 1000 };

/// A workspace and short words for what the tests do in it.
struct Fs {
    ws: Workspace,
    _ground: fixture::Ground,
}

impl Fs {
    fn new() -> Self {
        Self::with_quota(None)
    }
    fn with_quota(quota: Option<u64>) -> Self {
        let (ground, ws) = fixture::workspace(quota);
        Self { ws, _ground: ground }
    }
    /// A change, run again while something is missing in memory.
    fn change<T>(&self, mut f: impl FnMut(&mut Txn<'_>) -> FsResult<T>) -> FsResult<T> {
        loop {
            match self.ws.update(&mut f) {
                Err(FsError::Stop(Stop::Miss(miss))) => self.ws.fetch_blocking(miss).unwrap(),
                other => return other.map(|(value, _)| value),
            }
        }
    }
    fn see<T>(&self, f: impl Fn(&View<'_>) -> FsResult<T>) -> FsResult<T> {
        loop {
            match f(&self.ws.view()) {
                Err(FsError::Stop(Stop::Miss(miss))) => self.ws.fetch_blocking(miss).unwrap(),
                other => return other,
            }
        }
    }
    fn make(&self, kind: FileKind, dir: Ino, name: &str) -> Ino {
        self.try_make(ROOT, &New::of(kind, dir, name.as_bytes(), 0o755, 0o022)).unwrap()
    }
    fn try_make(&self, caller: Caller, new: &New<'_>) -> FsResult<Ino> {
        self.change(|tx| make(tx, caller, new)).map(|n| n.ino)
    }
    fn file(&self, name: &str) -> Ino {
        self.make(FileKind::File, ROOT_INO, name)
    }
    fn dir(&self, name: &str) -> Ino {
        self.make(FileKind::Directory, ROOT_INO, name)
    }
    fn attr(&self, ino: Ino) -> Attr {
        self.see(|v| super::attr::getattr(v, ino)).unwrap()
    }
    fn exists(&self, ino: Ino) -> bool {
        self.see(|v| Ok(v.attr(ino)?)).unwrap().is_some()
    }
    fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.see(|v| super::lookup::lookup(v, dir, name.as_bytes())).unwrap().map(|n| n.ino)
    }
    fn unlink(&self, name: &str) -> FsResult<link::Removed> {
        self.change(|tx| link::unlink(tx, ROOT_INO, name.as_bytes()))
    }
    fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<u32> {
        self.change(|tx| data::write(tx, ino, offset, bytes, WriteMode::default()))
    }
    fn read(&self, ino: Ino, offset: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            match data::read(&self.ws.view(), ino, offset, len, &mut out) {
                Err(FsError::Stop(Stop::Miss(miss))) => self.ws.fetch_blocking(miss).unwrap(),
                result => break result.unwrap(),
            }
        }
        out
    }
}

/// The errno of a failure.
fn code<T: std::fmt::Debug>(result: FsResult<T>) -> i32 {
    match result {
        Err(FsError::Errno(code)) => code,
        other => panic!("not an errno: {other:?}"),
    }
}

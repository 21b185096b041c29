//! Nodes over one store in memory, and small files in their workspaces.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hiloop_engine::node::{AttachRequest, Engine, EngineOptions, HeartbeatPace, Origin, StoreOpener};
use hiloop_engine::stop::Stop;
use hiloop_engine::workspace::{Read, Workspace};
use hiloop_env::Env;
use hiloop_manifest::schema::{Attr, FileKind};
use hiloop_store::Store;
use hiloop_types::{Ino, MemoryMeta, MetaStore, Name, NameKind, ROOT_INO, Result};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub fn name(s: &str) -> Name {
    Name::new(NameKind::Workspace, s).unwrap()
}

/// One store and the nodes around it.
pub struct World {
    pub runtime: tokio::runtime::Runtime,
    pub store: Store,
    pub dir: TempDir,
    /// Each node has a runtime of its own, so that killing it ends its tasks.
    nodes: Mutex<HashMap<String, Runtime>>,
    /// Their indexes, by directory.
    indexes: Mutex<HashMap<PathBuf, Arc<MemoryMeta>>>,
}

pub const URL: &str = "file:///world";

impl World {
    pub fn new() -> Self {
        Self::over(Store::memory(Env::real()))
    }
    pub fn over(store: Store) -> Self {
        Self { runtime: runtime(), store, dir: tempfile::tempdir().unwrap(), nodes: Mutex::default(), indexes: Mutex::default() }
    }
    pub fn path(&self, node: &str) -> PathBuf {
        self.dir.path().join(node)
    }
    pub fn options(&self, node: &str) -> EngineOptions {
        let store = self.store.clone();
        let stores: StoreOpener = Arc::new(move |_, _, _| {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        });
        EngineOptions {
            stores,
            pace: HeartbeatPace { every: Duration::from_millis(40), watch: Duration::from_millis(200) },
            ..EngineOptions::new(self.path(node), name(node))
        }
    }
    /// A node that hears of others' doings only when it publishes.
    pub fn deaf_node(&self, node: &str) -> Engine {
        let pace = HeartbeatPace { every: Duration::from_secs(3600), watch: Duration::from_millis(200) };
        self.open(node, EngineOptions { pace, ..self.options(node) })
    }
    /// A node that watches another's writer until it sees a heartbeat, however slow the machine is.
    pub fn patient_node(&self, node: &str) -> Engine {
        let pace = HeartbeatPace { every: Duration::from_millis(40), watch: Duration::from_secs(120) };
        self.open(node, EngineOptions { pace, ..self.options(node) })
    }
    pub fn node(&self, node: &str) -> Engine {
        self.open(node, self.options(node))
    }
    pub fn open(&self, node: &str, options: EngineOptions) -> Engine {
        self.open_in(node, options, Env::real())
    }
    pub fn open_in(&self, node: &str, options: EngineOptions, env: Env) -> Engine {
        let own = runtime();
        let engine = {
            let _inside = own.enter();
            let index = self.indexes.lock().unwrap().entry(options.directory.clone()).or_default().clone();
            Engine::open(options, env, move |_| Ok(index as Arc<dyn MetaStore>)).unwrap()
        };
        self.nodes.lock().unwrap().insert(node.to_owned(), own);
        engine
    }
    pub fn attach(&self, engine: &Engine, workspace: &str) -> Workspace {
        self.runtime.block_on(engine.attach(request(workspace))).unwrap().0
    }
    pub fn take_over(&self, engine: &Engine, workspace: &str) -> Result<Workspace> {
        let request = AttachRequest { take_over: true, ..request(workspace) };
        self.runtime.block_on(engine.attach(request)).map(|(w, _)| w)
    }
    pub fn fork(&self, engine: &Engine, workspace: &str, source: &str) -> Workspace {
        let request = AttachRequest { origin: Origin::Source(source.into()), ..request(workspace) };
        self.runtime.block_on(engine.attach(request)).unwrap().0
    }
    pub fn flush(&self, w: &Workspace) {
        self.runtime.block_on(w.flush()).unwrap();
    }
    /// As if the process were killed and started again: its tasks end where they are, nothing is flushed or released. The new
    /// one runs on a copy of the directory that is told to be the original, since threads of the old one may still hold its files.
    pub fn kill(&self, engine: Engine, node: &str, reborn: &str) -> Engine {
        if let Some(own) = self.nodes.lock().unwrap().remove(node) {
            own.shutdown_timeout(Duration::from_secs(10));
        }
        copy(&self.path(node), &self.path(reborn));
        let mut indexes = self.indexes.lock().unwrap();
        if let Some(index) = indexes.remove(&self.path(node)) {
            index.crash();
            indexes.insert(self.path(reborn), index);
        }
        drop(indexes);
        hiloop_journal::DirLock::acquire(&self.path(reborn)).unwrap().0.adopt().unwrap();
        drop(engine);
        self.open(reborn, EngineOptions { node: name(node), ..self.options(reborn) })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (_, own) in self.nodes.lock().unwrap().drain() {
            own.shutdown_background();
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for e in std::fs::read_dir(from).unwrap() {
        let e = e.unwrap();
        let target = to.join(e.file_name());
        if e.file_type().unwrap().is_dir() {
            copy(&e.path(), &target);
        } else if e.file_type().unwrap().is_file() {
            std::fs::copy(e.path(), &target).unwrap();
        }
    }
}

pub fn request(workspace: &str) -> AttachRequest {
    AttachRequest::new(URL, name(workspace)).unwrap()
}

/// Writes a file in the root directory.
pub fn put(w: &Workspace, file: &str, data: &[u8]) -> Ino {
    let (ino, _) = w
        .update_blocking(|txn| {
            let mut dir = txn.attr(ROOT_INO)?.unwrap();
            let ino = match txn.entry(ROOT_INO, file.as_bytes())? {
                Some(e) => e.ino,
                None => {
                    let ino = txn.new_ino()?;
                    let now = txn.now();
                    txn.create_inode(ino, Attr::new(FileKind::File, 0o644, 0, 0, now));
                    txn.link(ROOT_INO, &mut dir, file.as_bytes(), ino, FileKind::File);
                    txn.put_attr(ROOT_INO, dir.clone())?;
                    ino
                }
            };
            let mut attr = txn.attr(ino)?.unwrap();
            txn.truncate(ino, &mut attr, 0)?;
            txn.write(ino, &mut attr, 0, data)?;
            txn.put_attr(ino, attr)?;
            Ok::<_, Stop>(ino)
        })
        .unwrap();
    ino
}

/// Reads a file of the root directory; `None` where it is not there.
pub fn read(w: &Workspace, file: &str) -> Option<Vec<u8>> {
    w.read_blocking(|v| {
        let Some(e) = v.entry(ROOT_INO, file.as_bytes())? else { return Ok(None) };
        let attr = v.attr(e.ino)?.unwrap();
        let mut out = Vec::new();
        v.read(e.ino, 0, attr.size, &mut out)?;
        Ok(Some(out))
    })
    .unwrap()
}

/// Bytes that do not compress and depend on `seed`.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let (env, _) = Env::simulated(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&env.random_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Polls until `f` holds; fails after a bounded number of attempts.
pub fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    // Minutes: only a defect comes to the end of them, however busy the machine is.
    for _ in 0..36_000 {
        if f() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("never happened: {what}");
}

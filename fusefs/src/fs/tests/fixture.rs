//! A workspace of the real engine: store and index in memory, journal in a temporary directory.

use std::sync::Arc;

use hiloop_engine::node::{AttachRequest, Engine, EngineOptions, StoreOpener};
use hiloop_engine::workspace::Workspace;
use hiloop_env::Env;
use hiloop_store::Store;
use hiloop_types::{MemoryMeta, MetaStore, Name, NameKind};

/// What a workspace stands on.
pub struct Ground {
    runtime: tokio::runtime::Runtime,
    engine: Option<Engine>,
    _dir: tempfile::TempDir,
}

/// An empty workspace.
pub fn workspace(quota: Option<u64>) -> (Ground, Workspace) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::memory(Env::real());
    let stores: StoreOpener = Arc::new(move |_, _, _| {
        let store = store.clone();
        Box::pin(async move { Ok(store) })
    });
    let node = Name::new(NameKind::Node, "test").unwrap();
    let options = EngineOptions { stores, ..EngineOptions::new(dir.path(), node) };
    let engine = {
        let _inside = runtime.enter();
        Engine::open(options, Env::real(), |_| Ok(Arc::new(MemoryMeta::default()) as Arc<dyn MetaStore>)).unwrap()
    };
    let name = Name::new(NameKind::Workspace, "ws").unwrap();
    let request = AttachRequest { quota, ..AttachRequest::new("file:///test", name).unwrap() };
    let (ws, _) = runtime.block_on(engine.attach(request)).unwrap();
    (Ground { runtime, engine: Some(engine), _dir: dir }, ws)
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        drop(self.engine.take());
    }
}

//! A mount that is undone whatever becomes of its test, and file systems that wrap another.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use hiloop_env::Env;
use hiloop_transport::abi::Opcode;
use hiloop_transport::null::{Mounted, NullFs, init_config, mount};
use hiloop_transport::{Config, FileSystem, Reply, Request, Session};
use tempfile::TempDir;

/// For what must happen and whose absence shall fail a test instead of hanging it.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Rig {
    pub session: Session,
    pub mounted: Mounted,
    _dir: TempDir,
}

pub fn config() -> Config {
    Config { init: init_config(), ..Config::new(Env::real()) }
}

pub fn null() -> NullFs {
    NullFs::new(Env::real())
}

impl Rig {
    pub fn new(fs: Arc<dyn FileSystem>, config: Config) -> Self {
        let dir = TempDir::new().unwrap();
        let (device, mounted) = mount(dir.path()).unwrap();
        let session = Session::start(vec![device], fs, config, |_, _| Ok(())).unwrap();
        Self { session, mounted, _dir: dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    /// One request that the kernel never answers itself.
    pub fn statfs(&self) {
        nix::sys::statvfs::statvfs(self.mounted.path()).unwrap();
    }
}

/// Sees each request first.
pub struct Wrapped<F> {
    pub inner: NullFs,
    pub first: F,
}

impl<F> FileSystem for Wrapped<F>
where
    F: Fn(&Request<'_>, Reply) -> Option<Reply> + Send + Sync,
{
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if let Some(reply) = (self.first)(&request, reply) {
            self.inner.handle(request, reply);
        }
    }
    fn forget(&self, nodeid: u64, nlookup: u64) {
        self.inner.forget(nodeid, nlookup);
    }
}

pub fn wrapped<F>(first: F) -> Arc<dyn FileSystem>
where
    F: Fn(&Request<'_>, Reply) -> Option<Reply> + Send + Sync + 'static,
{
    Arc::new(Wrapped { inner: null(), first })
}

/// Counts requests by kind.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<HashMap<Opcode, usize>>>);

impl Tally {
    pub fn count(&self, opcode: Opcode) {
        *self.0.lock().unwrap().entry(opcode).or_default() += 1;
    }
    pub fn of(&self, opcode: Opcode) -> usize {
        self.0.lock().unwrap().get(&opcode).copied().unwrap_or(0)
    }
}

/// Waits for a process, and fails where it does not end.
pub fn wait(mut child: Child) -> ExitStatus {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(child.wait().unwrap()));
    rx.recv_timeout(PATIENCE).expect("the process does not end")
}

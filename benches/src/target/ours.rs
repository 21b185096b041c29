//! Our file system: the real binary, a daemon of its own, the default mount.

use std::path::{Path, PathBuf};

use hiloop_env::Env;
use hiloop_types::Result;
use serde_json::Value;

use super::{Requests, Target};
use crate::mounts::Mounted;
use crate::run::{Tool, timed};
use crate::store::{Store, StoreCounts};

/// What `fsync` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The node's disk.
    Local,
    /// The store.
    Replicated,
}

/// A workspace.
pub struct Ours {
    id: String,
    env: Env,
    mounted: Option<Mounted>,
    store: Store,
    root: PathBuf,
}

impl Ours {
    /// Mounts a new, empty workspace over `store`.
    ///
    /// # Errors
    /// As the command.
    pub fn new(id: &str, program: &Path, scratch: &Path, store: Store, durability: Durability, env: &Env) -> Result<Self> {
        let tool = Tool { program: program.to_owned(), store: store.url.clone(), dir: scratch.to_owned(), vars: store.vars.clone() };
        let flags: &[&str] = match durability {
            Durability::Local => &[],
            Durability::Replicated => &["--durability", "replicated"],
        };
        let mounted = Mounted::with(&tool, id, scratch.join(format!("{id}.node")), flags)?;
        Ok(Self { id: id.to_owned(), env: env.clone(), root: mounted.at.clone(), mounted: Some(mounted), store })
    }
}

/// Requests by opcode in a status.
pub fn requests_in(status: &Value) -> Requests {
    let all = status.pointer("/fuse/requests").and_then(Value::as_object).cloned().unwrap_or_default();
    all.into_iter().map(|(op, n)| (op, n.as_u64().unwrap_or(0))).collect()
}

impl Target for Ours {
    fn id(&self) -> &str {
        &self.id
    }
    fn root(&self) -> &Path {
        &self.root
    }
    fn pids(&self) -> Vec<i32> {
        self.mounted.iter().map(|m| m.pid).collect()
    }
    fn requests(&mut self) -> Result<Option<Requests>> {
        self.mounted.as_ref().map(|m| m.status().map(|s| requests_in(&s))).transpose()
    }
    fn store(&mut self) -> Result<Option<StoreCounts>> {
        self.store.counts().map(Some)
    }
    fn store_cpu(&self) -> Result<f64> {
        self.store.cpu()
    }
    fn drain(&mut self) -> Result<Option<f64>> {
        let Some(mounted) = &self.mounted else { return Ok(None) };
        timed(&self.env, || mounted.flush()).map(|(seconds, _)| Some(seconds))
    }
    fn end(mut self: Box<Self>) -> Result<()> {
        self.mounted.take().map_or(Ok(()), Mounted::unmount)
    }
}

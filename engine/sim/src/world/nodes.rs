//! Nodes: hardware, and the engine that runs on it until it is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hiloop_cache::CacheOptions;
use hiloop_engine::context::StoreContext;
use hiloop_engine::hydrate::Memory;
use hiloop_engine::node::{Engine, EngineOptions, HeartbeatPace};
use hiloop_engine::workspace::Workspace;
use hiloop_env::Env;
use hiloop_journal::JournalOptions;
use hiloop_store::Store;
use hiloop_types::limits::{KIB, MIB};
use hiloop_types::{Name, NameKind};
use parking_lot::Mutex;

use super::ground::{Ground, root};
use super::planted::Lie;
use super::{EPOCH, World};
use crate::executor::{Executor, Group, WallOffset};

/// The store's URL: names it, nothing is opened.
pub(super) const URL: &str = "file:///sim";
/// Starts after which a node that does not come up is a broken promise.
const STARTS_MAX: usize = 8;

/// One machine.
pub(super) struct Node {
    pub name: String,
    pub ground: Ground,
    /// Set while the store cannot be reached.
    pub cut: Arc<AtomicBool>,
    pub wall: Arc<WallOffset>,
    /// The disk failed a flush: what the process says it has may not be there.
    pub sick: bool,
    pub running: Option<Running>,
    boots: u64,
}

/// A daemon. Cheap to clone.
#[derive(Clone)]
pub(super) struct Running {
    pub group: Group,
    pub env: Env,
    pub engine: Engine,
    pub memory: Memory,
    commands: Arc<dyn Fn(Option<Lie>) -> Store + Send + Sync>,
    pub mounts: Arc<Mutex<BTreeMap<String, Mount>>>,
}

/// An attached workspace as its users have it.
#[derive(Clone)]
pub(super) struct Mount {
    pub workspace: Workspace,
    /// Held for reading by each user, for writing by whoever unmounts.
    pub users: Arc<tokio::sync::RwLock<()>>,
}

impl Node {
    pub fn new(exec: &Executor, seed: u64, index: usize, lie: Option<Lie>) -> Self {
        Self {
            name: format!("n{index}"),
            ground: Ground::new(exec.clone(), seed.wrapping_mul(7) + index as u64, &root(), lie),
            cut: Arc::default(),
            wall: Arc::new(WallOffset::new(EPOCH + index as i64)),
            sick: false,
            running: None,
            boots: 0,
        }
    }
}

impl Running {
    /// What a command over the store runs with; it is lied to with `lie`, where that is planted.
    pub fn context(&self, holder: &str, lie: Option<Lie>) -> StoreContext {
        StoreContext::new((self.commands)(lie), self.env.clone(), holder)
    }
}

pub(super) fn name(s: &str) -> Name {
    Name::new(NameKind::Workspace, s).unwrap_or_else(|e| panic!("{s} is no name: {e}"))
}

fn options(node: &Node, memory: &Memory, store: &Store) -> EngineOptions {
    let store = store.clone();
    EngineOptions {
        memory: memory.clone(),
        stores: Arc::new(move |_, _, _| {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        }),
        pace: HeartbeatPace { every: Duration::from_millis(700), watch: Duration::from_millis(2500) },
        cache: CacheOptions {
            ttl: Duration::from_secs(30),
            delete_delay: Duration::from_secs(1),
            floor: 64 * KIB,
            cap: Some(MIB),
            slab_bytes: 256 * KIB as u32,
            ..CacheOptions::default()
        },
        journal: JournalOptions {
            segment_size: 32 * KIB,
            slab_size: 256 * KIB,
            staging_dirty: 96 * KIB,
            background: false,
            ..JournalOptions::default()
        },
        disk: node.ground.process_disk(),
        ..EngineOptions::new(root(), name(&node.name))
    }
}

impl World {
    /// The daemon of a node, where one runs.
    pub(super) fn running(&self, index: usize) -> Option<Running> {
        self.nodes[index].lock().running.clone()
    }

    /// Starts a node's daemon. A power cut on the way is one more power cut.
    pub(super) fn start(&self, index: usize) {
        for _ in 0..STARTS_MAX {
            match self.try_start(index) {
                Ok(()) => return,
                Err(_) if self.nodes[index].lock().ground.disk.is_off() => {
                    self.report.count("power cut while starting");
                    self.power_cut(index);
                }
                Err(e) => return self.report.violation(format!("node n{index} does not start: {e}")),
            }
        }
        self.report.violation(format!("node n{index} does not start in {STARTS_MAX} attempts"));
    }

    fn try_start(&self, index: usize) -> hiloop_types::Result<()> {
        let mut node = self.nodes[index].lock();
        node.boots += 1;
        let group = self.exec.group();
        let env = self.exec.env(&group, self.seed ^ (index as u64 + 1) << 32 ^ node.boots << 40, node.wall.clone());
        let planted = self.plan.lie;
        let store = self.store.way(&node.name, &node.cut, planted.filter(|l| *l == Lie::EpochIgnored), env.clone());
        let (objects, called, cut, inner) = (self.store.clone(), node.name.clone(), node.cut.clone(), env.clone());
        let commands = Arc::new(move |lie: Option<Lie>| {
            // A collector is cheated in two ways.
            let wanted = |l: &Lie| lie == Some(*l) || (lie == Some(Lie::NoSequenceRule) && *l == Lie::ListingsEndEarly);
            objects.way(&called, &cut, planted.filter(wanted), inner.clone())
        });
        let memory = Memory::default();
        let options = options(&node, &memory, &store);
        let engine = Engine::open_on(options, env.clone(), node.ground.boot())?;
        let recovery = engine.recovery();
        self.exec.note(|| format!("n{index} starts: last record {}, rewritten {}", recovery.last, recovery.rewritten));
        let (last, name) = (recovery.last.0, node.name.clone());
        node.running = Some(Running { group, env, engine, memory, commands, mounts: Arc::default() });
        drop(node);
        self.journal_holds_what_is_published(index, &name, last);
        Ok(())
    }

    /// A published root is a prefix of the flushed journal (`protocols.md` 4.1): what a head names, its node's disk had.
    fn journal_holds_what_is_published(&self, index: usize, name: &str, last: u64) {
        let openings: Vec<(u64, String)> =
            self.model.lock().openings.iter().filter(|(_, h)| h.node == index && !h.lost).map(|(s, h)| (*s, h.workspace.clone())).collect();
        for (session, workspace) in openings {
            if let Some(sequence) = self.store.published(&workspace, session)
                && sequence > last
            {
                self.report.violation(format!(
                    "{workspace} is published up to record {sequence}, and the journal of {name} ends at {last}: it shipped what was not flushed"
                ));
            }
        }
    }

    /// Ends a daemon where it stands.
    pub(super) fn stop(&self, index: usize) {
        let running = self.nodes[index].lock().running.take();
        if let Some(r) = running {
            self.exec.kill(&r.group);
            r.mounts.lock().clear();
        }
    }

    /// kill -9.
    pub(super) fn kill(&self, index: usize) {
        self.exec.note(|| format!("n{index} is killed"));
        self.stop(index);
        let mut node = self.nodes[index].lock();
        node.ground.killed();
        if std::mem::take(&mut node.sick) {
            node.ground.disk.fail_flush_after(u64::MAX);
            drop(node);
            self.model.lock().disk_failed(index);
        }
    }

    /// The power goes.
    pub(super) fn power_cut(&self, index: usize) {
        self.exec.note(|| format!("n{index} loses power"));
        self.stop(index);
        let mut node = self.nodes[index].lock();
        node.ground.power_cut();
        let sick = std::mem::take(&mut node.sick);
        drop(node);
        let mut model = self.model.lock();
        model.torn(index, self.exec.now());
        if sick {
            model.disk_failed(index);
        }
    }
}

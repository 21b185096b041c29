//! The daemon of a cache directory: one engine, its mounts, and a socket over which the command line asks for more.
//!
//! The first `mount` starts it ([`start`]); the engine's directory lock decides between two that start at once, and the loser's client
//! joins the winner. It ends some seconds after its last workspace is gone, unless it was started to stay ([`Options::linger`]), or on
//! SIGTERM ([`shutdown`]). It never looks into its own mounts: such a request would wait for itself.

mod adopt;
pub mod client;
pub mod control;
mod events;
pub mod find;
mod mounts;
pub mod protocol;
mod server;
mod shutdown;
pub mod socket;
pub mod start;
mod status;
pub mod sync;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hiloop_engine::hydrate::Memory;
use hiloop_engine::node::{Engine, EngineOptions, HeartbeatPace};
use hiloop_env::Env;
use hiloop_rocks::RocksMeta;
use hiloop_transport::Spinners;
use hiloop_types::{Error, MetaStore, Name, Result, limits};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fuse::Workers;
use mounts::Mounts;

/// What a daemon is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cache directory, as [`socket::prepare`] returns it.
    pub cache_dir: PathBuf,
    /// Name of this node in heartbeats and heads.
    pub node: Name,
    /// Certificates of a private authority for all stores.
    pub ca_file: Option<PathBuf>,
    /// Policy of the disk cache.
    pub cache: hiloop_cache::CacheOptions,
    /// Memory for decoded manifest nodes, bytes.
    pub memory_nodes: u64,
    /// Memory for chunks, bytes.
    pub memory_chunks: u64,
    /// Pace of heartbeats.
    pub pace: HeartbeatPace,
    /// Ends this long after the last workspace is gone; `None`: stays.
    pub linger: Option<Duration>,
    /// Time that SIGTERM leaves for publishing.
    pub grace: Duration,
    /// The control socket, where there is one.
    pub control: Option<control::ControlOptions>,
    /// Socket of the keeper that holds the mounts while no daemon does.
    pub keeper: Option<PathBuf>,
    /// Go on with the whole prefix of a damaged journal, which else is only read.
    pub keep_prefix: bool,
}

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) options: Options,
    pub(crate) env: Env,
    pub(crate) engine: Engine,
    workers: Arc<Workers>,
    spinners: Spinners,
    keeper: Option<Arc<hiloop_keeper::Client>>,
    mounts: Mutex<Mounts>,
    /// Calls that are being served.
    calls: AtomicUsize,
    /// No new calls are taken.
    closing: AtomicBool,
    /// No new mounts are taken.
    drained: AtomicBool,
    /// What an earlier daemon left is being taken up.
    resuming: AtomicBool,
    events: tokio::sync::broadcast::Sender<events::Happened>,
    /// Wakes whoever waits for `calls` or the mounts to change.
    changed: Notify,
}

impl Daemon {
    fn open(options: Options, env: Env) -> Result<Arc<Self>> {
        let mut engine = EngineOptions::new(options.cache_dir.clone(), options.node.clone());
        engine.cache = options.cache.clone();
        engine.ca_file.clone_from(&options.ca_file);
        engine.pace = options.pace;
        if options.keep_prefix {
            engine.journal.on_damage = hiloop_journal::OnDamage::KeepPrefix;
        }
        engine.memory = Memory::new(options.memory_nodes, options.memory_chunks);
        let engine = Engine::open(engine, env.clone(), |dir| {
            let meta: Arc<dyn MetaStore> = Arc::new(RocksMeta::open(dir, limits::MEMORY_ROCKS)?);
            Ok(meta)
        })?;
        // After the directory's lock is taken: the keeper's mounts are those of the daemon before.
        let keeper = options.keeper.as_deref().map(adopt::keeper).transpose()?;
        Ok(Arc::new(Self {
            workers: Workers::start(env.clone())?,
            spinners: Spinners::default(),
            keeper,
            options,
            env,
            engine,
            mounts: Mutex::default(),
            calls: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            resuming: AtomicBool::new(false),
            events: tokio::sync::broadcast::channel(events::BEHIND).0,
            changed: Notify::new(),
        }))
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
    fn is_drained(&self) -> bool {
        self.drained.load(Ordering::SeqCst)
    }

    /// Counts a call, before `closing` is looked at: whoever closes looks at the count after it set the flag.
    fn begin_call(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_closing() {
            self.end_call();
            return Err(Error::unavailable("the daemon is ending").hint("try again once it is back"));
        }
        Ok(())
    }
    fn end_call(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With its mounts.
    Done,
    /// Its mounts go on: the process must end without another word, since whatever is let go of answers the requests that wait.
    HandedOver,
}

/// Runs a daemon until it ends. `ready` is called once it listens.
///
/// # Errors
/// Why it could not start: `Conflict` where another process has the directory.
pub async fn run(
    options: Options,
    env: Env,
    otlp: Option<crate::telemetry::OtlpMetrics>,
    ready: impl FnOnce() -> Result<()>,
) -> Result<Ended> {
    let opening = (options.clone(), env.clone());
    // Recovery blocks, and needs the runtime for what it starts.
    let daemon = tokio::task::block_in_place(|| Daemon::open(opening.0, opening.1))?;
    if let Some(keeper) = &daemon.keeper {
        daemon.adopt(adopt::claim(keeper)?)?;
    }
    let listener = socket::listen(&options.cache_dir)?;
    if let Some(otlp) = otlp {
        let weak = Arc::downgrade(&daemon);
        otlp.observe(move || weak.upgrade().map(|d| d.samples()).unwrap_or_default());
    }
    let control = match &options.control {
        Some(c) => Some(control::listen(c).await?),
        None => None,
    };
    tracing::info!(cache_dir = %options.cache_dir.display(), node = %options.node, pid = std::process::id(), "daemon is ready");
    ready()?;
    let serving = tokio::spawn(server::serve(daemon.clone(), listener));
    let mut background = vec![serving.abort_handle()];
    if let Some(control) = control {
        // Only a daemon that stays: one that `mount` started waits for the workspace to be mounted again.
        // What is taken over from the keeper is no leftover.
        let left: Vec<_> = daemon.engine.unattached().into_iter().filter(|key| !daemon.mounts.lock().is_open(key)).collect();
        daemon.hold(&left);
        daemon.resuming.store(true, Ordering::SeqCst);
        background.push(tokio::spawn(control_ends(control.serve(daemon.clone()))).abort_handle());
        background.push(tokio::spawn(daemon.clone().resume(left)).abort_handle());
    }
    let ended = shutdown::run(&daemon).await;
    background.iter().for_each(tokio::task::AbortHandle::abort);
    options.control.as_ref().inspect(|c| control::remove(c));
    socket::remove(&options.cache_dir)?;
    if let Err(e) = daemon.engine.sync().await {
        tracing::error!(error = %e, "the journal could not be flushed at the end");
    }
    tracing::info!(?ended, "daemon ends");
    if ended == Ended::HandedOver {
        std::mem::forget(daemon);
    }
    Ok(ended)
}

/// Serving the control socket only ends with the daemon, or in an error that must be seen.
async fn control_ends(serving: impl Future<Output = Result<()>>) {
    if let Err(e) = serving.await {
        tracing::error!(error = %e, "the control socket is not served any more");
    }
}

//! The engine of one node: one directory, one journal, one cache, many workspaces.

mod attach;
mod checkpoint;
mod heartbeat;
mod open;
mod recover;
mod retire;
mod tail;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;

pub(crate) use attach::read_super;
pub use attach::{AttachReport, AttachRequest, Origin};
pub use heartbeat::HeartbeatPace;
use hiloop_cache::{Cache, CacheOptions, CacheStats};
use hiloop_env::Env;
use hiloop_journal::{DirLock, Disk, RealDisk, RecoveryReport, Usage};
use hiloop_manifest::DomainKey;
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::{Error, MetaStore, Name, NameKind, Nonce, Result, Seqno, Session, WriterEpoch, limits};
pub use open::Ground;
use parking_lot::Mutex;
pub use recover::Recovered;
pub use retire::DetachReport;
use tail::Tail;

use crate::catalog::{Catalog, PUBLIC_DOMAIN};
use crate::context::StoreContext;
use crate::hydrate::{DomainKeys, Hydration, Hydrator, Memory};
use crate::workspace::{NodeShared, Shared, Workspace, WorkspaceStatus};

/// How a store is opened: the seam for tests, which hand in stores that fail on purpose.
pub type StoreOpener = Arc<dyn Fn(StoreUrl, StoreOptions, Env) -> BoxFuture<'static, Result<Store>> + Send + Sync>;

/// What an engine is opened with.
#[derive(Clone)]
pub struct EngineOptions {
    /// The node directory: journal, staging, cache, index.
    pub directory: PathBuf,
    /// Name of the node in heartbeats and heads.
    pub node: Name,
    /// Cache policy.
    pub cache: CacheOptions,
    /// Memory for decoded nodes and chunks.
    pub memory: Memory,
    /// Private certificate authority for stores.
    pub ca_file: Option<PathBuf>,
    /// Pace of heartbeats and of watching those of others.
    pub pace: HeartbeatPace,
    /// Journal sizes.
    pub journal: hiloop_journal::JournalOptions,
    /// How stores are opened.
    pub stores: StoreOpener,
    /// The file system below journal and staging.
    pub disk: Arc<dyn Disk>,
    /// Unpublished bytes of all workspaces at which a writer waits that has its share of them already.
    pub backlog_node: u64,
}

impl EngineOptions {
    /// Defaults for a node directory.
    pub fn new(directory: impl Into<PathBuf>, node: Name) -> Self {
        Self {
            directory: directory.into(),
            node,
            cache: CacheOptions::default(),
            memory: Memory::default(),
            ca_file: None,
            pace: HeartbeatPace::default(),
            journal: hiloop_journal::JournalOptions::default(),
            stores: Arc::new(|url, options, env| Box::pin(async move { Store::open(&url, options, env).await })),
            disk: Arc::new(RealDisk),
            backlog_node: limits::BACKLOG_NODE,
        }
    }
}

/// A snapshot whose cut is on the node's disk, and which is not known to be in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCut {
    /// URL of the store.
    pub store: String,
    /// Whose snapshot it is.
    pub workspace: Name,
    /// Opening that cut it.
    pub epoch: WriterEpoch,
    /// Its name.
    pub snapshot: Name,
    /// The record up to which it holds everything.
    pub sequence: Seqno,
}

/// The engine of a node. Cheap to clone; the last clone closes the journal.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub env: Env,
    pub options: EngineOptions,
    pub node: Arc<NodeShared>,
    pub cache: Arc<Cache>,
    pub meta: Arc<dyn MetaStore>,
    pub instance: Nonce,
    pub stores: tokio::sync::Mutex<HashMap<String, OpenStore>>,
    pub workspaces: Mutex<BTreeMap<WorkspaceKey, Attached>>,
    /// Workspaces that are being attached: a second attach beside the first would fence it.
    pub attaching: Mutex<BTreeSet<WorkspaceKey>>,
    /// Fenced workspaces that may still be mounted: their reads go on, so their staging stays (`protocols.md` 1).
    pub fenced: Mutex<Vec<Weak<Shared>>>,
    /// What the journal holds of openings that are not attached.
    pub tails: Mutex<BTreeMap<Session, Tail>>,
    pub releasing: AtomicBool,
    pub report: RecoveryReport,
    pub _lock: Option<DirLock>,
}

/// A workspace is named within its store.
pub(crate) type WorkspaceKey = (String, Name);

#[derive(Clone)]
pub(crate) struct OpenStore {
    pub catalog: Catalog,
    pub hydrator: Hydrator,
    /// Keys of dedup domains that were read: they never change.
    keys: Arc<Mutex<HashMap<Name, DomainKey>>>,
}

impl OpenStore {
    /// The key of a domain, made on first use.
    pub fn key<'a>(&'a self, domain: &'a Name) -> BoxFuture<'a, Result<DomainKey>> {
        Box::pin(async move {
            if let Some(key) = self.keys.lock().get(domain) {
                return Ok(key.clone());
            }
            let key = DomainKey(self.catalog.domain(domain).await?.key_bytes()?);
            self.keys.lock().insert(domain.clone(), key.clone());
            Ok(key)
        })
    }

    /// Keys of the domains that the chunks of a tree of `domain` may belong to.
    pub fn keys<'a>(&'a self, domain: &'a Name) -> BoxFuture<'a, Result<DomainKeys>> {
        Box::pin(async move {
            let public = Name::new(NameKind::Domain, PUBLIC_DOMAIN)?;
            let (public, own) = futures::try_join!(self.key(&public), self.key(domain))?;
            Ok(DomainKeys { public, own })
        })
    }
}

pub(crate) struct Attached {
    pub workspace: Workspace,
    /// True once it was detached with a rest that is still being published.
    pub draining: bool,
}

/// What `status` shows of a node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its workspaces.
    pub workspaces: Vec<WorkspaceStatus>,
    /// The disk cache.
    pub cache: CacheStats,
    /// Journal and staging.
    pub journal: Usage,
    /// Bytes of (nodes, chunks) in memory.
    pub memory: (u64, u64),
    /// What was read of packs.
    pub hydration: Hydration,
    /// Openings in the journal that nobody attached: `recover` or a mount takes them.
    pub tails: usize,
}

impl Engine {
    /// The status of the node.
    pub fn status(&self) -> NodeStatus {
        let workspaces = self.0.workspaces.lock().values().map(|a| a.workspace.status()).collect();
        NodeStatus {
            workspaces,
            cache: self.0.cache.stats(),
            journal: self.0.node.journal.usage(),
            memory: self.0.options.memory.usage(),
            hydration: self.0.options.memory.hydration(),
            tails: self.0.tails.lock().values().filter(|t| !t.is_done()).count(),
        }
    }
    /// What recovery of the journal found when the engine was opened.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.0.report
    }
    /// The attached workspaces.
    pub fn workspaces(&self) -> Vec<Workspace> {
        self.0.workspaces.lock().values().map(|a| a.workspace.clone()).collect()
    }
    /// The disk cache.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.0.cache
    }

    /// What the commands over a store need, with what this node has open and cached already.
    ///
    /// # Errors
    /// Where the store cannot be opened.
    pub fn context<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<StoreContext>> {
        Box::pin(async move { Ok(self.context_of(&self.store(url).await?)) })
    }

    /// Openings of this node that its journal holds and nobody attached: their heads may still name them, and then an attach resumes them.
    pub fn unattached(&self) -> Vec<(String, Name)> {
        let tails = self.0.tails.lock();
        let own = tails.values().filter(|t| !t.is_done() && !t.stream.foreign);
        own.map(|t| (t.stream.doc.store.clone(), t.stream.doc.name.clone())).collect()
    }

    /// Snapshots that were cut on this node and are not known to be in the store, also by an engine before this one.
    pub fn waiting_cuts(&self) -> Vec<WaitingCut> {
        let mut out = Vec::new();
        // Tails first: an opening is among the workspaces before it leaves the tails.
        for tail in self.0.tails.lock().values().filter(|t| !t.stream.foreign) {
            let doc = &tail.stream.doc;
            out.extend(tail.stream.cuts.iter().map(|(sequence, snapshot)| WaitingCut {
                store: doc.store.clone(),
                workspace: doc.name.clone(),
                epoch: doc.epoch,
                snapshot: snapshot.clone(),
                sequence: *sequence,
            }));
        }
        for workspace in self.workspaces() {
            out.extend(workspace.waiting_cuts().into_iter().map(|(snapshot, sequence)| WaitingCut {
                store: workspace.0.store_url.clone(),
                workspace: workspace.name().clone(),
                epoch: workspace.epoch(),
                snapshot,
                sequence,
            }));
        }
        out
    }

    pub(crate) async fn store(&self, url: &str) -> Result<OpenStore> {
        let mut stores = self.0.stores.lock().await;
        if let Some(s) = stores.get(url) {
            return Ok(s.clone());
        }
        let parsed: StoreUrl = url.parse()?;
        let options = StoreOptions { ca_file: self.0.options.ca_file.clone(), create_directory: true, ..StoreOptions::default() };
        let store = (self.0.options.stores)(parsed, options, self.0.env.clone()).await?;
        self.probe_store(url, &store).await?;
        let open = OpenStore {
            catalog: Catalog::new(store.clone(), self.0.env.clone()),
            hydrator: Hydrator::new(store, self.0.options.memory.clone(), Some(self.0.cache.clone())),
            keys: Arc::default(),
        };
        stores.insert(url.to_owned(), open.clone());
        Ok(open)
    }

    /// Runs [`Cache::tick`] and the journal's upkeep once.
    pub(crate) fn tick(&self) {
        let now = self.0.env.monotonic();
        if let Err(e) = self.0.cache.tick(now) {
            tracing::warn!(error = %e, "cache upkeep failed");
        }
        self.release_soon();
    }
}

impl Inner {
    pub fn weak(this: &Arc<Self>) -> Weak<Self> {
        Arc::downgrade(this)
    }
}

/// How long an answer of the store's probe holds (design.md 4).
pub(crate) const PROBE_HOLDS: Duration = Duration::from_secs(24 * 3600);

/// A journal that is damaged or failed takes nothing more, until the directory is opened again.
pub(crate) fn journal_stopped(why: &Error) -> Error {
    Error::closed(format!("the journal of this node is read-only: {why}")).hint(
        "unmount what its daemon serves and let it end; where the journal is damaged, `recover` then starts one that keeps what is whole",
    )
}

pub(crate) fn no_such_workspace(name: &Name) -> Error {
    Error::not_found(format!("workspace {name} is not attached here"))
}

//! A workspace that is open on this node: a published tree, the layers over it, and what moves them.
//!
//! # Guarantees (`protocols.md` 1), and the test in each cell
//!
//! `D`, `F`, `B` and `S` are the modules `durability`, `fencing`, `backlog` and `snapshots` of `engine/tests/node`; `P` is
//! `powercut::after_a_power_cut_the_workspace_is_a_prefix_that_holds_what_was_fsynced` of `fusefs/tests/e2e`; `J` is
//! `engine/journal/src/tests`.
//!
//! | event | accepted, not fsynced | fsynced (`local`) | published (`replicated`) |
//! |---|---|---|---|
//! | daemon dies | `D::killed_keeps_accepted` | `S::a_local_snapshot_survives_a_kill_between_the_head_and_its_object` | `D::killed_keeps_accepted` |
//! | power cut | `P` (a prefix) | `P` | `P` (snapshots at the end of each node) |
//! | flush of the node disk fails | `J` (crash simulation with failing flushes) | same | `D::node_lost_keeps_published` |
//! | bit rot in the journal | `J` (damage) | same | `D::node_lost_keeps_published` |
//! | node lost for ever | `F::lost_window_is_recorded` | same | `D::node_lost_keeps_published` |
//! | fenced by another node | `F::fenced_tail_becomes_a_fork` | same | `F::a_live_writer_is_refused_by_name_and_fenced_on_demand` |
//! | store slow or away | `B::store_away_then_back`; missing reads `D::a_miss_waits_for_a_store_that_is_away` | same | same |
//!
//! # Threads and locks
//!
//! One lock, [`State`], guards tree pointer and layers. Readers and the one writer hold it for microseconds and never while they
//! wait; the replicator takes it only to seal a layer and to drop a published one, both O(1). Operations that miss something in
//! memory return [`Stop::Miss`] and are run again after [`Workspace::fetch`].

mod admission;
mod ahead;
mod neighbours;
mod read;
mod replicator;
mod residency;
mod scan;
mod seal;
mod state;
mod status;
mod txn;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;

pub(crate) use admission::Control;
pub use admission::{Admission, Cost};
pub use ahead::Near;
use hiloop_env::Env;
use hiloop_journal::{Journal, StreamId};
use hiloop_manifest::schema::{NameHasher, Timestamp, Totals};
use hiloop_types::{Error, ErrorKind, Name, Result, Seqno, Session, WriterEpoch, limits};
pub use neighbours::ReadAhead;
use parking_lot::{Mutex, RwLock};
pub use read::{Read, View};
pub(crate) use replicator::{INO_RESERVE, Replicator, check_head, flushed, release as release_head, run as replicate};
pub use residency::Residency;
pub(crate) use state::{State, staged_at};
pub use status::{Standing, WorkspaceStatus};
pub use txn::Txn;

use crate::catalog::{BaseRoot, Catalog, Found, Head};
use crate::hydrate::{DomainKeys, Hydrator};
use crate::lease::ReadLease;
use crate::stop::{Miss, Stop};

/// Wait before what is missing is asked for again; doubles.
const FETCH_PAUSE: Duration = Duration::from_millis(100);
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(2);

/// What `fsync` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The node's disk.
    Local,
    /// A published head.
    Replicated,
}

/// Callback of something that ended.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// What the workspaces of a node share.
pub(crate) struct NodeShared {
    /// Bound to the runtime that the engine was opened on.
    pub env: Env,
    pub journal: Arc<Journal>,
    /// Unpublished bytes of all workspaces.
    pub backlog: AtomicU64,
    /// Where they are too many.
    pub backlog_limit: u64,
    /// Called for a published layer that the node's index holds.
    pub unneeded: Box<dyn Fn(Session, Seqno) + Send + Sync>,
    /// Called after a publish freed layers: journal and slabs may be released.
    pub released: Box<dyn Fn() + Send + Sync>,
}

/// A workspace open on this node. Cheap to clone.
#[derive(Clone)]
pub struct Workspace(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub node: Arc<NodeShared>,
    pub name: Name,
    pub store_url: String,
    pub domain: Name,
    pub bases: Vec<BaseRoot>,
    pub epoch: WriterEpoch,
    pub session: Session,
    pub durability: Durability,
    pub read_only: bool,
    /// Of a read-only opening, until [`Workspace::release_lease`] or the end of the last clone.
    pub lease: Mutex<Option<ReadLease>>,
    pub quota: Option<u64>,
    pub catalog: Catalog,
    pub hydrator: Hydrator,
    pub keys: DomainKeys,
    pub hasher: NameHasher,
    pub name_key: [u8; 32],
    pub state: RwLock<State>,
    pub standing: RwLock<Standing>,
    pub admission: Control,
    pub replicator: Replicator,
    pub head: tokio::sync::Mutex<Found<Head>>,
    pub sequential: Mutex<read::Sequential>,
    pub census: Mutex<residency::Census>,
    pub neighbours: Mutex<neighbours::Neighbours>,
    pub fenced_hooks: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    /// Last time that was handed out, nanoseconds: file times never go backwards.
    pub last_time: AtomicU64,
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workspace({}, epoch {})", self.0.name, self.0.epoch)
    }
}

impl Workspace {
    /// Its name.
    pub fn name(&self) -> &Name {
        &self.0.name
    }
    /// Epoch of this opening.
    pub fn epoch(&self) -> WriterEpoch {
        self.0.epoch
    }
    /// Session of this opening.
    pub fn session(&self) -> Session {
        self.0.session
    }
    /// True where nothing may be changed by the mount's own wish.
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }
    /// Bytes that are not holes it may hold; `None`: no limit.
    pub fn quota(&self) -> Option<u64> {
        self.0.quota
    }
    /// Counts for `statfs`.
    pub fn totals(&self) -> Totals {
        self.0.state.read().totals
    }
    /// What `fsync` waits for here.
    pub fn durability(&self) -> Durability {
        self.0.durability
    }

    /// The wall clock; never goes backwards within the workspace, whatever the node's clock does.
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// A consistent view; hold it for one operation, never across a wait.
    pub fn view(&self) -> View<'_> {
        View::new(&self.0)
    }

    /// Runs `f` as one atomic change and returns the number of its record. On an error nothing happened.
    ///
    /// # Errors
    /// Those of `f`; `Fenced` or `Closed` where the workspace may not be written; `Exhausted` where the node's disk is full.
    pub fn update<T, E: From<Stop>>(&self, f: impl FnOnce(&mut Txn<'_>) -> Result<T, E>) -> Result<(T, Seqno), E> {
        self.0.check_writable().map_err(|e| E::from(Stop::Error(e)))?;
        let mut txn = Txn::new(&self.0);
        let value = f(&mut txn)?;
        let seqno = txn.commit().map_err(|e| E::from(Stop::Error(e)))?;
        Ok((value, seqno))
    }

    /// Brings what was missing into memory, on background threads; a store that does not answer is waited for at most `patience`, and
    /// then `done` is called; for room ([`Miss::Room`]) when the disk has caught up.
    pub fn fetch(&self, miss: Miss, patience: Duration, done: Done) {
        let shared = self.0.clone();
        self.0.node.env.spawn(async move { done(shared.fetch(miss, patience).await) });
    }

    /// [`Self::fetch`] with a patience of [`limits::READ_DEADLINE`], for callers that may block; not on a runtime thread.
    ///
    /// # Errors
    /// As [`Self::fetch`]'s result.
    pub fn fetch_blocking(&self, miss: Miss) -> Result<()> {
        self.0.node.env.block_on(self.0.fetch(miss, limits::READ_DEADLINE))
    }

    /// Runs a reading operation, waiting for what it misses. Not on a runtime or FUSE thread.
    ///
    /// # Errors
    /// Those of `f` and of fetches.
    pub fn read_blocking<T>(&self, mut f: impl FnMut(&View<'_>) -> Result<T, Stop>) -> Result<T> {
        loop {
            let stop = match f(&self.view()) {
                Ok(v) => return Ok(v),
                Err(stop) => stop,
            };
            self.settle(stop)?;
        }
    }

    /// Runs a changing operation, waiting for what it misses and for room in the backlog. Not on a runtime or FUSE thread.
    ///
    /// # Errors
    /// Those of `f` and of fetches.
    pub fn update_blocking<T>(&self, mut f: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Result<(T, Seqno)> {
        loop {
            match self.update(&mut f) {
                Ok(v) => return Ok(v),
                Err(stop) => self.settle(stop)?,
            }
        }
    }

    fn settle(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Miss(m) => self.fetch_blocking(m),
            Stop::Error(e) => Err(e),
        }
    }

    /// Calls `done` once everything up to `upto` is as durable as this opening promises for `fsync`. Where the workspace may not be
    /// written any more that is never: whoever waits learns why.
    pub fn sync(&self, upto: Seqno, done: Done) {
        let standing = self.0.standing.read().check(&self.0.name);
        if let Err(e) = standing {
            return done(Err(e));
        }
        match self.0.durability {
            Durability::Local => self.0.node.journal.commit_async(upto, Box::new(move |r| done(r.map(drop)))),
            Durability::Replicated => self.0.replicator.when_published(upto, done),
        }
    }

    /// Number of the last accepted record of this workspace.
    pub fn accepted(&self) -> Seqno {
        self.0.state.read().accepted
    }

    /// Ends the lease of a read-only opening that nobody reads any more; without effect on others.
    ///
    /// # Errors
    /// Those of the store: the lease then stays until `gc --drop`; `Closed` where it was dropped before.
    pub fn release_lease<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let lease = self.0.lease.lock().take();
            match lease {
                Some(lease) => lease.finish().await,
                None => Ok(()),
            }
        })
    }

    /// Calls `hook` (from a thread of its own) when another session has taken the workspace over.
    pub fn on_fenced(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.0.fenced_hooks.lock().push(Box::new(hook));
    }
}

impl Shared {
    pub fn stream(&self) -> StreamId {
        self.session.0
    }

    pub fn now(&self) -> Timestamp {
        let wall = self.node.env.wall().as_nanos() as u64;
        let ns = self.last_time.fetch_max(wall, Ordering::Relaxed).max(wall);
        Timestamp { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }

    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::closed(format!("workspace {} is mounted read-only", self.name)));
        }
        self.standing.read().check(&self.name)
    }

    /// Notes that the workspace may no longer be written; the first reason stands.
    pub fn stop_writing(self: &Arc<Self>, why: Standing) {
        {
            let mut standing = self.standing.write();
            if !matches!(*standing, Standing::Live) {
                return;
            }
            match why {
                Standing::Closed => tracing::info!(workspace = %self.name, epoch = %self.epoch, "workspace is released"),
                _ => tracing::error!(workspace = %self.name, epoch = %self.epoch, standing = %why, "workspace stops accepting writes"),
            }
            *standing = why.clone();
        }
        self.admission.wake_all();
        self.replicator.fail_waiters(&why.check(&self.name).err().unwrap_or_else(|| Error::closed("the workspace is closed")));
        if matches!(why, Standing::Fenced { .. }) {
            let shared = self.clone();
            // Hooks talk to the kernel, which may wait for a request that only another thread answers.
            self.node.env.blocking(move || shared.fenced_hooks.lock().iter().for_each(|h| h()));
        }
    }

    /// Waits until the disk has room for `bytes` more.
    async fn room(&self, bytes: u64) -> Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.node.journal.when_room(bytes, Box::new(move |r| drop(tx.send(r))));
        rx.await.unwrap_or_else(|_| Err(Error::closed("the journal was closed")))
    }

    pub fn fetch<'a>(self: &'a Arc<Self>, miss: Miss, patience: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Reads have a deadline; a writer waits for as long as its disk is slow.
            if matches!(miss, Miss::Room(_)) {
                return self.fetch_once(&miss).await;
            }
            let mut last = None;
            let patient = async {
                let mut pause = FETCH_PAUSE;
                loop {
                    match self.fetch_once(&miss).await {
                        // A store that refuses or is gone has not answered: whoever misses something waits for it (`protocols.md` 1).
                        Err(e) if e.kind() == ErrorKind::Unavailable => last = Some(e),
                        answered => return answered,
                    }
                    self.node.env.sleep(pause).await;
                    pause = (pause * 2).min(FETCH_PAUSE_MAX);
                }
            };
            match self.node.env.timeout(patience, patient).await {
                Ok(answered) => answered,
                Err(_) => Err(last.unwrap_or_else(|| {
                    Error::unavailable(format!("the store did not answer within {:.1} s", patience.as_secs_f64())).at(&self.name)
                })),
            }
        })
    }

    async fn fetch_once(self: &Arc<Self>, miss: &Miss) -> Result<()> {
        match miss {
            Miss::Node(n) => self.hydrator.node_now(n).await.map(drop),
            Miss::Nodes { needed, ahead } => {
                self.node.env.spawn(self.hydrator.nodes_ahead(&[needed.as_slice(), ahead].concat()));
                for n in needed {
                    self.hydrator.node_now(n).await?;
                }
                Ok(())
            }
            Miss::Listing(nodes) => {
                self.hydrator.nodes_ahead(nodes).await;
                for n in nodes {
                    match self.hydrator.node_now(n).await {
                        Err(e) if !matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => return Err(e),
                        _ => {}
                    }
                }
                Ok(())
            }
            Miss::Chunks { needed, ahead } => {
                self.node.env.spawn(self.hydrator.chunks_ahead(&self.keys, &[needed.as_slice(), ahead].concat()));
                for c in needed {
                    self.hydrator.chunk_now(&self.keys, c).await?;
                }
                Ok(())
            }
            Miss::Staged(at) => {
                let (shared, at) = (self.clone(), *at);
                let read = self.node.env.blocking(move || shared.node.journal.verify_staged(&state::staged_ref(&at)));
                match read.await {
                    // Published and released meanwhile: the operation will find the bytes elsewhere.
                    Ok(Err(e)) if matches!(e.kind(), ErrorKind::Corrupt) && !self.state.read().names_slab(at.slab) => Ok(()),
                    Ok(r) => r.map(drop),
                    Err(e) => Err(Error::internal(format!("a read of staged data died: {e}"))),
                }
            }
            Miss::Room(bytes) => self.room(*bytes).await,
        }
    }
}

//! Opening a node directory: lock, index, journal, cache.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hiloop_cache::Cache;
use hiloop_env::Env;
use hiloop_journal::{DirLock, Journal, OnDamage, Ownership, SlabId};
use hiloop_store::Store;
use hiloop_types::{Column, MetaBatch, MetaStore, Nonce, Result, ResultExt, Seqno, Session};
use parking_lot::Mutex;

use super::checkpoint;
use super::tail::{self, StreamState, Tail};
use super::{Engine, EngineOptions, Inner, PROBE_HOLDS};
use crate::workspace::NodeShared;

/// Journal segments at which what cannot be published yet moves to the index, so that one store that is away does not keep the
/// records of all others.
const CHECKPOINT_SEGMENTS: usize = 4;

/// What a node stands on beside [`EngineOptions::disk`]: the seam for the simulator, whose disks and indexes lose what was not flushed.
pub struct Ground {
    /// Where the cache's slabs stand.
    pub cache: Box<dyn hiloop_cache::Disk>,
    /// The index.
    pub meta: Arc<dyn MetaStore>,
    /// Whose the directory was.
    pub ownership: Ownership,
    /// The lock on a real directory.
    pub lock: Option<DirLock>,
}

impl Engine {
    /// Opens a node directory: takes its lock, recovers the journal, opens the cache, starts the background tasks. Needs no store.
    /// Call it on a runtime; it blocks for as long as recovery takes.
    ///
    /// # Errors
    /// `Conflict` where another daemon holds the directory, `Corrupt` where the journal or index cannot be read.
    pub fn open(options: EngineOptions, env: Env, meta: impl FnOnce(&std::path::Path) -> Result<Arc<dyn MetaStore>>) -> Result<Self> {
        let dir = options.directory.clone();
        std::fs::create_dir_all(&dir).at(dir.display())?;
        let (lock, ownership) = DirLock::acquire(&dir)?;
        let meta = meta(&dir.join("index"))?;
        let cache = Box::new(hiloop_cache::Directory::open(&dir.join("cache")).at(dir.join("cache").display())?);
        Self::open_on(options, env, Ground { cache, meta, ownership, lock: Some(lock) })
    }

    /// [`Self::open`] on other ground.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(options: EngineOptions, env: Env, ground: Ground) -> Result<Self> {
        let env = env.here();
        let Ground { cache, meta, ownership, lock } = ground;
        let dir = options.directory.clone();
        let mut tails: BTreeMap<Session, Tail> = tail::load(meta.as_ref())?.into_iter().map(|t| (t.stream.doc.session, t)).collect();
        let floor = tails.values().map(|t| t.published().next()).max().unwrap_or(Seqno(1));
        let mut journal_options = options.journal.clone();
        if ownership == Ownership::AfterReboot && journal_options.on_damage == OnDamage::ReadOnly {
            // A power cut in the middle of a flush leaves holes that look like damage; nothing behind them was promised.
            journal_options.on_damage = OnDamage::KeepPrefixIfUncertain;
        }
        let (journal, report) =
            Journal::open(&dir, options.disk.clone(), &env, journal_options, floor, &mut |r| tail::take(&mut tails, &r))?;
        if let Some(damage) = &report.damage {
            tracing::error!(error = %damage.error(), "the journal is damaged");
        }
        tails.retain(|_, t| !t.is_closed());
        if matches!(ownership, Ownership::Cloned { .. }) {
            disown(&mut tails, meta.as_ref())?;
        }
        if let Some(lock) = &lock {
            lock.adopt()?;
        }
        let cache = Arc::new(Cache::open_on(cache, options.cache.clone(), &env, meta.clone()).at(dir.join("cache").display())?);
        let inner: Arc<Inner> = Arc::new_cyclic(|weak: &std::sync::Weak<Inner>| {
            let weak = weak.clone();
            let node = NodeShared {
                env: env.clone(),
                journal: Arc::new(journal),
                backlog: AtomicU64::new(0),
                backlog_limit: options.backlog_node,
                unneeded: {
                    let meta = meta.clone();
                    Box::new(move |session, last| {
                        if let Err(e) = checkpoint::drop_layer(meta.as_ref(), session, last) {
                            // It is dropped at the next start, since the stream's state names what is published.
                            tracing::warn!(error = %e, "a published layer stays in the index");
                        }
                    })
                },
                released: Box::new(move || {
                    if let Some(inner) = weak.upgrade() {
                        Engine(inner).release_soon();
                    }
                }),
            };
            Inner {
                instance: Nonce(env.random_u64()),
                env,
                options,
                node: Arc::new(node),
                cache,
                meta,
                stores: tokio::sync::Mutex::new(HashMap::new()),
                workspaces: Mutex::new(BTreeMap::new()),
                attaching: Mutex::default(),
                fenced: Mutex::default(),
                tails: Mutex::new(tails),
                releasing: AtomicBool::new(false),
                report,
                _lock: lock,
            }
        });
        let engine = Self(inner);
        engine.spawn_background();
        Ok(engine)
    }

    /// Lets the journal go of what confirmed heads cover, in the background; calls while one runs are folded into it.
    pub(crate) fn release_soon(&self) {
        if self.0.releasing.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.clone();
        self.0.env.blocking(move || {
            engine.0.releasing.store(false, Ordering::Release);
            if let Err(e) = engine.release_journal() {
                tracing::warn!(error = %e, "the journal could not be trimmed");
            }
        });
    }

    /// Saves what streams must remember, then releases journal segments and staging slabs that nothing names.
    pub(crate) fn release_journal(&self) -> Result<()> {
        let inner = &self.0;
        if inner.node.journal.usage().segments >= CHECKPOINT_SEGMENTS {
            self.checkpoint()?;
        }
        let mut batch = MetaBatch::new();
        // Only what is on the disk may be let go of: a release is a promise about what recovery finds.
        let mut upto = inner.node.journal.flushed();
        let mut slabs: HashSet<SlabId> = HashSet::new();
        {
            // Tails first: a workspace stands among the attached before it leaves them, so none is overlooked.
            let tails = inner.tails.lock();
            for t in tails.values() {
                t.stream.save(&mut batch)?;
                if !t.is_done() {
                    upto = upto.min(t.covered().max(inner.node.journal.released()));
                    slabs.extend(t.slabs()?.into_iter().map(SlabId));
                }
            }
            let workspaces = inner.workspaces.lock();
            for a in workspaces.values() {
                let (state, needed, own) = a.workspace.stream_state();
                upto = upto.min(needed);
                slabs.extend(own.into_iter().map(SlabId));
                state.save(&mut batch)?;
            }
        }
        inner.fenced.lock().retain(|f| {
            let mounted = f.upgrade();
            slabs.extend(mounted.iter().flat_map(|shared| shared.state.read().slabs()).map(SlabId));
            mounted.is_some()
        });
        let usage = inner.node.journal.usage();
        // Within its first segment and slab there is nothing to win, and each release costs flushes.
        if upto <= inner.node.journal.released() || (usage.segments < 2 && usage.slabs < 2) {
            return Ok(());
        }
        inner.meta.write(batch)?;
        inner.meta.flush()?;
        inner.node.journal.release(upto)?;
        inner.node.journal.retain_slabs(&slabs)?;
        Ok(())
    }

    /// Forgets a stream that is done.
    pub(crate) fn forget_stream(&self, session: Session) -> Result<()> {
        let mut batch = MetaBatch::new();
        batch.delete(Column::State, StreamState::key(session));
        checkpoint::forget(&mut batch, session);
        self.0.meta.write(batch)?;
        self.0.meta.flush()
    }

    /// Probes a store for conditional writes, unless it passed within a day (design.md 4).
    pub(crate) async fn probe_store(&self, url: &str, store: &Store) -> Result<()> {
        let key = [b"probe/".as_slice(), blake3::hash(url.as_bytes()).as_bytes()].concat();
        let now = self.0.env.wall().as_secs();
        let passed = self.0.meta.get(Column::State, &key)?.and_then(|v| v.try_into().ok().map(u64::from_be_bytes));
        if passed.is_some_and(|at| at <= now && now - at < PROBE_HOLDS.as_secs()) {
            return Ok(());
        }
        store.probe().await?;
        let mut batch = MetaBatch::new();
        batch.put(Column::State, key, now.to_be_bytes().to_vec());
        self.0.meta.write(batch)
    }
}

/// Marks what a copied directory holds as somebody else's, durably, before the directory is called our own.
fn disown(tails: &mut BTreeMap<Session, Tail>, meta: &dyn MetaStore) -> Result<()> {
    let mut batch = MetaBatch::new();
    for t in tails.values_mut() {
        tracing::warn!(workspace = %t.stream.doc.name, "the node directory is a copy; its tails can only be recovered");
        t.stream.foreign = true;
        t.stream.save(&mut batch)?;
    }
    meta.write(batch)?;
    meta.flush()
}

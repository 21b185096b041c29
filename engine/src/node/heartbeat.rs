//! Heartbeats: one object per node says which heads it owns; watching one tells whether a writer lives (`protocols.md` 3.3).
//!
//! Time decides liveness only: a writer that was wrongly thought dead is fenced by its head, not by a clock.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use hiloop_types::{Error, ErrorKind, Name, Result, limits};

use super::attach::wanted;
use super::{Engine, Inner, OpenStore};
use crate::catalog::{FORMAT, Found, Head, Heartbeat, OwnedHead};
use crate::workspace::{Workspace, check_head};

/// How often a node beats, and how long a newcomer watches.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatPace {
    /// Between two beats.
    pub every: Duration,
    /// A newcomer watches this long; several beats must fit.
    pub watch: Duration,
}

impl Default for HeartbeatPace {
    fn default() -> Self {
        Self { every: limits::HEARTBEAT, watch: limits::HEARTBEAT_WATCH }
    }
}

/// Between two steps of a journal without threads.
const JOURNAL_STEP: Duration = Duration::from_millis(5);

impl Engine {
    pub(super) fn spawn_background(&self) {
        if !self.0.options.journal.background {
            self.spawn_journal_steps();
        }
        let weak = Inner::weak(&self.0);
        let every = self.0.options.pace.every;
        let env = self.0.env.clone();
        self.0.env.spawn(async move {
            let mut beat = 0;
            loop {
                env.sleep(every).await;
                let Some(inner) = weak.upgrade() else { return };
                beat += 1;
                Engine(inner).beat(beat).await;
            }
        });
        let weak = Inner::weak(&self.0);
        let env = self.0.env.clone();
        self.0.env.spawn(async move {
            loop {
                env.sleep(limits::COMMIT_INTERVAL).await;
                let Some(inner) = weak.upgrade() else { return };
                let ticked = env.blocking(move || Engine(inner).tick()).await;
                if let Err(e) = ticked {
                    tracing::error!(error = %e, "node upkeep died");
                }
            }
        });
    }

    /// Takes the steps of the journal's threads where it runs without them (in the simulator).
    fn spawn_journal_steps(&self) {
        let weak = Inner::weak(&self.0);
        let env = self.0.env.clone();
        self.0.env.spawn(async move {
            loop {
                env.sleep(JOURNAL_STEP).await;
                let Some(inner) = weak.upgrade() else { return };
                inner.node.journal.maintain();
            }
        });
    }

    /// One beat to every store in use; each also checks the heads that the node owns (`protocols.md` 3.5).
    pub(crate) async fn beat(&self, beat: u64) {
        let mut by_store: BTreeMap<String, Vec<Workspace>> = BTreeMap::new();
        for w in self.workspaces() {
            by_store.entry(w.0.store_url.clone()).or_default().push(w);
        }
        for (url, workspaces) in by_store {
            let Ok(store) = self.store(&url).await else { continue };
            let doc = Heartbeat {
                format: FORMAT,
                node: self.0.options.node.clone(),
                instance: self.0.instance,
                beat,
                heads: workspaces.iter().map(owned).collect(),
            };
            if let Err(e) = store.catalog.put(&doc).await {
                tracing::warn!(error = %e, "heartbeat failed");
            }
            let checks = workspaces.iter().map(|w| check_head(&w.0));
            for (w, result) in workspaces.iter().zip(futures::future::join_all(checks).await) {
                match result {
                    Err(e) if e.kind() == ErrorKind::Fenced => self.retire_fenced(w),
                    Err(e) => tracing::warn!(workspace = %w.name(), error = %e, "the head could not be checked"),
                    Ok(()) => {}
                }
            }
        }
    }

    /// What the owner of a head says about it now: the beat it stands at, and its accepted sequence.
    async fn entry(&self, store: &OpenStore, head: &Head) -> Result<Option<(hiloop_types::Nonce, u64, OwnedHead)>> {
        let Some(node) = &head.node else { return Ok(None) };
        let Some(found) = store.catalog.get::<Heartbeat>(node.as_str()).await? else { return Ok(None) };
        let doc = found.doc;
        let mine = doc.heads.into_iter().find(|h| h.name == head.name && h.epoch == head.epoch && Some(h.session) == head.session);
        Ok(mine.map(|h| (doc.instance, doc.beat, h)))
    }

    /// The accepted sequence that the owner last told.
    pub(super) async fn last_accepted(&self, store: &OpenStore, found: &Found<Head>) -> Result<Option<u64>> {
        Ok(self.entry(store, &found.doc).await?.map(|e| e.2.accepted))
    }

    /// True where no writer of the workspace shows a sign of life: its head is given back, or names an opening that only this node's
    /// journal knows any more, or its owner was watched and stayed silent.
    ///
    /// # Errors
    /// `NotFound` where it does not exist; those of the store.
    pub fn is_silent<'a>(&'a self, store_url: &'a str, name: &'a Name) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let store = self.store(store_url).await?;
            let found = store.catalog.live_head(name).await?;
            let own = |s: &hiloop_types::Session| self.0.tails.lock().get(s).is_some_and(|t| !t.stream.foreign);
            if !found.doc.is_open() || found.doc.session.as_ref().is_some_and(own) {
                return Ok(true);
            }
            if self.workspaces().iter().any(|w| w.0.store_url == store_url && Some(w.session()) == found.doc.session) {
                return Ok(false);
            }
            match self.watch(&store, &found, &AtomicBool::new(false)).await {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == ErrorKind::Conflict => Ok(false),
                Err(e) => Err(e),
            }
        })
    }

    /// Watches the owner of a head; returns its last accepted sequence once it is thought dead.
    ///
    /// # Errors
    /// `Conflict`, naming the owner, where it lives; `Closed` where it was called off.
    pub(super) async fn watch(&self, store: &OpenStore, found: &Found<Head>, called_off: &AtomicBool) -> Result<Option<u64>> {
        let pace = self.0.options.pace;
        let first = self.entry(store, &found.doc).await?;
        let started = self.0.env.monotonic();
        let mut last = first.clone();
        while self.0.env.monotonic().saturating_sub(started) < pace.watch {
            self.0.env.sleep(pace.every.min(pace.watch) / 2).await;
            wanted(called_off, &found.doc.name)?;
            let head = store.catalog.live_head(&found.doc.name).await?;
            if head.version != found.version && head.doc.release.is_some() {
                return Ok(None);
            }
            last = self.entry(store, &found.doc).await?;
            let beats = last.as_ref().map(|l| (l.0, l.1)) != first.as_ref().map(|f| (f.0, f.1)) && last.is_some();
            if beats || head.version != found.version {
                let node = found.doc.node.as_ref().map_or_else(|| "an unnamed node".to_owned(), |n| format!("node {n}"));
                let left = last.map_or(0, |l| l.2.backlog_bytes);
                let what =
                    format!("workspace {} has a live writer: {node}, epoch {}, {left} bytes unpublished", found.doc.name, found.doc.epoch);
                return Err(Error::conflict(what).hint("unmount it there, or use --take-over to fence that writer"));
            }
        }
        Ok(last.map(|l| l.2.accepted))
    }
}

fn owned(w: &Workspace) -> OwnedHead {
    OwnedHead {
        name: w.name().clone(),
        epoch: w.epoch(),
        session: w.session(),
        accepted: w.accepted().0,
        published: w.0.replicator.published().0,
        backlog_bytes: w.0.admission.backlog().0,
    }
}

//! Detaching a workspace, and putting aside one that was fenced.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use hiloop_journal::Class;
use hiloop_types::{Result, Seqno, Session};
use serde::Serialize;

use super::tail::{StreamState, Tail};
use super::{Engine, no_such_workspace};
use crate::record::{CLOSED, PublishedDoc, StreamDoc};
use crate::workspace::{Standing, Workspace, flushed, release_head};

/// What a detach left.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DetachReport {
    /// Last record in a confirmed head.
    pub published: u64,
    /// Bytes that are accepted and not published; 0 after a clean detach.
    pub left_bytes: u64,
    /// True where the head was given back.
    pub released: bool,
}

impl Engine {
    /// Publishes what there is, within `timeout`, gives the head back and lets go of the workspace. Nothing may use it any more; the
    /// caller has unmounted it. What is left goes on being published by this daemon, and is in the journal.
    ///
    /// # Errors
    /// `NotFound` where it is not attached. That the store does not answer is no error but `left_bytes`.
    pub fn detach<'a>(&'a self, workspace: &'a Workspace, timeout: Duration) -> BoxFuture<'a, Result<DetachReport>> {
        Box::pin(async move {
            let key = (workspace.0.store_url.clone(), workspace.name().clone());
            let fenced = matches!(*workspace.0.standing.read(), Standing::Fenced { .. });
            let other = |a: &super::Attached| a.workspace.session() != workspace.session();
            if !fenced && self.0.workspaces.lock().get(&key).is_none_or(other) {
                return Err(no_such_workspace(workspace.name()));
            }
            // Attached only to be read: its tail stands among the tails all the time.
            if !fenced && self.0.tails.lock().contains_key(&workspace.session()) {
                self.0.workspaces.lock().remove(&key);
                let (bytes, operations) = workspace.0.admission.backlog();
                let published = workspace.0.replicator.published().0;
                return Ok(DetachReport { published, left_bytes: bytes.max(operations), released: false });
            }
            let drained = !fenced && self.0.env.timeout(timeout, workspace.flush()).await.is_ok_and(|r| r.is_ok());
            let mut released = false;
            if drained {
                workspace.0.stop_writing(Standing::Closed);
                released =
                    self.0.env.timeout(timeout.max(Duration::from_secs(1)), release_head(&workspace.0)).await.is_ok_and(|r| r.is_ok());
            }
            let (bytes, operations) = workspace.0.admission.backlog();
            let report = DetachReport {
                published: workspace.0.replicator.published().0,
                left_bytes: if drained { 0 } else { bytes.max(operations) },
                released,
            };
            if fenced {
                self.retire_fenced(workspace);
            } else if drained {
                self.journal_closing(workspace.session())?;
                self.0.workspaces.lock().remove(&key);
                self.forget_stream(workspace.session())?;
            } else {
                workspace.0.replicator.stop();
                if let Some(a) = self.0.workspaces.lock().get_mut(&key) {
                    a.draining = true;
                }
            }
            Ok(report)
        })
    }

    /// Puts the tail of a fenced workspace aside for `recover`. Its reads go on while it is mounted.
    pub(super) fn retire_fenced(&self, workspace: &Workspace) {
        let key = (workspace.0.store_url.clone(), workspace.name().clone());
        let (stream, ..) = workspace.stream_state();
        let mut tails = self.0.tails.lock();
        let mut workspaces = self.0.workspaces.lock();
        // It may have been put aside before, and another opening of the same workspace may stand here now.
        if workspaces.get(&key).is_some_and(|a| a.workspace.session() == workspace.session()) {
            let tail = Tail::of_layers(stream, workspace.layers());
            tails.insert(workspace.session(), tail);
            self.0.fenced.lock().push(std::sync::Arc::downgrade(&workspace.0));
            workspaces.remove(&key);
        }
    }

    pub(super) fn journal_closing(&self, session: Session) -> Result<()> {
        self.0.node.journal.append(Class::Reserve, session.0, CLOSED, &[], &[]).map(drop)
    }

    /// Flushes the journal: after it a power cut loses nothing that was accepted.
    ///
    /// # Errors
    /// That of the flush.
    pub fn sync<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let journal = &self.0.node.journal;
            flushed(journal, journal.accepted()).await
        })
    }
}

impl Workspace {
    /// What the index must know of this opening, the last record it does not need, and the slabs it names.
    pub(super) fn stream_state(&self) -> (StreamState, Seqno, Vec<u64>) {
        let shared = &self.0;
        let nonces = shared.replicator.nonces();
        let s = shared.state.read();
        // The last record that neither a confirmed head nor the index covers.
        let open = s.sealed.iter().position(|l| !l.checkpointed.load(Ordering::Acquire));
        let needed = match open {
            Some(0) => s.published,
            Some(i) => s.sealed[i - 1].last,
            None if s.active.is_empty() => Seqno(u64::MAX),
            None => s.sealed.back().map_or(s.published, |l| l.last),
        };
        let slabs = s.slabs();
        let doc = StreamDoc {
            store: shared.store_url.clone(),
            name: shared.name.clone(),
            epoch: shared.epoch,
            session: shared.session,
            nonce: nonces.first().copied().unwrap_or_default(),
            root: s.root,
            bases: shared.bases.clone(),
            next_ino: s.next_ino,
            domain: shared.domain.clone(),
        };
        let cuts = s.sealed.iter().flat_map(|l| l.cuts.iter().map(|n| (l.last, n.clone()))).collect();
        let published = s.root.filter(|_| s.published > Seqno(0)).map(|root| PublishedDoc { sequence: s.published, root });
        let state = StreamState { doc, published, nonces, next_ino: s.next_ino, cuts, foreign: false };
        (state, needed, slabs)
    }
}

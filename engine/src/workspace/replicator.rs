//! The replicator: one task per workspace that seals, ships and publishes, in order, for as long as the workspace is open.
//!
//! A publish: seal the active layer (or take the oldest sealed one), wait until its records are flushed (only flushed records ship,
//! `protocols.md` 2.6), put packs and nodes, journal the attempt's nonce, swap the head, journal the confirmation, drop the layer.
//! Then the snapshots cut at the layer's end are put, before the head may pass (`protocols.md` 4.3). What fails is tried again with
//! the same layer; only being fenced or a failed journal ends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use hiloop_env::Env;
use hiloop_journal::{Class, Journal};
use hiloop_manifest::schema::{Key, Value};
use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, ErrorKind, Name, Nonce, Owner, Result, Seqno, limits};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::seal::Sealing;
use super::{Done, Shared, Standing, Workspace};
use crate::catalog::{CutOff, FORMAT, Found, Head, LineageEvent, LineageKind, Release, SnapshotDoc};
use crate::front::Front;
use crate::layer::Layer;
use crate::record::{ATTEMPT, CUT, CUT_DONE, PUBLISHED, PublishedDoc};
use crate::ship::{Origin, Shipper};

/// First pause after a failed publish; doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// Longest pause between attempts: how late a store's return is noticed.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Unpublished bytes at which a publish starts before its interval is over.
const EAGER: u64 = 4 * limits::PACK_TARGET;
/// Inode numbers that an opening reserves at a time (`protocols.md` 3.7).
pub(crate) const INO_RESERVE: u64 = 1 << 24;

type CutDone = Box<dyn FnOnce(Result<SnapshotDoc>) + Send>;

/// The replicator's side of a workspace.
pub(crate) struct Replicator {
    wake: Notify,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    dirty_since: Option<Duration>,
    dirty: bool,
    hurry: bool,
    stop: bool,
    shipped: Seqno,
    published: Seqno,
    waiters: Vec<(Seqno, Done)>,
    cuts: BTreeMap<Name, CutDone>,
    error: Option<String>,
    /// Why nothing more will be published: whoever asks now would wait for ever.
    refused: Option<Error>,
    /// Nonces of swaps of this session: a head that carries one is ours (`protocols.md` 3.2).
    nonces: Vec<Nonce>,
}

/// For `status`.
pub(crate) struct Report {
    pub shipped: Seqno,
    pub published: Seqno,
    pub lag: Duration,
    pub error: Option<String>,
}

impl Replicator {
    pub fn new(published: Seqno, nonces: Vec<Nonce>) -> Self {
        let inner = Inner { published, shipped: published, nonces, ..Inner::default() };
        Self { wake: Notify::new(), inner: Mutex::new(inner) }
    }
    /// A change was accepted.
    pub fn dirty(&self) {
        let mut i = self.inner.lock();
        if !i.dirty {
            i.dirty = true;
            drop(i);
            self.wake.notify_one();
        }
    }
    /// Publish without waiting for the interval.
    pub fn hurry(&self) {
        self.inner.lock().hurry = true;
        self.wake.notify_one();
    }
    /// Publish what there is, then end.
    pub fn stop(&self) {
        self.inner.lock().stop = true;
        self.wake.notify_one();
    }
    /// Calls `done` once a head that contains `upto` is confirmed.
    pub fn when_published(&self, upto: Seqno, done: Done) {
        let answer = {
            let mut i = self.inner.lock();
            match &i.refused {
                _ if i.published >= upto => Ok(()),
                Some(e) => Err(e.clone()),
                None => {
                    i.waiters.push((upto, done));
                    i.hurry = true;
                    drop(i);
                    self.wake.notify_one();
                    return;
                }
            }
        };
        done(answer);
    }
    pub fn published(&self) -> Seqno {
        self.inner.lock().published
    }
    /// Nonces by which a head of this session is recognised.
    pub fn nonces(&self) -> Vec<Nonce> {
        self.inner.lock().nonces.clone()
    }
    /// Goes on after [`Self::stop`].
    pub fn resume(&self) {
        let mut i = self.inner.lock();
        (i.stop, i.refused) = (false, None);
    }
    /// Ends all waits with an error, also those to come.
    pub fn fail_waiters(&self, why: &Error) {
        let (waiters, cuts) = {
            let mut i = self.inner.lock();
            i.refused = Some(why.clone());
            (std::mem::take(&mut i.waiters), std::mem::take(&mut i.cuts))
        };
        waiters.into_iter().for_each(|(_, done)| done(Err(why.clone())));
        cuts.into_values().for_each(|done| done(Err(why.clone())));
        self.wake.notify_one();
    }
    pub fn report(&self, now: Duration) -> Report {
        let i = self.inner.lock();
        let lag = i.dirty_since.map_or(Duration::ZERO, |t| now.saturating_sub(t));
        Report { shipped: i.shipped, published: i.published, lag, error: i.error.clone() }
    }
    fn is_mine(&self, nonce: Nonce) -> bool {
        self.inner.lock().nonces.contains(&nonce)
    }
    fn confirmed(&self, upto: Seqno, env: &Env, more: bool) {
        let ready = {
            let mut i = self.inner.lock();
            i.published = i.published.max(upto);
            i.error = None;
            i.dirty_since = more.then(|| env.monotonic());
            let (ready, rest) = std::mem::take(&mut i.waiters).into_iter().partition::<Vec<_>, _>(|(s, _)| *s <= upto);
            i.waiters = rest;
            ready
        };
        ready.into_iter().for_each(|(_, done)| done(Ok(())));
    }
}

impl Workspace {
    /// Cuts a snapshot: everything accepted so far, nothing after (`protocols.md` 4.3). Returns once the cut is on the node's disk
    /// (`local`); `replicated` is called once the snapshot object is confirmed. The name must be free in the store.
    ///
    /// # Errors
    /// `Exhausted` where too many cuts wait to be published, `Fenced` or `Closed` where the workspace may not be written.
    pub async fn snapshot(&self, name: &Name, replicated: impl FnOnce(Result<SnapshotDoc>) + Send + 'static) -> Result<Seqno> {
        let shared = &self.0;
        shared.check_writable()?;
        if let Some(found) = shared.catalog.get::<SnapshotDoc>(name.as_str()).await? {
            return Err(Error::conflict(format!("snapshot {name} exists already"))
                .hint(format!("it was cut from workspace {}", found.doc.workspace)));
        }
        let cut = {
            let mut state = shared.state.write();
            if state.sealed.len() >= limits::SEALED_LAYERS {
                return Err(Error::exhausted(format!("{} snapshots of {} wait to be replicated", state.sealed.len(), shared.name))
                    .hint("wait until the store answers again; `status` shows the backlog"));
            }
            {
                let i = shared.replicator.inner.lock();
                if let Some(e) = &i.refused {
                    return Err(e.clone());
                }
                if i.cuts.contains_key(name) {
                    return Err(Error::conflict(format!("snapshot {name} is being cut already")));
                }
            }
            let seqno = shared.node.journal.append(Class::Reserve, shared.stream(), CUT, &[name.as_str().as_bytes()], &[])?;
            state.accepted = seqno;
            state.seal(shared.name_key, shared.epoch, Some(name.clone()));
            let mut i = shared.replicator.inner.lock();
            match i.refused.clone() {
                None => _ = i.cuts.insert(name.clone(), Box::new(replicated)),
                // Fenced since: the cut is in the tail.
                Some(e) => {
                    drop(i);
                    replicated(Err(e));
                }
            }
            seqno
        };
        shared.replicator.hurry();
        flushed(&shared.node.journal, cut).await?;
        Ok(cut)
    }

    /// Snapshots that are cut and not replicated yet, oldest first, and the record that each holds everything up to.
    pub fn waiting_cuts(&self) -> Vec<(Name, Seqno)> {
        let state = self.0.state.read();
        state.sealed.iter().flat_map(|l| l.cuts.iter().map(|name| (name.clone(), l.last))).collect()
    }

    /// Waits until everything accepted before the call is published.
    ///
    /// # Errors
    /// Why it will not be.
    pub fn flush<'a>(&'a self) -> BoxFuture<'a, Result<Seqno>> {
        Box::pin(async move {
            let upto = self.accepted();
            let (tx, rx) = oneshot::channel();
            self.0.replicator.when_published(upto, Box::new(move |r| drop(tx.send(r))));
            rx.await.unwrap_or_else(|_| Err(Error::closed("the workspace was closed"))).map(|()| upto)
        })
    }
}

/// Waits until everything up to `upto` is on the node's disk.
pub(crate) async fn flushed(journal: &Journal, upto: Seqno) -> Result<()> {
    let (tx, rx) = oneshot::channel();
    journal.commit_async(upto, Box::new(move |r| drop(tx.send(r))));
    rx.await.unwrap_or_else(|_| Err(Error::closed("the journal was closed"))).map(drop)
}

/// The replicator's task.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut pause = PAUSE_FIRST;
    loop {
        if !wait_for_work(&shared).await {
            return;
        }
        match publish_next(&shared).await {
            Ok(()) => pause = PAUSE_FIRST,
            Err(e) if e.kind() == ErrorKind::Fenced => return,
            Err(e) => {
                tracing::warn!(workspace = %shared.name, error = %e, retry_in = ?pause, "publish failed");
                shared.replicator.inner.lock().error = Some(e.to_string());
                if shared.replicator.inner.lock().stop && !matches!(*shared.standing.read(), Standing::Live | Standing::HeadLost { .. }) {
                    return;
                }
                shared.node.env.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Waits until something is to be published; false where the task is to end.
async fn wait_for_work(shared: &Arc<Shared>) -> bool {
    let r = &shared.replicator;
    let mut slept = false;
    loop {
        let notified = r.wake.notified();
        {
            let state = shared.state.read();
            let work = !state.sealed.is_empty() || !state.active.is_empty();
            let urgent = !state.sealed.is_empty() || state.active.bytes >= EAGER;
            drop(state);
            let mut i = r.inner.lock();
            if matches!(*shared.standing.read(), Standing::Fenced { .. } | Standing::Closed) {
                return false;
            }
            if work {
                i.dirty_since.get_or_insert_with(|| shared.node.env.monotonic());
                if urgent || i.hurry || i.stop || slept {
                    i.hurry = false;
                    i.dirty = false;
                    return true;
                }
            } else {
                i.dirty = false;
                i.hurry = false;
                i.dirty_since = None;
                if i.stop {
                    return false;
                }
            }
        }
        let work = shared.replicator.inner.lock().dirty_since.is_some();
        if work {
            // A later wake-up may be a hurry or a full layer, so it is looked at; time that passed counts.
            slept = shared.node.env.timeout(limits::PUBLISH_INTERVAL, notified).await.is_err();
        } else {
            notified.await;
        }
    }
}

/// Publishes the oldest layer.
async fn publish_next(shared: &Arc<Shared>) -> Result<()> {
    let (layer, root, shipped) = {
        let mut state = shared.state.write();
        if state.sealed.is_empty() {
            state.seal(shared.name_key, shared.epoch, None);
        }
        let Some(layer) = state.sealed.front().cloned() else { return Ok(()) };
        // A snapshot object that could not be put leaves its layer behind a head that stands already.
        let shipped = layer.is_empty() || state.published >= layer.last;
        (layer, state.root, shipped)
    };
    let started = shared.node.env.monotonic();
    if let Err(e) = flushed(&shared.node.journal, layer.last).await {
        shared.stop_writing(Standing::ReadOnly { reason: e.to_string() });
        return Err(e);
    }
    let root = if shipped {
        root.ok_or_else(|| Error::internal("an empty layer was cut from a workspace without a tree"))?
    } else {
        let root = ship(shared, layer.clone(), root).await?;
        shared.replicator.inner.lock().shipped = layer.last;
        swap_head(shared, &layer, root).await?;
        finish(shared, &layer, root, started);
        root
    };
    for cut in &layer.cuts {
        put_snapshot(shared, cut, &layer, root).await?;
    }
    let mut state = shared.state.write();
    state.sealed.pop_front();
    if layer.checkpointed.load(Ordering::Acquire) {
        (shared.node.unneeded)(shared.session, layer.last);
    }
    let more = !state.sealed.is_empty() || !state.active.is_empty();
    drop(state);
    shared.admission.published(layer.bytes, layer.operations);
    shared.node.backlog.fetch_sub(layer.bytes, Ordering::Relaxed);
    shared.replicator.confirmed(layer.last, &shared.node.env, more);
    (shared.node.released)();
    Ok(())
}

async fn ship(shared: &Arc<Shared>, layer: Arc<Layer>, root: Option<RootRef>) -> Result<RootRef> {
    let env = shared.node.env.clone();
    let shared = shared.clone();
    let work = env.blocking(move || {
        let node = &shared.node;
        let origin = Origin {
            owner: Owner::workspace(&shared.name),
            name: shared.name.clone(),
            epoch: shared.epoch,
            session: shared.session,
            sequence: layer.last.0,
        };
        let shipper = Shipper::new(shared.catalog.store().clone(), node.env.clone(), origin);
        let sealing = Sealing { journal: &node.journal, hydrator: &shared.hydrator, keys: &shared.keys, env: &node.env };
        sealing.ship(&layer, root.as_ref(), shipper)
    });
    let (root, shipped) = work.await.map_err(|e| Error::internal(format!("building a publish died: {e}")))??;
    tracing::debug!(?shipped, "shipped a layer");
    Ok(root)
}

/// Moves the head to `root`, or finds out that it is ours no longer.
async fn swap_head(shared: &Arc<Shared>, layer: &Layer, root: RootRef) -> Result<()> {
    let front = Front::or_none(&shared.hydrator, &root).await;
    let mut head = shared.head.lock().await;
    if let Some(cut_off) = head.doc.cut_off.clone() {
        put_cut_off(shared, &cut_off).await?;
    }
    let nonce = shared.catalog.nonce();
    let next_ino = shared.state.read().next_ino;
    let mut doc = head.doc.clone();
    doc.root = Some(root);
    doc.front = front;
    doc.sequence = layer.last.0;
    doc.nonce = nonce;
    doc.cut_off = None;
    doc.release = None;
    if doc.inode_limit.saturating_sub(next_ino) < INO_RESERVE / 2 {
        doc.inode_limit = next_ino + INO_RESERVE;
    }
    attempt(shared, nonce).await?;
    let limit = doc.inode_limit;
    replace_head(shared, &mut head, doc).await?;
    drop(head);
    let mut standing = shared.standing.write();
    if matches!(*standing, Standing::HeadLost { .. }) {
        *standing = Standing::Live;
    }
    drop(standing);
    shared.state.write().ino_limit = limit;
    Ok(())
}

/// Journals the nonce of a swap that is about to be sent.
async fn attempt(shared: &Arc<Shared>, nonce: Nonce) -> Result<()> {
    shared.replicator.inner.lock().nonces.push(nonce);
    let seqno = shared.node.journal.append(Class::Reserve, shared.stream(), ATTEMPT, &[&nonce.0.to_be_bytes()], &[])?;
    flushed(&shared.node.journal, seqno).await
}

/// Swaps the head document; on a lost race decides between "that was me" and "fenced".
async fn replace_head(shared: &Arc<Shared>, head: &mut Found<Head>, mut doc: Head) -> Result<()> {
    for _ in 0..3 {
        match shared.catalog.swap_head(&head.version, &doc).await? {
            Ok(version) => {
                shared.replicator.inner.lock().nonces = vec![doc.nonce];
                *head = Found { doc, version };
                return Ok(());
            }
            // An earlier attempt of ours took effect after all: swap over it.
            Err(Some(found)) if found.doc.session == Some(shared.session) && shared.replicator.is_mine(found.doc.nonce) => {
                doc.cut_off = found.doc.cut_off.clone().filter(|_| doc.cut_off.is_some());
                head.version = found.version;
            }
            Err(Some(found)) => return Err(fenced(shared, &found.doc)),
            Err(None) => {
                let reason = "the head object is gone".to_owned();
                *shared.standing.write() = Standing::HeadLost { reason: reason.clone() };
                return Err(Error::corrupt(reason)
                    .at(format!("heads/{}", shared.name))
                    .hint("restore it; nothing is published until then"));
            }
        }
    }
    Err(Error::unavailable("the head moved under every attempt").at(format!("heads/{}", shared.name)))
}

/// Notes that another session owns the head.
pub(crate) fn fenced(shared: &Arc<Shared>, by: &Head) -> Error {
    let who = match (&by.node, by.tombstone) {
        (_, true) => format!("a deletion (epoch {})", by.epoch),
        (Some(n), _) => format!("node {n} (epoch {})", by.epoch),
        (None, _) => format!("epoch {}", by.epoch),
    };
    shared.stop_writing(Standing::Fenced { by: who.clone() });
    Error::fenced(format!("workspace {} was taken over by {who}", shared.name))
}

async fn put_cut_off(shared: &Arc<Shared>, cut_off: &CutOff) -> Result<()> {
    match shared.catalog.create(cut_off).await {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::Conflict => Ok(()),
        Err(e) => Err(e),
    }
}

/// Makes the published tree the one below the layers that are left. The layer itself stays until its snapshots are put: it is the
/// same content, so readers cannot tell.
fn finish(shared: &Arc<Shared>, layer: &Layer, root: RootRef, started: Duration) {
    let took = shared.node.env.monotonic().saturating_sub(started);
    shared.admission.measured(layer.bytes, took);
    let doc = PublishedDoc { sequence: layer.last, root };
    match serde_json::to_vec(&doc) {
        Ok(body) => {
            // Not flushed: without it, recovery asks the head.
            if let Err(e) = shared.node.journal.append(Class::Reserve, shared.stream(), PUBLISHED, &[&body], &[]) {
                tracing::warn!(workspace = %shared.name, error = %e, "a confirmed head could not be journalled");
            }
        }
        Err(e) => tracing::error!(error = %e, "cannot encode a published record"),
    }
    let mut state = shared.state.write();
    state.root = Some(root);
    if let Some(Some(Value::Super(superblock))) = layer.entries.get(&Key::superblock()) {
        state.root_next_ino = superblock.next_ino;
    }
    state.published = layer.last;
}

async fn put_snapshot(shared: &Arc<Shared>, name: &Name, layer: &Layer, root: RootRef) -> Result<()> {
    let head = shared.head.lock().await.doc.clone();
    let doc = SnapshotDoc {
        format: FORMAT,
        name: name.clone(),
        workspace: shared.name.clone(),
        epoch: shared.epoch,
        session: shared.session,
        sequence: layer.last.0,
        root,
        // The head stands at the cut, except after a restart in between.
        front: if head.root == Some(root) { head.front } else { Front::default() },
        bases: head.bases,
        inode_limit: head.inode_limit,
        quota: head.quota,
        domain: head.domain,
        parent: head.parent.clone(),
        nonce: shared.catalog.nonce(),
        created: shared.catalog.now(),
        deleted: None,
    };
    let result = match shared.catalog.create_snapshot(&doc).await? {
        Ok(_) => Ok(doc),
        // Cut before a restart, put before the answer came.
        Err(Some(found)) if found.doc.session == doc.session && found.doc.sequence == doc.sequence => Ok(found.doc),
        Err(_) => Err(Error::conflict(format!("snapshot {name} exists already; the cut of {} was not kept", shared.name))),
    };
    if result.is_ok() {
        let event = LineageEvent {
            format: FORMAT,
            workspace: shared.name.clone(),
            epoch: shared.epoch,
            event: LineageKind::Snapshot { name: name.clone(), sequence: layer.last.0 },
            parent: head.parent,
            at: shared.catalog.now(),
        };
        shared.catalog.put(&event).await?;
    }
    // Not flushed: where it is lost, the object is found to be there.
    shared.node.journal.append(Class::Reserve, shared.stream(), CUT_DONE, &[name.as_str().as_bytes()], &[])?;
    if let Some(done) = shared.replicator.inner.lock().cuts.remove(name) {
        done(result);
    }
    Ok(())
}

/// Gives the head back, naming what is left (`protocols.md` 3.4).
pub(crate) async fn release(shared: &Arc<Shared>) -> Result<()> {
    let mut head = shared.head.lock().await;
    let (accepted, published) = {
        let s = shared.state.read();
        (s.accepted, s.published)
    };
    let left = shared.admission.backlog().1 > 0;
    let mut doc = head.doc.clone();
    doc.nonce = shared.catalog.nonce();
    doc.release = Some(Release { tail: if left { accepted.0.max(published.0) } else { 0 } });
    attempt(shared, doc.nonce).await?;
    replace_head(shared, &mut head, doc).await
}

/// Checks that the head is still ours; called with each heartbeat, so that an idle fenced writer notices (`protocols.md` 3.5).
pub(crate) async fn check_head(shared: &Arc<Shared>) -> Result<()> {
    let Some(found) = shared.catalog.get::<Head>(shared.name.as_str()).await? else {
        let reason = "the head object is gone".to_owned();
        *shared.standing.write() = Standing::HeadLost { reason };
        return Ok(());
    };
    if found.doc.session == Some(shared.session) && !found.doc.tombstone {
        return Ok(());
    }
    Err(fenced(shared, &found.doc))
}

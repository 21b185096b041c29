//! The daemon's mounts: making them, finding them, ending them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hiloop_engine::catalog::{Head, LostWindow};
use hiloop_engine::node::{AttachReport, AttachRequest, DetachReport, Origin};
use hiloop_engine::workspace::Workspace;
use hiloop_types::{Error, ErrorKind, Name, NameKind, ROOT_INO, Result};

use super::Daemon;
use super::events::What;
use super::protocol::{Cut, Flushed, MountCall, MountInfo, Mounted, Opening, Progress, Recovery, Selector, Snapshotted, Unmounted, Wanted};
use super::server::Talk;
use super::sync::{BEFORE_A_CUT, Turn};
use crate::fs::dir;
use crate::fuse;

/// Time that processes with files open in a detached mount have to let go before their requests fail.
const USERS_LEAVE: Duration = Duration::from_secs(2);
/// Time for the serving threads to end once the mount is gone.
const SERVING_ENDS: Duration = Duration::from_secs(10);
/// Time for giving the head of a workspace back that could not be mounted or whose mount was taken away from outside.
pub(super) const LET_GO: Duration = Duration::from_secs(30);

/// Pause between two attempts at a store that is away.
pub(super) const RESUME_PAUSE: Duration = Duration::from_secs(5);

/// The mounts by mount point, and those that are being made.
#[derive(Default)]
pub(super) struct Mounts {
    live: HashMap<PathBuf, Live>,
    /// Being attached and mounted.
    coming: HashMap<PathBuf, Coming>,
    /// Unmounted with a rest that is still being published.
    draining: HashSet<(String, Name)>,
    /// Workspaces whose head is being given back, or taken up again after a restart: an opening waits for the end of that.
    closing: HashSet<(String, Name)>,
}

/// A mount that is being made.
struct Coming {
    store: String,
    /// The workspace where it is opened for write.
    writes: Option<Name>,
    stage: Stage,
    /// Tells the engine that the opening was called off.
    off: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The workspace is being opened: a while, where a writer elsewhere is watched or the store is slow.
    Opening,
    /// An unmount came meanwhile: it is given back once it is open, and never mounted.
    Cancelled,
    /// It is being mounted, which takes a moment.
    Mounting,
}

#[derive(Clone)]
struct Live {
    mount: fuse::Mount,
    workspace: Workspace,
    store: String,
    /// An unmount runs.
    leaving: bool,
    /// Of the helper that has changed pages written back.
    syncing: Turn,
}

impl Live {
    fn info(&self) -> MountInfo {
        MountInfo {
            mountpoint: self.mount.mountpoint().to_owned(),
            workspace: self.workspace.name().clone(),
            store: self.store.clone(),
            read_only: self.workspace.is_read_only(),
        }
    }
}

impl Mounts {
    fn select(&self, of: &Selector) -> Vec<Live> {
        let fits = |l: &&Live| {
            of.workspace.as_ref().is_none_or(|w| w == l.workspace.name())
                && of.store.as_ref().is_none_or(|s| *s == l.store)
                && of.mountpoint.as_deref().is_none_or(|m| m == l.mount.mountpoint())
        };
        let mut found: Vec<Live> = self.live.values().filter(fits).cloned().collect();
        found.sort_by(|a, b| a.mount.mountpoint().cmp(b.mount.mountpoint()));
        found
    }
    /// True where nothing is mounted, nor about to be, nor left to publish.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty() && self.coming.is_empty() && self.draining.is_empty()
    }
    pub(super) fn is_open(&self, key: &(String, Name)) -> bool {
        let live = |l: &Live| !l.workspace.is_read_only() && l.store == key.0 && *l.workspace.name() == key.1;
        self.live.values().any(live) || self.coming.values().any(|c| c.store == key.0 && c.writes.as_ref() == Some(&key.1))
    }
    pub(super) fn all(&self) -> Vec<(fuse::Mount, Workspace)> {
        self.live.values().map(|l| (l.mount.clone(), l.workspace.clone())).collect()
    }
}

/// Gives the reservation back, however the mount ends.
struct Reserved<'a>(&'a Daemon, PathBuf);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.mounts.lock().coming.remove(&self.1);
        self.0.changed.notify_waiters();
    }
}

fn left(workspace: &Workspace, doing: &str) -> Progress {
    Progress { doing: format!("{doing} {}", workspace.name()), left_bytes: Some(workspace.status().backlog_bytes) }
}

/// A mount, its workspace and the URL of its store.
pub(super) type Row = (fuse::Mount, Workspace, String);

impl Daemon {
    /// Which mounts are meant.
    pub(super) fn find(&self, of: &Selector) -> Vec<MountInfo> {
        self.mounts.lock().select(of).iter().map(Live::info).collect()
    }

    fn one(&self, of: &Selector) -> Result<Live> {
        let mut found = self.mounts.lock().select(of);
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (Some(_), false) => Err(Error::invalid("several mounts are meant").hint("name the mount point")),
            (None, _) => {
                let what = match (&of.mountpoint, &of.workspace) {
                    (Some(m), _) => format!("this daemon serves no mount on {}", m.display()),
                    (None, Some(w)) => format!("workspace {w} is not mounted by this daemon"),
                    (None, None) => "this daemon serves no mount".to_owned(),
                };
                Err(Error::not_found(what).at(self.options.cache_dir.display()).hint("`status` shows what is mounted"))
            }
        }
    }

    pub(super) fn workspace_of(&self, of: &Selector) -> Result<(fuse::Mount, Workspace)> {
        self.one(of).map(|l| (l.mount, l.workspace))
    }

    fn writable(&self, of: &Selector) -> Result<Live> {
        let live = self.one(of)?;
        if live.workspace.is_read_only() {
            return Err(Error::invalid(format!("{} is mounted read-only: it has no writes", live.workspace.name()))
                .at(live.mount.mountpoint().display()));
        }
        Ok(live)
    }

    #[tracing::instrument(skip_all, fields(mountpoint = %call.mountpoint.display()))]
    pub(super) async fn mount(&self, call: MountCall, talk: &mut Talk) -> Result<Mounted> {
        if let Wanted::Workspace(opening) = &call.what {
            let key = (call.store.clone(), opening.name.clone());
            self.changed_until(|m| !m.closing.contains(&key)).await;
        }
        if self.is_drained() {
            return Err(Error::closed("the daemon is being drained and takes no new mounts").hint("use another node"));
        }
        let (_reserved, off) = self.reserve(&call)?;
        let MountCall { store, what, mountpoint, .. } = call.clone();
        let (workspace, report) = match what {
            Wanted::Workspace(opening) => self.open_for_write(&store, opening, off, talk).await?,
            Wanted::ReadOnly(source) => (self.open_read_only(&store, source, talk).await?, None),
        };
        let mounted =
            match talk.during(Box::pin(dir::local(&workspace, ROOT_INO)), || left(&workspace, "reading the root directory of")).await {
                Ok(()) => match self.enter(&mountpoint).and_then(|()| self.mount_options(&workspace, &call)) {
                    Ok(options) => {
                        let ws = workspace.clone();
                        blocking(move || fuse::mount(ws, options)).await
                    }
                    Err(e) => Err(e),
                },
                Err(e) => Err(e),
            };
        let mount = match mounted {
            Ok(mount) => mount,
            Err(e) => {
                if let Err(left) = self.let_go(&workspace, false, LET_GO).await {
                    tracing::warn!(workspace = %workspace.name(), error = %left, "a workspace that could not be mounted stays attached");
                }
                return Err(e);
            }
        };
        let status = workspace.status();
        let mounted = Mounted {
            workspace: workspace.name().clone(),
            epoch: workspace.epoch().0,
            root: report.as_ref().map_or(status.root, |r| r.root).map(|r| r.node.id.to_string()),
            lost_window: report.as_ref().map_or(LostWindow::None, |r| r.lost_window),
            created: report.as_ref().is_some_and(|r| r.created),
            recovered_operations: report.as_ref().map_or(0, |r| r.recovered_operations),
            read_only: workspace.is_read_only(),
            mountpoint: mountpoint.clone(),
            pid: std::process::id(),
            cache_dir: self.options.cache_dir.clone(),
        };
        self.tell(What::Attached, &mounted.workspace, &mountpoint, "");
        self.live(mountpoint, mount, workspace, store);
        tracing::info!(workspace = %mounted.workspace, epoch = mounted.epoch, read_only = mounted.read_only, "mounted");
        Ok(mounted)
    }

    pub(super) fn attach_request(store: &str, opening: &Opening, off: Arc<AtomicBool>) -> Result<AttachRequest> {
        let mut request = AttachRequest::new(store, opening.name.clone())?;
        request.origin = match &opening.origin {
            Some(source) => Origin::Source(source.clone()),
            None if opening.existing => Origin::Existing,
            None => Origin::Empty,
        };
        request.durability = opening.durability;
        request.backlog_limit = opening.backlog_limit;
        request.quota = opening.quota;
        request.take_over = opening.take_over;
        request.called_off = off;
        if let Some(domain) = &opening.domain {
            request.domain = domain.clone();
        }
        Ok(request)
    }

    async fn open_for_write(
        &self,
        store: &str,
        opening: Opening,
        off: Arc<AtomicBool>,
        talk: &mut Talk,
    ) -> Result<(Workspace, Option<AttachReport>)> {
        let request = Self::attach_request(store, &opening, off)?;
        let doing = || Progress {
            doing: format!("opening workspace {}; a writer elsewhere is watched for a while", opening.name),
            left_bytes: None,
        };
        let engine = self.engine.clone();
        let attach = on_thread(move || async move { engine.attach(request).await });
        let (workspace, report) = talk.during(Box::pin(attach), doing).await?;
        Ok((workspace, Some(report)))
    }

    async fn open_read_only(&self, store: &str, source: String, talk: &mut Talk) -> Result<Workspace> {
        let doing = || Progress { doing: format!("reading {source}"), left_bytes: None };
        let (engine, store, name) = (self.engine.clone(), store.to_owned(), source.clone());
        let attach = on_thread(move || async move { engine.attach_read_only(&store, &name).await });
        talk.during(Box::pin(attach), doing).await
    }

    fn reserve(&self, call: &MountCall) -> Result<(Reserved<'_>, Arc<AtomicBool>)> {
        let mut mounts = self.mounts.lock();
        let at = &call.mountpoint;
        if mounts.live.contains_key(at) || mounts.coming.contains_key(at) {
            return Err(Error::conflict("another workspace is mounted here").at(at.display()).hint("use another mount point"));
        }
        let writes = match &call.what {
            Wanted::Workspace(opening) => Some(opening.name.clone()),
            Wanted::ReadOnly(_) => None,
        };
        if let Some(name) = &writes {
            let same = |l: &&Live| !l.workspace.is_read_only() && l.store == call.store && l.workspace.name() == name;
            if let Some(l) = mounts.live.values().find(same) {
                return Err(Error::conflict(format!("workspace {name} is mounted on {} already", l.mount.mountpoint().display()))
                    .hint("unmount it first, or fork it: a workspace has one writer"));
            }
            if mounts.coming.values().any(|c| c.store == call.store && c.writes == writes) {
                return Err(Error::conflict(format!("workspace {name} is being mounted by another call")).hint("wait for that one"));
            }
        }
        let off = Arc::new(AtomicBool::new(false));
        mounts.coming.insert(at.clone(), Coming { store: call.store.clone(), writes, stage: Stage::Opening, off: off.clone() });
        Ok((Reserved(self, at.clone()), off))
    }

    /// The last moment at which a mount can be called off.
    fn enter(&self, at: &Path) -> Result<()> {
        match self.mounts.lock().coming.get_mut(at) {
            Some(c) if c.stage == Stage::Cancelled => {
                Err(Error::closed("the mount was called off by an unmount").at(at.display()).hint("mount it again"))
            }
            Some(c) => {
                c.stage = Stage::Mounting;
                Ok(())
            }
            None => Err(Error::internal("a mount is made that was not announced").at(at.display())),
        }
    }

    /// Calls a mount off that is being made. True where it will not appear; false where none was being made, or where it is mounted now.
    pub(super) async fn call_off(&self, at: &Path, workspace: Option<&Name>) -> bool {
        let meant = |c: &&mut Coming| workspace.is_none() || c.writes.as_ref() == workspace;
        match self.mounts.lock().coming.get_mut(at).filter(meant) {
            None => return false,
            Some(c) if c.stage == Stage::Mounting => {}
            Some(c) => {
                c.stage = Stage::Cancelled;
                c.off.store(true, Ordering::Relaxed);
                self.changed.notify_waiters();
                return true;
            }
        }
        self.changed_until(|m| !m.coming.contains_key(at)).await;
        false
    }

    /// Returns once a mount that is being made at `at` was called off; never where it is not.
    pub(super) async fn called_off(&self, at: &Path) {
        self.changed_until(|m| m.coming.get(at).is_some_and(|c| c.stage == Stage::Cancelled)).await;
    }

    /// Returns once nothing is mounted at `at`, nor being unmounted.
    pub(super) async fn left_from(&self, at: &Path) {
        self.changed_until(|m| !m.live.contains_key(at)).await;
    }

    /// The mounts with their workspaces and stores, and what is being published of others.
    pub(super) fn rows(&self) -> (Vec<Row>, Vec<(String, Name)>) {
        let mounts = self.mounts.lock();
        let mut live: Vec<_> = mounts.live.values().map(|l| (l.mount.clone(), l.workspace.clone(), l.store.clone())).collect();
        live.sort_by(|a, b| a.0.mountpoint().cmp(b.0.mountpoint()));
        let mut draining: Vec<_> = mounts.draining.iter().cloned().collect();
        draining.sort();
        (live, draining)
    }

    /// A mount is served from now on.
    pub(super) fn live(&self, at: PathBuf, mount: fuse::Mount, workspace: Workspace, store: String) {
        self.mounts.lock().live.insert(at, Live { mount, workspace, store, leaving: false, syncing: Turn::default() });
        self.changed.notify_waiters();
    }

    /// A mount of the daemon before is there, and will be served once it is taken over.
    pub(super) fn announce(&self, call: &MountCall) -> Result<()> {
        let (reserved, _) = self.reserve(call)?;
        // Its place is given back by `arrived`.
        std::mem::forget(reserved);
        match self.mounts.lock().coming.get_mut(&call.mountpoint) {
            Some(c) => c.stage = Stage::Mounting,
            None => return Err(Error::internal("an announced mount vanished")),
        }
        Ok(())
    }

    /// It is taken over, or lost.
    pub(super) fn arrived(&self, at: &Path) {
        drop(Reserved(self, at.to_owned()));
    }

    #[tracing::instrument(skip_all)]
    pub(super) async fn snapshot(&self, of: Selector, name: Option<Name>, wait: bool, talk: &mut Talk) -> Result<Snapshotted> {
        let live = self.writable(&of)?;
        let unsynced = self.synced(&live, talk).await;
        let workspace = live.workspace;
        let name = match name {
            Some(name) => name,
            None => self.made_up(workspace.name())?,
        };
        let (tell, told) = tokio::sync::oneshot::channel();
        let shown = name.clone();
        let confirmed = move |r| {
            if let Err(e) = &r {
                tracing::error!(snapshot = %shown, error = %e, "a snapshot was not replicated");
            }
            // Nobody waits without --wait.
            let _ = tell.send(r);
        };
        let cut = workspace.snapshot(&name, confirmed).await?;
        let lineage = Cut { workspace: workspace.name().clone(), epoch: workspace.epoch().0, sequence: cut.0 };
        let local = hiloop_engine::workspace::Durability::Local;
        if !wait {
            return Ok(Snapshotted { snapshot: name, root: None, durability: local, lineage, unsynced });
        }
        let lost = |_| Err(Error::closed("the workspace was closed before the snapshot was replicated").at(&name));
        let doc = talk.during(Box::pin(told), || left(&workspace, "replicating")).await.unwrap_or_else(lost)?;
        let root = Some(doc.root.node.id.to_string());
        Ok(Snapshotted { snapshot: name, root, durability: hiloop_engine::workspace::Durability::Replicated, lineage, unsynced })
    }

    /// A free name for a snapshot: the workspace, the time, a little chance.
    fn made_up(&self, workspace: &Name) -> Result<Name> {
        let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + self.env.wall()).to_string();
        let at: String = at.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let tail = format!("-{at}-{:04x}", self.env.random_u32() & 0xffff);
        let stem: String = workspace.as_str().chars().take(Name::MAX - tail.len()).collect();
        Name::new(NameKind::Snapshot, stem + &tail)
    }

    #[tracing::instrument(skip_all)]
    pub(super) async fn flush(&self, of: Selector, talk: &mut Talk) -> Result<Flushed> {
        let live = self.writable(&of)?;
        let unsynced = self.synced(&live, talk).await;
        let workspace = live.workspace;
        talk.during(Box::pin(workspace.flush()), || left(&workspace, "publishing")).await?;
        let status = workspace.status();
        Ok(Flushed { workspace: status.name, published: status.published, root: status.root.map(|r| r.node.id.to_string()), unsynced })
    }

    /// Why changed pages may be missing in what is cut next.
    async fn synced(&self, live: &Live, talk: &mut Talk) -> Option<String> {
        let doing = || left(&live.workspace, "having changed pages written back of");
        talk.during(Box::pin(self.written_back(&live.mount, &live.syncing, BEFORE_A_CUT)), doing).await
    }

    /// Detaches the mount, publishes what there is within `timeout`, and gives the head back.
    #[tracing::instrument(skip_all)]
    pub(super) async fn unmount(self: &Arc<Self>, of: Selector, timeout: Duration, talk: &mut Talk) -> Result<Unmounted> {
        let live = self.one(&of)?;
        let at = live.mount.mountpoint().to_owned();
        self.leave(&at)?;
        let workspace = live.workspace.clone();
        let started = self.env.monotonic();
        // What is still missing after that the kernel brings as it unmounts.
        talk.during(Box::pin(self.written_back(&live.mount, &live.syncing, timeout)), || {
            left(&workspace, "having changed pages written back of")
        })
        .await;
        let rest = timeout.saturating_sub(self.env.monotonic().saturating_sub(started));
        let ended = talk.during(Box::pin(self.end(&live, rest)), || left(&workspace, "publishing")).await;
        if let Ok(e) = &ended {
            if e.left_bytes > 0 {
                self.drain(live.store.clone(), live.workspace.clone());
            }
            self.tell(What::Detached, live.workspace.name(), &at, "");
        }
        self.left(&at, ended.is_ok());
        ended
    }

    fn leave(&self, at: &Path) -> Result<()> {
        match self.mounts.lock().live.get_mut(at) {
            Some(l) if !l.leaving => {
                l.leaving = true;
                Ok(())
            }
            Some(_) => Err(Error::conflict("it is being unmounted already").at(at.display()).hint("wait for that one")),
            None => Err(Error::not_found("it is not mounted any more").at(at.display())),
        }
    }

    fn left(&self, at: &Path, gone: bool) {
        let mut mounts = self.mounts.lock();
        if gone {
            mounts.live.remove(at);
        } else if let Some(l) = mounts.live.get_mut(at) {
            l.leaving = false;
        }
        drop(mounts);
        self.changed.notify_waiters();
    }

    /// Takes the mount out of the tree, then lets go of the workspace. Only a mount that cannot be taken away is an error.
    async fn end(&self, live: &Live, timeout: Duration) -> Result<Unmounted> {
        let started = self.env.monotonic();
        let mount = live.mount.clone();
        let busy = blocking(move || detach(&mount)).await?;
        let rest = timeout.saturating_sub(self.env.monotonic().saturating_sub(started));
        let report = self.let_go(&live.workspace, live.mount.is_alive(), rest).await?;
        let workspace = live.workspace.name().clone();
        let DetachReport { published, left_bytes, released } = report;
        tracing::info!(%workspace, published, left_bytes, busy, "unmounted");
        Ok(Unmounted { workspace, published, left_bytes, released, busy })
    }

    /// Detaches a workspace whose mount is gone, or out of the tree and still `served` to those who have files open.
    pub(super) async fn let_go(&self, workspace: &Workspace, served: bool, timeout: Duration) -> Result<DetachReport> {
        let status = workspace.status();
        if workspace.is_read_only() {
            // While processes still read in a detached mount the tree stays protected: the lease then ends with their last descriptor.
            if !served {
                match tokio::time::timeout(timeout.max(SERVING_ENDS), workspace.release_lease()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => tracing::warn!(tree = %workspace.name(), error = %e, "the lease of a read-only mount stays; see `gc`"),
                    Err(_) => {
                        tracing::warn!(tree = %workspace.name(), "the store did not take the lease of a read-only mount back; see `gc`")
                    }
                }
            }
            return Ok(DetachReport { published: status.published, left_bytes: 0, released: true });
        }
        match self.engine.detach(workspace, timeout).await {
            // Fenced before: the engine has put its tail aside for `recover`.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let left_bytes = status.backlog_bytes.max(status.backlog_operations);
                Ok(DetachReport { published: status.published, left_bytes, released: false })
            }
            other => other,
        }
    }

    /// Lets go of workspaces whose mount was taken away from outside (`umount`), or whose serving thread failed.
    pub(super) fn sweep(self: &Arc<Self>) {
        let ended: Vec<Live> = {
            let mut mounts = self.mounts.lock();
            let gone = mounts.live.values_mut().filter(|l| !l.leaving && !l.mount.is_alive());
            gone.map(|l| {
                l.leaving = true;
                l.clone()
            })
            .collect()
        };
        for live in ended {
            let daemon = self.clone();
            tokio::spawn(async move {
                let name = live.workspace.name();
                if let Err(e) = live.mount.wait(Some(Duration::ZERO)) {
                    tracing::error!(workspace = %name, error = %e, "a mount ended by itself");
                }
                match daemon.let_go(&live.workspace, false, LET_GO).await {
                    Ok(r) => {
                        tracing::info!(workspace = %name, left_bytes = r.left_bytes, "mount ended; workspace detached");
                        if r.left_bytes > 0 {
                            daemon.drain(live.store.clone(), live.workspace.clone());
                        }
                    }
                    Err(e) => tracing::warn!(workspace = %name, error = %e, "mount ended; workspace could not be detached"),
                }
                daemon.tell(What::Ended, name, live.mount.mountpoint(), "");
                daemon.left(live.mount.mountpoint(), true);
            });
        }
    }

    async fn changed_until(&self, holds: impl Fn(&Mounts) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if holds(&self.mounts.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Gives the head of an unmounted workspace back once its rest is published, unless it is mounted again before.
    fn drain(self: &Arc<Self>, store: String, workspace: Workspace) {
        let key = (store, workspace.name().clone());
        if !self.mounts.lock().draining.insert(key.clone()) {
            return;
        }
        let daemon = self.clone();
        tokio::spawn(async move {
            let published = workspace.flush().await;
            let close = {
                let mut mounts = daemon.mounts.lock();
                let close = !mounts.is_open(&key);
                if close {
                    mounts.closing.insert(key.clone());
                }
                close
            };
            if close {
                match (published, daemon.let_go(&workspace, false, LET_GO).await) {
                    (Ok(_), Ok(r)) => {
                        tracing::info!(workspace = %key.1, published = r.published, released = r.released, "the rest is published");
                        daemon.tell(What::Drained, &key.1, Path::new(""), "");
                    }
                    (Err(e), _) | (_, Err(e)) => tracing::warn!(workspace = %key.1, error = %e, "the rest was not published"),
                }
            }
            let mut mounts = daemon.mounts.lock();
            mounts.closing.remove(&key);
            mounts.draining.remove(&key);
            drop(mounts);
            daemon.changed.notify_waiters();
        });
    }

    /// Publishes what an earlier daemon of this directory left in the journal, where its head still names that opening: nobody may ever
    /// mount it here again, and until it is given back no other node gets it without a lost window.
    ///
    /// `left` was announced by [`Self::hold`].
    pub(super) async fn resume(self: Arc<Self>, left: Vec<(String, Name)>) {
        // Side by side: a store that is away must not hold up what belongs to another.
        let refused = futures::future::join_all(left.into_iter().map(|key| self.resume_one(key))).await;
        let stores: BTreeSet<String> = refused.into_iter().flatten().collect();
        for store in stores {
            self.recover_taken(&store).await;
        }
        self.resuming.store(false, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Openings that another one followed become workspaces of their own. What fails is tried again at the next start, or by `recover`.
    pub(super) async fn recover_taken(&self, store: &str) {
        match self.engine.recover(store).await {
            Ok(made) => {
                for r in made {
                    tracing::warn!(workspace = %r.from, recovered = %r.name, operations = r.operations, bytes = r.bytes, "a workspace was taken over; what this node had not published is in one of its own");
                }
            }
            Err(e) => tracing::warn!(error = %e, "what was left of workspaces that were taken over stays in the journal; see `recover`"),
        }
    }

    /// The store, where the workspace is another opening's by now.
    async fn resume_one(self: &Arc<Self>, key: (String, Name)) -> Option<String> {
        let (store, name) = key.clone();
        let mut said = false;
        let attached = loop {
            let (engine, mut request) = match AttachRequest::new(store.as_str(), name.clone()) {
                Ok(request) => (self.engine.clone(), request),
                Err(e) => break Err(e),
            };
            request.origin = Origin::OwnTail;
            self.hold(std::slice::from_ref(&key));
            match on_thread(move || async move { engine.attach(request).await }).await {
                // The store is away, or refuses credentials that somebody will renew, or the disk is full.
                Err(e) if !self.is_settled(e.kind(), &store, &name).await && !self.is_closing() => {
                    // Once: an outage is long, and a node has many workspaces.
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(workspace = %name, error = %e, "what an earlier daemon left cannot be published yet");
                    }
                    self.let_pass(&key);
                    tokio::time::sleep(RESUME_PAUSE).await;
                }
                other => break other,
            }
        };
        let mut taken = None;
        match attached {
            Ok((workspace, report)) => {
                tracing::info!(workspace = %name, operations = report.recovered_operations, "publishing what an earlier daemon left");
                // At once in the state of an unmounted workspace that drains: a mount takes it back from there.
                match self.engine.detach(&workspace, Duration::ZERO).await {
                    Ok(r) if r.left_bytes > 0 || !r.released => self.drain(store, workspace),
                    Ok(_) => {}
                    Err(e) => tracing::warn!(workspace = %name, error = %e, "what an earlier daemon left is not published"),
                }
            }
            // Mounted meanwhile, or another's now.
            Err(e) => {
                tracing::info!(workspace = %name, error = %e, "what an earlier daemon left is not taken up again");
                taken = (e.kind() == ErrorKind::Conflict).then(|| key.0.clone());
            }
        }
        self.let_pass(&key);
        taken
    }

    /// True for a refusal that asking again would not change: the workspace is another's, open here already, or gone.
    async fn is_settled(&self, kind: ErrorKind, store: &str, name: &Name) -> bool {
        match kind {
            ErrorKind::Conflict | ErrorKind::Fenced | ErrorKind::Closed => true,
            // Something that it needs may be missing, too.
            ErrorKind::NotFound => self.is_gone(store, name).await,
            _ => false,
        }
    }

    /// True where the store answers that there is no such workspace any more.
    pub(super) async fn is_gone(&self, store: &str, name: &Name) -> bool {
        let head = async { self.engine.context(store).await?.catalog.get::<Head>(name.as_str()).await };
        head.await.is_ok_and(|found| found.is_none_or(|f| f.doc.tombstone))
    }

    /// Returns once all that an earlier daemon left was taken up, as far as it can be.
    pub(super) async fn resumed(&self) {
        self.changed_until(|_| !self.resuming.load(Ordering::SeqCst)).await;
    }

    /// Lets openings of these workspaces wait.
    pub(super) fn hold(&self, workspaces: &[(String, Name)]) {
        self.mounts.lock().closing.extend(workspaces.iter().cloned());
    }

    fn let_pass(&self, key: &(String, Name)) {
        self.mounts.lock().closing.remove(key);
        self.changed.notify_waiters();
    }

    /// Answers once the mount is gone.
    pub(super) async fn wait(&self, of: Selector, talk: &mut Talk) -> Result<()> {
        let live = self.one(&of)?;
        let gone = self.changed_until(|m| !m.live.contains_key(live.mount.mountpoint()));
        let doing = || Progress { doing: format!("{} is mounted", live.workspace.name()), left_bytes: None };
        talk.during(Box::pin(gone), doing).await;
        Ok(())
    }

    #[tracing::instrument(skip_all)]
    pub(super) async fn recover(&self, store: &str, talk: &mut Talk) -> Result<Recovery> {
        let doing = || Progress { doing: "publishing what openings left behind".into(), left_bytes: None };
        let recovered = talk.during(Box::pin(self.engine.recover(store)), doing).await?;
        let encode = |r| serde_json::to_value(r).map_err(|e| Error::internal(format!("cannot encode a recovered workspace: {e}")));
        Ok(Recovery { forks: recovered.into_iter().map(encode).collect::<Result<_>>()? })
    }

    /// At the end of the daemon: all mounts at once that end with it.
    pub(super) async fn end_all(&self, grace: Duration) {
        let all: Vec<Live> = self.mounts.lock().live.values().filter(|l| !l.mount.is_kept()).cloned().collect();
        let ending = all.into_iter().filter(|l| self.leave(l.mount.mountpoint()).is_ok()).map(|live| async move {
            // Published before the mount goes: what is accepted meanwhile is little.
            let flushed = tokio::time::timeout(grace, live.workspace.flush()).await;
            let rest = if matches!(flushed, Ok(Ok(_))) { SERVING_ENDS } else { Duration::ZERO };
            let name = live.workspace.name();
            match self.end(&live, rest).await {
                Ok(r) if r.left_bytes > 0 => {
                    tracing::warn!(workspace = %name, left_bytes = r.left_bytes, "ends with writes that are only on this node");
                }
                Ok(_) => {}
                Err(e) => tracing::error!(workspace = %name, error = %e, "a mount could not be ended"),
            }
            self.left(live.mount.mountpoint(), true);
        });
        futures::future::join_all(ending).await;
    }
}

/// True where the kernel has the mount where it was made, and it is answered.
pub(super) fn is_there(mount: &fuse::Mount) -> Result<bool> {
    let there = fuse::find_mount(mount.mountpoint())?;
    Ok(mount.is_alive() && there.is_some_and(|m| m.is_ours() && mount.connection().is_none_or(|c| c == m.minor)))
}

/// Unmounts; where files are open, out of the tree first, and their users have a moment before they are cut off. True where they were.
fn detach(mount: &fuse::Mount) -> Result<bool> {
    let unmounted = mount.unmount(true)?;
    if unmounted == fuse::Unmounted::Done {
        ended(mount, SERVING_ENDS);
        return Ok(false);
    }
    if ended(mount, USERS_LEAVE) {
        return Ok(false);
    }
    match mount.abort() {
        Ok(()) => drop(ended(mount, SERVING_ENDS)),
        // Their requests fail once the workspace is closed.
        Err(e) => tracing::warn!(error = %e, "the users of a detached mount could not be cut off"),
    }
    Ok(true)
}

/// True where no request can come any more.
fn ended(mount: &fuse::Mount, within: Duration) -> bool {
    match mount.wait(Some(within)) {
        Ok(ended) => ended,
        Err(e) => {
            tracing::debug!(error = %e, "the mount ended with an error");
            true
        }
    }
}

pub(super) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(Error::internal(format!("a thread died: {e}"))))
}

/// Runs a future of the engine that is not provably `Send` on a thread of the blocking pool.
pub(super) async fn on_thread<T: Send + 'static, F: Future<Output = Result<T>>>(make: impl FnOnce() -> F + Send + 'static) -> Result<T> {
    let runtime = tokio::runtime::Handle::current();
    blocking(move || runtime.block_on(make())).await
}

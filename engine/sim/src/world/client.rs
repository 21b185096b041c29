//! Clients: they act on one node at a time, through the engine's own interface, and tell the model what they were answered.

use std::sync::Arc;
use std::time::Duration;

use hiloop_engine::catalog::DeletedKind;
use hiloop_engine::delete::delete;
use hiloop_engine::fork::{ForkOptions, fork};
use hiloop_engine::gc::{GcOptions, gc};
use hiloop_engine::node::AttachRequest;
use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Admission, Cost, Durability, Workspace};
use hiloop_types::{Error, ErrorKind, Result, limits};
use tokio::sync::oneshot;

use super::World;
use super::model::{Attached, Cut, Known, Snapshot};
use super::nodes::{Mount, Running, URL, name};
use super::plan::Act;
use super::planted::Lie;
use super::tree::{DIRS, Op, PATHS, Tree, perform, read_file, read_tree};

/// Workspaces at which no more are made.
const WORKSPACES_MAX: usize = 8;
/// Bytes that a file may have.
const FILE_MAX: u64 = 300_000;
/// Attempts at reading what should be there, before it counts as missing.
const READS_MAX: u64 = 5;

/// Acts until its steps are done.
pub(super) async fn live(world: Arc<World>) {
    let total: u64 = world.plan.acts.iter().map(|(_, w)| w).sum();
    for _ in 0..world.plan.steps {
        if world.is_over() {
            return;
        }
        world.env.sleep(Duration::from_millis(world.exec.below(150))).await;
        let index = world.exec.below(world.nodes.len() as u64) as usize;
        let mut at = world.exec.below(total);
        let drawn = world.plan.acts.iter().find(|(_, weight)| {
            let hit = at < *weight;
            at = at.saturating_sub(*weight);
            hit
        });
        let (Some(running), Some((act, _))) = (world.running(index), drawn) else { continue };
        let (inner, act, env) = (world.clone(), *act, running.env.clone());
        let task = env.spawn(Box::pin(async move { Client { world: inner, node: index, running }.act(act).await }));
        // It dies with its node.
        let _ended = task.await;
    }
}

/// A client on a node.
pub(super) struct Client {
    pub world: Arc<World>,
    pub node: usize,
    pub running: Running,
}

impl Client {
    async fn act(&self, act: Act) {
        let done = match act {
            Act::Change => self.change().await,
            Act::Read => self.read().await,
            Act::Sync => self.sync().await,
            Act::Flush => self.flush().await,
            Act::Snapshot => self.snapshot().await,
            Act::Fork => self.fork().await,
            Act::Attach => self.attach_any().await,
            Act::Detach => self.detach().await,
            Act::DeleteSnapshot => self.delete_snapshot().await,
            Act::DeleteWorkspace => self.delete_workspace().await,
            Act::Collect => self.collect().await,
            Act::Look => self.look().await,
            Act::Recover => self.recover().await,
            Act::Forget => {
                self.running.memory.forget();
                Ok(())
            }
        };
        self.tolerate(&format!("{act:?}"), done);
    }

    /// Errors that a caller must expect are no broken promise.
    fn tolerate(&self, what: &str, done: Result<()>) {
        let Err(e) = done else { return };
        self.world.exec.note(|| format!("n{} {what}: {e}", self.node));
        let ailing = {
            let node = self.world.nodes[self.node].lock();
            node.sick || node.ground.disk.is_off()
        };
        if !ailing && matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Internal | ErrorKind::Invalid | ErrorKind::Denied) {
            self.world.report.violation(format!("{what} on n{} answers {:?}: {e}", self.node, e.kind()));
        }
    }

    pub(super) fn mount(&self) -> Option<Mount> {
        let all: Vec<Mount> = self.running.mounts.lock().values().cloned().collect();
        self.world.pick(&all)
    }
    fn is_lost(&self, session: u64) -> bool {
        self.world.model.lock().openings.get(&session).is_none_or(|h| h.lost)
    }
    fn now(&self) -> Duration {
        self.world.exec.now()
    }
    fn below(&self, n: u64) -> u64 {
        self.world.exec.below(n)
    }

    fn choose(&self, tree: &Tree) -> Option<Op> {
        (0..12).find_map(|_| {
            let path = PATHS[self.below(8) as usize];
            let other = PATHS[self.below(8) as usize];
            let len = [1, 100, 3000, 5000, 20_000, 70_000, 140_000][self.below(7).min(self.below(7)) as usize];
            let size = tree.names.get(path).map_or(0, |ino| tree.files[ino].len() as u64);
            let op = match self.below(20) {
                0 | 1 => Op::Truncate { path, size: self.below(2 * size + 2).min(FILE_MAX) },
                2 => Op::Punch { path, from: self.below(size + 1), to: self.below(size + 5000) },
                3 => Op::Clone { from: path, to: other, len: self.below(size + 1) },
                4 | 5 => Op::Unlink(path),
                6 | 7 => Op::Rename(path, other),
                8 => Op::Link(path, other),
                9 => Op::Mkdir(DIRS[self.below(2) as usize]),
                10 => Op::Rmdir(DIRS[self.below(2) as usize]),
                11..=13 => Op::Write { path, offset: self.below(size + 4000).min(FILE_MAX - len), len, fill: self.below(7) },
                _ => Op::Write { path, offset: 0, len, fill: self.below(7) },
            };
            tree.admits(&op).then_some(op)
        })
    }

    async fn change(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return self.attach_any().await };
        let Ok(_user) = mount.users.clone().try_read_owned() else { return Ok(()) };
        for _ in 0..=self.below(6) {
            self.change_once(&mount.workspace).await?;
        }
        Ok(())
    }

    async fn change_once(&self, w: &Workspace) -> Result<()> {
        let session = w.session().0;
        let Some(tree) = self.world.model.lock().openings.get(&session).map(|h| h.last().clone()) else { return Ok(()) };
        match self.choose(&tree) {
            Some(op) => self.perform(w, op).await,
            None => Ok(()),
        }
    }

    /// Does one operation, unless another client was quicker and it makes no sense any more.
    pub(super) async fn perform(&self, w: &Workspace, op: Op) -> Result<()> {
        let session = w.session().0;
        let bytes = if let Op::Write { len, .. } = &op { *len } else { 0 };
        self.room(w, Cost { bytes, exempt: bytes == 0 }).await;
        let mut tries = 0;
        loop {
            let admitted = self.world.model.lock().openings.get(&session).is_some_and(|h| h.last().admits(&op));
            if !admitted {
                return Ok(());
            }
            match w.update(|txn| perform(txn, &op)) {
                Ok((made, seqno)) => {
                    self.world.exec.note(|| format!("n{} {} {seqno}: {op:?}", self.node, w.name()));
                    self.world.model.lock().accepted(session, &op, made, seqno.0, self.now());
                    self.world.report.count("change");
                    return Ok(());
                }
                Err(Stop::Error(e)) => return self.forgive(session, e),
                Err(Stop::Miss(miss)) => {
                    self.world.report.count("miss of a change");
                    if let Err(e) = fetch(w, miss).await {
                        tries += 1;
                        self.unreadable(session, e, tries).await?;
                    }
                }
            }
        }
    }

    /// Waits until the backlog has room, as a request would.
    async fn room(&self, w: &Workspace, cost: Cost) {
        match w.admit(cost) {
            Admission::Go => {}
            Admission::Delay(time) => self.running.env.sleep(time).await,
            Admission::Wait => {
                self.world.report.count("writer that waited");
                let (tx, rx) = oneshot::channel();
                w.when_room(cost, Box::new(move || _ = tx.send(())));
                let _woken = rx.await;
            }
        }
    }

    /// Errors of a deleted workspace say nothing.
    fn forgive(&self, session: u64, e: Error) -> Result<()> {
        if self.is_lost(session) { Ok(()) } else { Err(e) }
    }

    /// Something cannot be read: for now, or for good.
    async fn unreadable(&self, session: u64, e: Error, tries: u64) -> Result<()> {
        let away = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
        if self.is_lost(session) || (away && tries >= READS_MAX) {
            return Err(Error::unavailable(e.to_string()));
        }
        if tries >= READS_MAX {
            return Err(Error::corrupt(format!("a reachable thing is gone or damaged for good: {e}")));
        }
        self.running.env.sleep(Duration::from_millis(50)).await;
        Ok(())
    }

    pub(super) async fn read(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(_user) = mount.users.clone().try_read_owned() else { return Ok(()) };
        let path = PATHS[self.below(8) as usize];
        let one = self.below(3) > 0;
        self.read_mount(&mount, one.then_some(path)).await
    }

    /// Reads one file or everything, and holds it against what was written.
    pub(super) async fn read_mount(&self, mount: &Mount, one: Option<&str>) -> Result<()> {
        let session = mount.workspace.session().0;
        for tries in 1.. {
            let read = mount.workspace.settled(|w| {
                let view = w.view();
                let model = self.world.model.lock();
                let Some(h) = model.openings.get(&session).filter(|h| !h.lost) else { return Ok(Ok(())) };
                let expected = h.last();
                let held = if let Some(path) = one {
                    let found = read_file(&view, path)?;
                    let wanted = expected.names.get(path).map(|ino| &*expected.files[ino]);
                    if found.as_ref() == wanted {
                        Ok(())
                    } else {
                        Err(format!("a read of {path} in {} is not what was written", h.workspace))
                    }
                } else {
                    let found = read_tree(&view)?;
                    if found == **expected { Ok(()) } else { Err(format!("{} reads {found:?} instead of {expected:?}", h.workspace)) }
                };
                Ok(held)
            });
            match read.await {
                Ok(held) => {
                    self.world.check(held);
                    self.world.report.count("read");
                    return Ok(());
                }
                Err(e) => self.unreadable(session, e, tries).await?,
            }
        }
        Ok(())
    }

    pub(super) async fn sync(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(_user) = mount.users.clone().try_read_owned() else { return Ok(()) };
        let (w, upto) = (&mount.workspace, mount.workspace.accepted());
        let (tx, rx) = oneshot::channel();
        w.sync(upto, Box::new(move |done| drop(tx.send(done))));
        rx.await.unwrap_or_else(|_| Err(Error::closed("the node went down")))?;
        self.world.report.count("sync");
        let mut model = self.world.model.lock();
        model.synced(w.session().0, upto.0);
        let held = if w.durability() == Durability::Replicated { model.published(w.session().0, upto.0) } else { Ok(()) };
        drop(model);
        self.world.check(held);
        Ok(())
    }

    pub(super) async fn flush(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(_user) = mount.users.clone().try_read_owned() else { return Ok(()) };
        self.flush_mount(&mount).await
    }
    pub(super) async fn flush_mount(&self, mount: &Mount) -> Result<()> {
        let upto = mount.workspace.flush().await?;
        self.world.report.count("flush");
        let held = self.world.model.lock().published(mount.workspace.session().0, upto.0);
        self.world.check(held);
        Ok(())
    }

    pub(super) async fn snapshot(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(_user) = mount.users.clone().try_read_owned() else { return Ok(()) };
        let (w, called) = (&mount.workspace, self.world.fresh("s"));
        let session = w.session().0;
        {
            let mut model = self.world.model.lock();
            let Some(from) = model.openings.get(&session).filter(|h| !h.lost).map(|h| h.points.len() - 1) else { return Ok(()) };
            model.snapshots.insert(called.clone(), Snapshot { cut: Cut::From(session, from), replicated: false, deleted: false });
        }
        let (world, inner) = (self.world.clone(), called.clone());
        let cut = w
            .snapshot(&name(&called), move |done| {
                let Ok(doc) = done else { return };
                world.report.count("replicated snapshot");
                let mut model = world.model.lock();
                model.cut(&inner, session, doc.sequence);
                if let Some(s) = model.snapshots.get_mut(&inner) {
                    s.replicated = true;
                }
                let held = model.published(session, doc.sequence);
                drop(model);
                world.check(held);
            })
            .await?;
        self.world.exec.note(|| format!("n{} {} cut {called} at {cut}", self.node, w.name()));
        let mut model = self.world.model.lock();
        model.cut(&called, session, cut.0);
        // `local` is on the disk.
        model.synced(session, cut.0);
        Ok(())
    }

    pub(super) async fn fork(&self) -> Result<()> {
        let (source, floor, of) = {
            let model = self.world.model.lock();
            if model.workspaces.len() >= WORKSPACES_MAX {
                return Ok(());
            }
            let snapshots: Vec<String> = model.snapshots.iter().filter(|(_, s)| !s.deleted).map(|(n, _)| n.clone()).collect();
            let workspaces: Vec<String> = model.workspaces.iter().filter(|(_, k)| !k.lost).map(|(n, _)| n.clone()).collect();
            match (self.world.pick(&snapshots), self.world.pick(&workspaces)) {
                (Some(s), _) if self.below(3) > 0 => (format!("snapshot:{s}"), None, s),
                (_, Some(w)) => (format!("workspace:{w}"), Some(model.fork_floor(&w)), w),
                _ => return Ok(()),
            }
        };
        let children: Vec<String> = (0..=self.below(2)).map(|_| self.world.fresh("k")).collect();
        let results =
            fork(&self.running.context("fork", Some(Lie::SecondReadFromMemory)), &source, &children, &ForkOptions::default()).await?;
        let mut model = self.world.model.lock();
        let start = match floor {
            None => model.snapshot_trees(&of),
            Some(since) => model.fork_of(&of, since),
        };
        for r in results {
            self.world.exec.note(|| format!("n{} fork {source} {}: {:?}", self.node, r.name, r.error));
            if r.error.is_none() {
                self.world.report.count("fork");
                model.workspaces.insert(r.name, Known { start: start.clone(), lost: false });
            }
        }
        Ok(())
    }

    async fn attach_any(&self) -> Result<()> {
        let chosen = {
            let mut model = self.world.model.lock();
            let mounted = self.running.mounts.lock();
            let free: Vec<String> =
                model.workspaces.iter().filter(|(n, k)| !k.lost && !mounted.contains_key(*n)).map(|(n, _)| n.clone()).collect();
            drop(mounted);
            let make = model.workspaces.len() < 2 || (model.workspaces.len() < WORKSPACES_MAX && self.below(8) == 0);
            if make {
                let again = if self.below(2) == 0 { model.deleted.pop() } else { None };
                let called = again.unwrap_or_else(|| self.world.fresh("w"));
                model.workspaces.insert(called.clone(), Known { start: vec![Arc::default()], lost: false });
                Some(called)
            } else {
                self.world.pick(&free)
            }
        };
        let Some(called) = chosen else { return Ok(()) };
        let take_over = self.below(2) == 0;
        self.attach(&called, take_over).await
    }

    /// Attaches a workspace, holds what is found against what is known, and mounts it.
    pub(super) async fn attach(&self, called: &str, take_over: bool) -> Result<()> {
        let durability = if self.below(6) == 0 { Durability::Replicated } else { Durability::Local };
        let backlog_limit = (self.below(4) == 0).then_some(60_000);
        let request = AttachRequest { take_over, durability, backlog_limit, owner: (0, 0), ..AttachRequest::new(URL, name(called))? };
        let (w, report) = self.running.engine.attach(request).await?;
        let session = report.session.0;
        self.world.exec.note(|| format!("n{} attached {called} epoch {} {:?}", self.node, report.epoch, report.lost_window));
        let mut tries = 0;
        let tree = loop {
            match w.settled(|w| read_tree(&w.view())).await {
                Ok(tree) => break Arc::new(tree),
                Err(e) => {
                    let away = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
                    tries += u64::from(!away);
                    if self.world.model.lock().workspaces.get(called).is_none_or(|k| k.lost) {
                        return Ok(());
                    }
                    if tries >= READS_MAX {
                        return Err(Error::corrupt(format!("{called} cannot be read after attaching: {e}")));
                    }
                    self.running.env.sleep(Duration::from_millis(200)).await;
                }
            }
        };
        let attached = Attached { workspace: called, epoch: report.epoch.0, session, node: self.node, lost_window: report.lost_window };
        let held = self.world.model.lock().attached(&attached, tree, self.now());
        self.world.check(held);
        self.world.report.count("attach");
        if report.recovered_operations > 0 {
            self.world.report.count("attach with a tail");
        }
        self.running.mounts.lock().insert(called.to_owned(), Mount { workspace: w, users: Arc::default() });
        Ok(())
    }

    pub(super) async fn detach(&self) -> Result<()> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(_alone) = mount.users.clone().try_write_owned() else { return Ok(()) };
        let (w, session) = (&mount.workspace, mount.workspace.session().0);
        self.running.mounts.lock().retain(|_, m| m.workspace.session() != w.session());
        if let Some(h) = self.world.model.lock().openings.get_mut(&session) {
            h.releasing = true;
        }
        let report = self.running.engine.detach(w, Duration::from_secs(2)).await?;
        self.world.exec.note(|| format!("n{} detached {}: {report:?}", self.node, w.name()));
        if report.released {
            self.world.report.count("clean release");
            let mut model = self.world.model.lock();
            let held = model.published(session, u64::MAX);
            if let Some(h) = model.openings.get_mut(&session) {
                h.released = report.left_bytes == 0;
            }
            drop(model);
            self.world.check(held);
        }
        if report.left_bytes == 0
            && let Some(h) = self.world.model.lock().openings.get_mut(&session)
        {
            h.closed = true;
        }
        Ok(())
    }

    async fn delete_snapshot(&self) -> Result<()> {
        let chosen = {
            let mut model = self.world.model.lock();
            let all: Vec<String> = model.snapshots.iter().filter(|(_, s)| !s.deleted && s.replicated).map(|(n, _)| n.clone()).collect();
            let chosen = self.world.pick(&all);
            if let Some(s) = chosen.as_ref().and_then(|n| model.snapshots.get_mut(n)) {
                s.deleted = true;
            }
            chosen
        };
        let Some(called) = chosen else { return Ok(()) };
        delete(&self.running.context("sim", None), DeletedKind::Snapshot, &called, false).await?;
        self.world.report.count("deleted snapshot");
        Ok(())
    }

    async fn delete_workspace(&self) -> Result<()> {
        let chosen = {
            let mut model = self.world.model.lock();
            let all: Vec<String> = model.workspaces.iter().filter(|(_, k)| !k.lost).map(|(n, _)| n.clone()).collect();
            let chosen = if all.len() > 2 { self.world.pick(&all) } else { None };
            if let Some(n) = &chosen {
                model.lose(n);
            }
            chosen
        };
        let Some(called) = chosen else { return Ok(()) };
        delete(&self.running.context("sim", None), DeletedKind::Workspace, &called, true).await?;
        self.world.report.count("deleted workspace");
        let mut model = self.world.model.lock();
        model.workspaces.remove(&called);
        model.deleted.push(called);
        Ok(())
    }

    pub(super) async fn collect(&self) -> Result<()> {
        let options = GcOptions { grace: Duration::ZERO, ..GcOptions::default() };
        let report = gc(&self.running.context("collector", Some(Lie::NoSequenceRule)), options).await?;
        self.world.exec.note(|| format!("n{} collected {} packs, kept {}", self.node, report.packs_deleted, report.packs_kept));
        self.world.report.count("collection");
        for _ in 0..report.packs_deleted {
            self.world.report.count("collected pack");
        }
        for _ in 0..report.repacked {
            self.world.report.count("repacked pack");
        }
        Ok(())
    }

    pub(super) async fn look(&self) -> Result<()> {
        let all: Vec<String> = self.world.model.lock().snapshots.iter().filter(|(_, s)| !s.deleted).map(|(n, _)| n.clone()).collect();
        let Some(called) = self.world.pick(&all) else { return Ok(()) };
        self.look_at(&called).await
    }

    /// Reads a snapshot and holds it against its cut.
    pub(super) async fn look_at(&self, called: &str) -> Result<()> {
        let w = self.running.engine.attach_read_only(URL, &format!("snapshot:{called}")).await?;
        let mut tries = 0;
        let tree = loop {
            match w.settled(|w| read_tree(&w.view())).await {
                Ok(tree) => break tree,
                Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Closed) => return Err(e),
                Err(e) if tries >= READS_MAX => return Err(Error::corrupt(format!("snapshot {called} cannot be read: {e}"))),
                Err(_) => tries += 1,
            }
        };
        self.world.report.count("look at a snapshot");
        let model = self.world.model.lock();
        let wanted = model.snapshot_trees(called);
        drop(model);
        if !wanted.iter().any(|t| **t == tree) {
            self.world.report.violation(format!("snapshot {called} holds {tree:?}, and was cut from {wanted:?}"));
        }
        Ok(())
    }

    pub(super) async fn recover(&self) -> Result<()> {
        for r in self.running.engine.recover(URL).await? {
            self.world.exec.note(|| format!("n{} recovered {r:?}", self.node));
            self.world.report.count("recovered tail");
            let held = self.world.model.lock().recovered(r.from.as_str(), r.epoch.0, r.name.as_str());
            self.world.check(held);
        }
        Ok(())
    }
}

async fn fetch(w: &Workspace, miss: Miss) -> Result<()> {
    let (tx, rx) = oneshot::channel();
    w.fetch(miss, limits::READ_DEADLINE, Box::new(move |done| drop(tx.send(done))));
    rx.await.unwrap_or_else(|_| Err(Error::closed("the node went down")))
}

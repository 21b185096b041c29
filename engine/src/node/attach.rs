//! Attaching a workspace: creating it, opening its head for write, taking up what the journal holds of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::BoxFuture;
use hiloop_journal::State as JournalState;
use hiloop_manifest::schema::{Attr, FileKind, Key, KeyKind, NameHasher, Prefix, Super, Totals, Value};
use hiloop_manifest::tree::{RootRef, get};
use hiloop_types::{Error, Ino, Name, NameKind, Nonce, ROOT_INO, Result, ResultExt, Seqno, Session, WriterEpoch, limits};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;

use super::tail::{Folded, StreamState, Tail};
use super::{Attached, Engine, OpenStore, journal_stopped};
use crate::catalog::{CutOff, FORMAT, Found, Head, LineageEvent, LineageKind, LostWindow, quota_of};
use crate::context::StoreContext;
use crate::fork::{ForkOptions, fork};
use crate::front::Front;
use crate::hydrate::{DomainKeys, Hydrator};
use crate::layer::Layer;
use crate::lease::ReadLease;
use crate::record::{OPEN, StreamDoc};
use crate::stop::Stop;
use crate::workspace::{Control, Durability, INO_RESERVE, Read, Replicator, Shared, Standing, State, Workspace, flushed, replicate};

/// What a new workspace starts from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Nothing: an empty root directory.
    Empty,
    /// A source as the commands name it (`base:X`, `snapshot:X`, `workspace:X`, or an unambiguous name).
    Source(String),
    /// It must exist: an opening creates nothing.
    Existing,
    /// It must be this node's own opening still, which its journal holds: nothing is created or fenced.
    OwnTail,
}

/// What to attach, and how.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// Store URL.
    pub store: String,
    /// The workspace.
    pub name: Name,
    /// Where it starts from if it does not exist.
    pub origin: Origin,
    /// What `fsync` waits for.
    pub durability: Durability,
    /// Unpublished bytes at which writers wait; `None`: the default of the durability.
    pub backlog_limit: Option<u64>,
    /// Bytes that are not holes it may hold, 0 for no limit; `None`: as before.
    pub quota: Option<u64>,
    /// Takes the head over from a live writer without watching.
    pub take_over: bool,
    /// Dedup domain of a new workspace.
    pub domain: Name,
    /// User and group that own the root directory of a new, empty workspace.
    pub owner: (u32, u32),
    /// Set by whoever does not want it any more: the opening then ends without taking the head, as far as it has not.
    pub called_off: Arc<AtomicBool>,
}

impl AttachRequest {
    /// A request with the defaults.
    ///
    /// # Errors
    /// Never in practice: the default domain's name is a name.
    pub fn new(store: impl Into<String>, name: Name) -> Result<Self> {
        Ok(Self {
            store: store.into(),
            name,
            origin: Origin::Empty,
            durability: Durability::Local,
            backlog_limit: None,
            quota: None,
            take_over: false,
            domain: Name::new(NameKind::Domain, "default")?,
            // An ordinary user's own workspace must be theirs to write.
            owner: (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()),
            called_off: Arc::default(),
        })
    }
}

/// What an attach did.
#[derive(Clone, Debug, Serialize)]
pub struct AttachReport {
    /// The workspace.
    pub workspace: Name,
    /// Epoch of the opening.
    pub epoch: WriterEpoch,
    /// Session of the opening.
    pub session: Session,
    /// The published tree.
    pub root: Option<RootRef>,
    /// What is known about writes that were accepted elsewhere and never published.
    pub lost_window: LostWindow,
    /// True where the workspace did not exist before.
    pub created: bool,
    /// Operations that the journal still held.
    pub recovered_operations: u64,
}

/// The head that an attach ended up with, and what the journal adds to it.
pub(super) struct Opening {
    pub head: Found<Head>,
    pub nonces: Vec<Nonce>,
    pub folded: Option<Folded>,
    pub sequence: Seqno,
    pub lost_window: LostWindow,
    pub fresh: bool,
}

/// The right to attach a workspace, for one at a time.
struct Attaching<'a> {
    engine: &'a Engine,
    key: super::WorkspaceKey,
}

impl<'a> Attaching<'a> {
    fn begin(engine: &'a Engine, key: &super::WorkspaceKey) -> Result<Self> {
        if engine.0.attaching.lock().insert(key.clone()) { Ok(Self { engine, key: key.clone() }) } else { Err(already(&key.1)) }
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        self.engine.0.attaching.lock().remove(&self.key);
    }
}

impl Engine {
    /// Attaches a workspace for write.
    ///
    /// # Errors
    /// `Conflict` where it is attached already or has a live writer elsewhere; `NotFound` for an unknown source; `Unavailable` where the
    /// store does not answer; `Corrupt` where what it holds cannot be read.
    pub fn attach<'a>(&'a self, request: AttachRequest) -> BoxFuture<'a, Result<(Workspace, AttachReport)>> {
        Box::pin(async move {
            let key = (request.store.clone(), request.name.clone());
            let _alone = Attaching::begin(self, &key)?;
            if let Some(back) = self.take_back(&key, &request)? {
                return Ok(back);
            }
            let store = self.store(&request.store).await?;
            if let JournalState::ReadOnly(why) = self.0.node.journal.state() {
                return self.attach_to_read(&store, &request, &why).await;
            }
            let there = self.ensure_exists(&store, &request).await?;
            let created = there.is_none();
            // The tree's first nodes come while the head is being swapped.
            let (opening, ()) = futures::join!(self.open_head(&store, &request), warm(&store, there.as_ref()));
            let opening = opening?;
            let workspace = self.build(&store, &request, opening.head.doc.clone(), &opening, None).await?;
            {
                let mut workspaces = self.0.workspaces.lock();
                if workspaces.contains_key(&key) {
                    return Err(already(&request.name));
                }
                workspaces.insert(key, Attached { workspace: workspace.clone(), draining: false });
            }
            self.0.tails.lock().remove(&workspace.session());
            self.0.env.spawn(replicate(workspace.0.clone()));
            prepare(&workspace, opening.fresh, request.owner).await?;
            let report = AttachReport {
                workspace: request.name.clone(),
                epoch: workspace.epoch(),
                session: workspace.session(),
                root: opening.head.doc.root,
                lost_window: opening.lost_window,
                created,
                recovered_operations: opening.folded.as_ref().map_or(0, |f| f.backlog().1),
            };
            Ok((workspace, report))
        })
    }

    /// Attaches what a journal that takes nothing more still holds of an opening: it can be read, changes fail, nothing of it is
    /// published, and `recover` makes a workspace of it (`protocols.md` 1, bit rot).
    async fn attach_to_read(&self, store: &OpenStore, request: &AttachRequest, why: &Error) -> Result<(Workspace, AttachReport)> {
        let found = store.catalog.get::<Head>(request.name.as_str()).await?.filter(|f| !f.doc.tombstone);
        let opening = match &found {
            Some(found) => self.resume(found, request)?,
            None => None,
        };
        let Some(opening) = opening else {
            return Err(journal_stopped(why).at(self.0.options.directory.display()));
        };
        let workspace = self.build(store, request, opening.head.doc.clone(), &opening, None).await?;
        workspace.0.stop_writing(Standing::ReadOnly { reason: why.to_string() });
        let key = (request.store.clone(), request.name.clone());
        let mut workspaces = self.0.workspaces.lock();
        if workspaces.contains_key(&key) {
            return Err(already(&request.name));
        }
        // Its tail stays where `recover` finds it.
        workspaces.insert(key, Attached { workspace: workspace.clone(), draining: false });
        let report = AttachReport {
            workspace: request.name.clone(),
            epoch: workspace.epoch(),
            session: workspace.session(),
            root: opening.head.doc.root,
            lost_window: opening.lost_window,
            created: false,
            recovered_operations: opening.folded.as_ref().map_or(0, |f| f.backlog().1),
        };
        Ok((workspace, report))
    }

    /// Opens what `source` names (a base, a snapshot, a workspace's published head) for reading only: no session, no journal. A lease
    /// keeps the tree from collection until [`Workspace::release_lease`], or for as long as the workspace value lives.
    ///
    /// # Errors
    /// `NotFound` for an unknown source, `Invalid` for one without a tree, and those of the store.
    pub fn attach_read_only<'a>(&'a self, store_url: &'a str, source: &'a str) -> BoxFuture<'a, Result<Workspace>> {
        Box::pin(async move {
            let store = self.store(store_url).await?;
            let lease = ReadLease::take(&self.context_of(&store), source).await?;
            let found = lease.source().clone();
            if found.root.is_none() {
                return Err(Error::invalid(format!("{} has no published tree yet", found.qualified())).hint("mount it for write first"));
            }
            let head = Head {
                format: FORMAT,
                name: found.name.clone(),
                epoch: found.epoch,
                session: Some(Session(self.0.env.random_u64())),
                node: None,
                root: found.root,
                front: found.front.clone(),
                sequence: found.sequence,
                parent: found.parent.clone(),
                bases: found.bases.clone(),
                inode_limit: found.inode_limit + INO_RESERVE,
                quota: found.quota,
                domain: found.domain.clone(),
                claim: None,
                claimed: None,
                nonce: store.catalog.nonce(),
                release: None,
                cut_off: None,
                tombstone: false,
                created: 0,
                lost_window: None,
            };
            let opening = Opening {
                head: Found { doc: head.clone(), version: found.version.clone() },
                nonces: Vec::new(),
                folded: None,
                sequence: Seqno(found.sequence),
                lost_window: LostWindow::None,
                fresh: false,
            };
            let request = AttachRequest::new(store_url, found.name)?;
            self.build(&store, &request, head, &opening, Some(lease)).await
        })
    }

    pub(super) fn context_of(&self, store: &OpenStore) -> StoreContext {
        StoreContext::over(store.catalog.clone(), store.hydrator.clone(), self.0.options.node.to_string())
    }

    /// A workspace that was detached with a rest and is still publishing it.
    fn take_back(&self, key: &super::WorkspaceKey, request: &AttachRequest) -> Result<Option<(Workspace, AttachReport)>> {
        let mut workspaces = self.0.workspaces.lock();
        let Some(a) = workspaces.get_mut(key) else { return Ok(None) };
        if !a.draining {
            return Err(already(&key.1));
        }
        let w = a.workspace.clone();
        // What it promises was settled when it was opened.
        let same = w.durability() == request.durability
            && quota_of(request.quota, w.quota()) == w.quota()
            && request.backlog_limit.is_none_or(|l| w.0.admission.hard() == l);
        if !same {
            return Err(Error::conflict(format!("workspace {} still publishes what its last mount left, under other options", key.1))
                .hint(
                    "mount it with the durability, quota and backlog limit that it had, or wait until `status` shows that it is published",
                ));
        }
        {
            let mut standing = w.0.standing.write();
            if matches!(*standing, Standing::Closed) {
                *standing = Standing::Live;
            }
            standing.check(&key.1)?;
        }
        a.draining = false;
        w.0.replicator.resume();
        let status = w.status();
        let report = AttachReport {
            workspace: key.1.clone(),
            epoch: w.epoch(),
            session: w.session(),
            root: status.root,
            lost_window: LostWindow::None,
            created: false,
            recovered_operations: status.backlog_operations,
        };
        self.0.env.spawn(replicate(w.0.clone()));
        Ok(Some((w, report)))
    }

    /// Creates the workspace where it does not exist; its head where it did.
    async fn ensure_exists(&self, store: &OpenStore, request: &AttachRequest) -> Result<Option<Head>> {
        let mut found = store.catalog.get::<Head>(request.name.as_str()).await?;
        if let Some(there) = found.take_if(|f| !f.doc.tombstone) {
            return Ok(Some(there.doc));
        }
        match &request.origin {
            Origin::Existing | Origin::OwnTail if found.is_some() => {
                Err(Error::not_found(format!("workspace {:?} is deleted", request.name)).at(store.catalog.store().name()))
            }
            Origin::Existing | Origin::OwnTail => {
                Err(Error::not_found(format!("there is no workspace {:?}", request.name)).at(store.catalog.store().name()))
            }
            Origin::Source(source) => {
                let context = self.context_of(store);
                let options = ForkOptions { quota: request.quota, domain: Some(request.domain.clone()), binding: None };
                let mut results = fork(&context, source, &[request.name.to_string()], &options).await?;
                match results.pop().and_then(|r| r.error) {
                    None => Ok(None),
                    Some(e) => Err(e),
                }
            }
            Origin::Empty => {
                store.key(&request.domain).await?;
                let epoch = found.as_ref().map_or(WriterEpoch(0), |f| WriterEpoch(f.doc.epoch.0 + 1));
                let head = Head::empty(&store.catalog, request.name.clone(), epoch, request.domain.clone(), quota_of(request.quota, None));
                let put = match &found {
                    None => store.catalog.create_head(&head).await?,
                    Some(f) => store.catalog.swap_head(&f.version, &head).await?,
                };
                // Lost: somebody else just created it. Then it exists, and opening decides who writes.
                Ok(put.err().flatten().map(|there| there.doc))
            }
        }
    }

    /// Opens the head for write, or resumes this node's own opening.
    async fn open_head(&self, store: &OpenStore, request: &AttachRequest) -> Result<Opening> {
        for _ in 0..8 {
            let found = store.catalog.live_head(&request.name).await?;
            if let Some(opening) = self.resume(&found, request)? {
                return Ok(opening);
            }
            if matches!(request.origin, Origin::OwnTail) {
                return Err(Error::conflict(format!("workspace {} was opened anew since this node wrote to it", request.name))
                    .hint("`recover` makes a workspace of what this node has not published"));
            }
            let accepted = match (&found.doc.session, &found.doc.release) {
                (Some(_), None) if !request.take_over => self.watch(store, &found, &request.called_off).await?,
                (Some(_), None) => self.last_accepted(store, &found).await?,
                _ => None,
            };
            wanted(&request.called_off, &request.name)?;
            if let Some(opening) = self.swap_in(store, request, found, accepted).await? {
                return Ok(opening);
            }
        }
        Err(Error::conflict(format!("the head of {} moved under every attempt to open it", request.name))
            .hint("another node opens it too; try again"))
    }

    /// This node's own opening, which the head still names: the daemon was restarted.
    fn resume(&self, found: &Found<Head>, request: &AttachRequest) -> Result<Option<Opening>> {
        let Some(session) = found.doc.session else { return Ok(None) };
        if found.doc.release.is_some() {
            return Ok(None);
        }
        let tails = self.0.tails.lock();
        let Some(tail) = tails.get(&session) else {
            tracing::debug!(?session, "no tail");
            return Ok(None);
        };
        if tail.stream.foreign || tail.stream.doc.store != request.store || !tail.stream.nonces.contains(&found.doc.nonce) {
            return Ok(None);
        }
        // The head may stand ahead of the last confirmation that was journalled.
        let sequence = Seqno(found.doc.sequence);
        if sequence > self.0.node.journal.accepted() {
            // Its own journal lost what it published: new records would be numbered like old ones.
            tracing::error!(workspace = %request.name, head = %sequence, "the journal ends before the published head; opening anew");
            return Ok(None);
        }
        let folded = tail.fold(sequence).at("the node's journal")?;
        let lost_window = found.doc.lost_window.unwrap_or(LostWindow::None);
        // The next publish, or the release, writes a new quota down.
        let mut head = found.clone();
        head.doc.quota = quota_of(request.quota, head.doc.quota);
        Ok(Some(Opening { head, nonces: tail.stream.nonces.clone(), folded: Some(folded), sequence, lost_window, fresh: false }))
    }

    /// Takes (epoch + 1, a new session); `None` where the head moved meanwhile.
    async fn swap_in(
        &self,
        store: &OpenStore,
        request: &AttachRequest,
        found: Found<Head>,
        accepted: Option<u64>,
    ) -> Result<Option<Opening>> {
        let old = &found.doc;
        let session = Session(self.0.env.random_u64());
        let nonce = store.catalog.nonce();
        let lost_window = match (&old.session, &old.release) {
            (None, _) => LostWindow::None,
            (_, Some(r)) if r.tail == 0 => LostWindow::None,
            (_, Some(r)) => LostWindow::Known { accepted: r.tail, published: old.sequence },
            (_, None) => match accepted {
                Some(a) if a > old.sequence => LostWindow::Known { accepted: a, published: old.sequence },
                _ => LostWindow::Possible,
            },
        };
        let cut_off = (old.session.is_some() && lost_window != LostWindow::None).then(|| CutOff {
            format: FORMAT,
            name: old.name.clone(),
            epoch: old.epoch,
            session: old.session,
            root: old.root,
            sequence: old.sequence,
            bases: old.bases.clone(),
            at: store.catalog.now(),
        });
        let doc = Head {
            epoch: WriterEpoch(old.epoch.0 + 1),
            session: Some(session),
            node: Some(self.0.options.node.clone()),
            sequence: 0,
            nonce,
            release: None,
            // An earlier cut-off that never became an object must not be forgotten.
            cut_off: cut_off.or_else(|| old.cut_off.clone()),
            inode_limit: old.inode_limit + INO_RESERVE,
            quota: quota_of(request.quota, old.quota),
            lost_window: Some(lost_window),
            ..old.clone()
        };
        let stream = StreamDoc {
            store: request.store.clone(),
            name: request.name.clone(),
            epoch: doc.epoch,
            session,
            nonce,
            root: doc.root,
            bases: doc.bases.clone(),
            next_ino: old.inode_limit,
            domain: doc.domain.clone(),
        };
        self.journal_opening(&stream).await?;
        match store.catalog.swap_head(&found.version, &doc).await? {
            Ok(version) => {
                let event = LineageEvent {
                    format: FORMAT,
                    workspace: doc.name.clone(),
                    epoch: doc.epoch,
                    event: LineageKind::Opened { lost_window, node: self.0.options.node.clone() },
                    parent: doc.parent.clone(),
                    at: store.catalog.now(),
                };
                store.catalog.put(&event).await?;
                Ok(Some(Opening {
                    head: Found { doc, version },
                    nonces: vec![nonce],
                    folded: None,
                    sequence: Seqno(0),
                    lost_window,
                    fresh: true,
                }))
            }
            Err(_) => {
                self.journal_closing(session)?;
                self.0.tails.lock().remove(&session);
                self.forget_stream(session)?;
                Ok(None)
            }
        }
    }

    /// Journals and flushes an opening before its swap is sent (`protocols.md` 3.2).
    pub(super) async fn journal_opening(&self, stream: &StreamDoc) -> Result<()> {
        let body = serde_json::to_vec(stream).map_err(|e| Error::internal(format!("cannot encode a stream: {e}")))?;
        // Known from before its record on: a trim of the journal between here and the end of the attach must leave it in the index, or a
        // restart would not know whose the later records are.
        self.0.tails.lock().insert(stream.session, Tail::new(StreamState::opened(stream.clone())));
        let journal = &self.0.node.journal;
        let seqno = journal.append(hiloop_journal::Class::Reserve, stream.session.0, OPEN, &[&body], &[])?;
        flushed(journal, seqno).await
    }

    pub(super) async fn build(
        &self,
        store: &OpenStore,
        request: &AttachRequest,
        head: Head,
        opening: &Opening,
        lease: Option<ReadLease>,
    ) -> Result<Workspace> {
        let superblock = async {
            match &head.root {
                Some(root) => {
                    read_front(store, root, &head.front).await;
                    read_super(&store.hydrator, root).await.map(Some)
                }
                None => Ok(None),
            }
        };
        let (keys, superblock) = futures::try_join!(store.keys(&head.domain), superblock)?;
        let superblock = superblock.unwrap_or_else(|| Super {
            name_key: *own_name_key(&keys).as_bytes(),
            totals: Totals::default(),
            next_ino: 0,
            epoch: head.epoch,
        });
        let (layers, active, totals, next_ino, accepted) = match &opening.folded {
            Some(f) => (f.counted_layers(&superblock, head.epoch), f.active.clone(), f.totals(superblock.totals), f.next_ino, f.last),
            None => (VecDeque::new(), Layer::default(), superblock.totals, head.inode_limit - INO_RESERVE, opening.sequence),
        };
        let admission = Control::new(request.backlog_limit, request.durability);
        if let Some((bytes, operations)) = opening.folded.as_ref().map(Folded::backlog) {
            admission.add(bytes, operations);
            self.0.node.backlog.fetch_add(bytes, Ordering::Relaxed);
        }
        let ino_limit = head.inode_limit;
        let mut state = State {
            root: head.root,
            root_next_ino: superblock.next_ino,
            sealed: layers,
            active,
            totals,
            next_ino,
            ino_limit,
            accepted: accepted.max(opening.sequence),
            published: opening.sequence,
        };
        // A publish that was on its way when the last process died may still land, up to here. Records from now on must not build on what
        // it covers: read back over its tree, they would change blocks that nothing set.
        state.seal(superblock.name_key, head.epoch, None);
        Ok(Workspace(Arc::new(Shared {
            node: self.0.node.clone(),
            name: request.name.clone(),
            store_url: request.store.clone(),
            domain: head.domain.clone(),
            bases: head.bases.clone(),
            epoch: head.epoch,
            session: head.session.ok_or_else(|| Error::internal("an opened head has no session"))?,
            durability: request.durability,
            read_only: lease.is_some(),
            lease: Mutex::new(lease),
            quota: head.quota,
            catalog: store.catalog.clone(),
            hydrator: store.hydrator.clone(),
            keys,
            hasher: NameHasher::new(superblock.name_key),
            name_key: superblock.name_key,
            state: RwLock::new(state),
            standing: RwLock::new(Standing::Live),
            admission,
            replicator: Replicator::new(opening.sequence, opening.nonces.clone()),
            head: tokio::sync::Mutex::new(opening.head.clone()),
            sequential: Mutex::default(),
            census: Mutex::default(),
            neighbours: Mutex::default(),
            fenced_hooks: Mutex::default(),
            last_time: AtomicU64::new(0),
        })))
    }
}

/// # Errors
/// `Closed` where the opening was called off.
pub(super) fn wanted(called_off: &AtomicBool, name: &Name) -> Result<()> {
    match called_off.load(Ordering::Relaxed) {
        true => Err(Error::closed(format!("the opening of workspace {name} was called off"))),
        false => Ok(()),
    }
}

fn already(name: &Name) -> Error {
    Error::conflict(format!("workspace {name} is attached already by this daemon")).hint("unmount it first, or fork it")
}

fn own_name_key(keys: &DomainKeys) -> blake3::Hash {
    blake3::keyed_hash(&keys.own.0, b"hiloop name hash v1")
}

/// Fetches a root with its front, in one round.
async fn read_front(store: &OpenStore, root: &RootRef, front: &Front) {
    let nodes: Vec<_> = std::iter::once(root.node).chain(front.nodes().iter().copied()).collect();
    store.hydrator.nodes_ahead(&nodes).await;
}

/// Brings what building a workspace over `head` needs; what fails here is told when it is built.
async fn warm(store: &OpenStore, head: Option<&Head>) {
    let Some(Head { root: Some(root), front, domain, .. }) = head else { return };
    let _ = futures::join!(store.keys(domain), read_front(store, root, front));
}

/// What a tree says about itself as a whole.
pub(crate) async fn read_super(hydrator: &Hydrator, root: &RootRef) -> Result<Super> {
    let key = Key::superblock();
    let bytes = hydrator
        .with_nodes(|h| get(h, root, key.as_bytes()))
        .await?
        .ok_or_else(|| Error::corrupt("the tree has no superblock").at(root.node.loc.pack))?;
    match Value::decode(KeyKind::Super, &bytes, &[])? {
        Value::Super(s) => Ok(*s),
        _ => Err(Error::internal("a superblock decoded to something else")),
    }
}

/// First changes of an opening: the root directory of an empty workspace, also where a power cut took it between the flushed opening
/// and its own flush; orphans of the opening before are dropped.
async fn prepare(workspace: &Workspace, fresh: bool, (uid, gid): (u32, u32)) -> Result<()> {
    workspace
        .settled(|w| {
            w.update(|txn| {
                if txn.attr(ROOT_INO)?.is_none() {
                    let mut root = Attr::new(FileKind::Directory, 0o755, uid, gid, txn.now());
                    root.parent = ROOT_INO;
                    txn.create_inode(ROOT_INO, root);
                }
                if !fresh {
                    return Ok(());
                }
                let mut orphans: Vec<Ino> = Vec::new();
                txn.scan(&Prefix::orphans(), &[], &mut |k, _| {
                    if let KeyKind::Orphan(ino) = k {
                        orphans.push(ino);
                    }
                    true
                })?;
                for ino in orphans {
                    txn.remove_inode(ino)?;
                }
                Ok::<_, Stop>(())
            })
            .map(drop)
        })
        .await
}

impl Workspace {
    /// Runs an operation, fetching what it misses, until it is through.
    ///
    /// # Errors
    /// Those of the operation and of fetches.
    pub async fn settled<T>(&self, mut f: impl FnMut(&Self) -> Result<T, Stop>) -> Result<T> {
        loop {
            match f(self) {
                Ok(v) => return Ok(v),
                Err(Stop::Error(e)) => return Err(e),
                Err(Stop::Miss(m)) => self.0.fetch(m, limits::READ_DEADLINE).await?,
            }
        }
    }
}

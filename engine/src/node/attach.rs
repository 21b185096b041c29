//! Attaching a workspace: creating it, opening its head for write, taking up what the journal holds of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hiloop_manifest::DomainKey;
use hiloop_manifest::schema::{Attr, FileKind, Key, KeyKind, NameHasher, Prefix, Super, Totals, Value};
use hiloop_manifest::tree::{RootRef, get};
use hiloop_types::{Error, Ino, Name, NameKind, Nonce, ROOT_INO, Result, ResultExt, Seqno, Session, WriterEpoch};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;

use super::tail::{Folded, StreamState, Tail};
use super::{Attached, Engine, OpenStore};
use crate::catalog::{CutOff, FORMAT, Found, Head, LineageEvent, LineageKind, LostWindow, PUBLIC_DOMAIN};
use crate::context::StoreContext;
use crate::fork::{ForkOptions, fork};
use crate::hydrate::DomainKeys;
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
    /// Bytes that are not holes it may hold; `None`: as before.
    pub quota: Option<u64>,
    /// Takes the head over from a live writer without watching.
    pub take_over: bool,
    /// Dedup domain of a new workspace.
    pub domain: Name,
    /// Kubernetes claim of a new workspace.
    pub claim: Option<String>,
    /// User and group that own the root directory of a new, empty workspace.
    pub owner: (u32, u32),
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
            claim: None,
            // An ordinary user's own workspace must be theirs to write.
            owner: (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()),
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
    pub async fn attach(&self, request: AttachRequest) -> Result<(Workspace, AttachReport)> {
        let key = (request.store.clone(), request.name.clone());
        let _alone = Attaching::begin(self, &key)?;
        if let Some(back) = self.take_back(&key)? {
            return Ok(back);
        }
        let store = self.store(&request.store).await?;
        let created = self.ensure_exists(&store, &request).await?;
        let opening = self.open_head(&store, &request).await?;
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
    }

    /// Opens what `source` names (a base, a snapshot, a workspace's published head) for reading only: no session, no journal. A lease
    /// keeps the tree from collection for as long as the workspace value lives.
    ///
    /// # Errors
    /// `NotFound` for an unknown source, `Invalid` for one without a tree, and those of the store.
    pub async fn attach_read_only(&self, store_url: &str, source: &str) -> Result<Workspace> {
        let store = self.store(store_url).await?;
        let lease = ReadLease::take(&self.context(&store), source).await?;
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
            sequence: found.sequence,
            parent: found.parent.clone(),
            bases: found.bases.clone(),
            inode_limit: found.inode_limit + INO_RESERVE,
            quota: found.quota,
            domain: found.domain.clone(),
            claim: None,
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
    }

    fn context(&self, store: &OpenStore) -> StoreContext {
        StoreContext::over(store.catalog.clone(), store.hydrator.clone(), self.0.options.node.to_string())
    }

    /// A workspace that was detached with a rest and is still publishing it.
    fn take_back(&self, key: &super::WorkspaceKey) -> Result<Option<(Workspace, AttachReport)>> {
        let mut workspaces = self.0.workspaces.lock();
        let Some(a) = workspaces.get_mut(key) else { return Ok(None) };
        if !a.draining {
            return Err(already(&key.1));
        }
        let w = a.workspace.clone();
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

    /// Creates the workspace where it does not exist; true where it did.
    async fn ensure_exists(&self, store: &OpenStore, request: &AttachRequest) -> Result<bool> {
        let found = store.catalog.get::<Head>(request.name.as_str()).await?;
        if found.as_ref().is_some_and(|f| !f.doc.tombstone) {
            return Ok(false);
        }
        match &request.origin {
            Origin::Source(source) => {
                let context = self.context(store);
                let options = ForkOptions { quota: request.quota, domain: Some(request.domain.clone()) };
                let mut results = fork(&context, source, &[request.name.to_string()], &options).await?;
                match results.pop().and_then(|r| r.error) {
                    None => Ok(true),
                    Some(e) => Err(e),
                }
            }
            Origin::Empty => {
                store.catalog.domain(&request.domain).await?;
                let epoch = found.as_ref().map_or(WriterEpoch(0), |f| WriterEpoch(f.doc.epoch.0 + 1));
                let head = Head {
                    format: FORMAT,
                    name: request.name.clone(),
                    epoch,
                    session: None,
                    node: None,
                    root: None,
                    sequence: 0,
                    parent: None,
                    bases: Vec::new(),
                    inode_limit: ROOT_INO.0 + 1,
                    quota: request.quota,
                    domain: request.domain.clone(),
                    claim: request.claim.clone(),
                    nonce: store.catalog.nonce(),
                    release: None,
                    cut_off: None,
                    tombstone: false,
                    created: store.catalog.now(),
                    lost_window: None,
                };
                let put = match &found {
                    None => store.catalog.create_head(&head).await?,
                    Some(f) => store.catalog.swap_head(&f.version, &head).await?,
                };
                // Lost: somebody else just created it. Then it exists, and opening decides who writes.
                Ok(put.is_ok())
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
            let accepted = match (&found.doc.session, &found.doc.release) {
                (Some(_), None) if !request.take_over => self.watch(store, &found).await?,
                (Some(_), None) => self.last_accepted(store, &found).await?,
                _ => None,
            };
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
        Ok(Some(Opening {
            head: found.clone(),
            nonces: tail.stream.nonces.clone(),
            folded: Some(folded),
            sequence,
            lost_window,
            fresh: false,
        }))
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
            quota: request.quota.or(old.quota),
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
        let public = store.catalog.domain(&Name::new(NameKind::Domain, PUBLIC_DOMAIN)?).await?;
        let own = store.catalog.domain(&head.domain).await?;
        let keys = DomainKeys { public: DomainKey(public.key_bytes()?), own: DomainKey(own.key_bytes()?) };
        let superblock = match &head.root {
            Some(root) => read_super(store, root).await?,
            None => Super { name_key: *own_name_key(&keys).as_bytes(), totals: Totals::default(), next_ino: 0, epoch: head.epoch },
        };
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
        let state = State {
            root: head.root,
            sealed: layers,
            active,
            totals,
            next_ino,
            ino_limit,
            accepted: accepted.max(opening.sequence),
            published: opening.sequence,
        };
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
            _lease: lease,
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
            fenced_hooks: Mutex::default(),
            last_time: AtomicU64::new(0),
        })))
    }
}

fn already(name: &Name) -> Error {
    Error::conflict(format!("workspace {name} is attached already by this daemon")).hint("unmount it first, or fork it")
}

fn own_name_key(keys: &DomainKeys) -> blake3::Hash {
    blake3::keyed_hash(&keys.own.0, b"hiloop name hash v1")
}

async fn read_super(store: &OpenStore, root: &RootRef) -> Result<Super> {
    let key = Key::superblock();
    let bytes = store
        .hydrator
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
                Err(Stop::Miss(m)) => self.0.fetch(m).await?,
            }
        }
    }
}

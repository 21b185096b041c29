//! Stores, trees on disk, and a stand-in for the workspace's writer: opens heads, changes trees record by record, publishes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_engine::base::{BaseReport, BaseRequest, publish_base};
use hiloop_engine::catalog::{BaseRoot, FORMAT, Head, SnapshotDoc};
use hiloop_engine::context::StoreContext;
use hiloop_engine::front::Front;
use hiloop_engine::look::resolve;
use hiloop_engine::ship::{Origin, Shipper};
use hiloop_env::{Env, ManualClock};
use hiloop_manifest::schema::{
    Attr, Block, ChunkDomain, ChunkRef, Entry, FileKind, IndexEntry, Key, KeyKind, NameHasher, Piece, Prefix, Source, Super, Timestamp,
};
use hiloop_manifest::tree::{Access, Apply, KeyRange, RootRef, Scan, get};
use hiloop_manifest::{DomainKey, LEVEL_HOT, encode_chunk};
use hiloop_source::SourceSpec;
use hiloop_store::faults::Faults;
use hiloop_store::{Store, Version};
use hiloop_types::limits::BLOCK;
use hiloop_types::{Ino, Name, NameKind, Owner, ROOT_INO, Result, Session, WriterEpoch};

pub struct Bench {
    pub store: Store,
    pub clock: Arc<ManualClock>,
    env: Env,
}

impl Bench {
    pub fn memory(seed: u64) -> Self {
        let (env, clock) = Env::simulated(seed);
        // Away from zero, so that ages can be subtracted.
        clock.set_wall_offset(std::time::Duration::from_secs(1_700_000_000));
        Self { store: Store::memory(env.clone()), clock, env }
    }
    pub fn ctx(&self) -> StoreContext {
        StoreContext::new(self.store.clone(), self.env.clone(), "test:1")
    }
    /// A context whose requests can be broken; another one on the same objects is not affected.
    pub fn faulty(&self) -> (StoreContext, Faults) {
        let faults = Faults::default();
        let store = self.store.wrapped(|b| faults.wrap(b));
        (StoreContext::new(store, self.env.clone(), "faulty:2"), faults)
    }
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        self.store.list(prefix).await.unwrap().into_iter().map(|o| o.key).collect()
    }
    pub async fn packs(&self) -> Vec<String> {
        self.keys("packs").await
    }
}

pub fn name(s: &str) -> Name {
    Name::new(NameKind::Workspace, s).unwrap()
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut h = blake3::Hasher::new();
    h.update(&seed.to_le_bytes());
    let mut out = vec![0; len];
    h.finalize_xof().fill(&mut out);
    out
}

/// A tree with a bit of everything that an ordinary user can make.
pub fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("small"), b"hello").unwrap();
    fs::write(root.join("nothing"), b"").unwrap();
    fs::write(root.join("sub/text"), b"a line that repeats\n".repeat(4000)).unwrap();
    fs::write(root.join("sub/deep/noise"), noise(1, 700_000)).unwrap();
    fs::write(root.join("big"), noise(2, 9 << 20)).unwrap();
    fs::write(root.join("zeros"), vec![0u8; 3 << 20]).unwrap();
    fs::hard_link(root.join("small"), root.join("sub/hard")).unwrap();
    symlink("../small", root.join("sub/link")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(3, 5000), 1 << 20).unwrap();
    sparse.set_len(3 << 20).unwrap();
    fs::set_permissions(root.join("small"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1555)).unwrap();
    for (path, secs) in [("small", 1_000_000_000), ("sub/text", -5), ("sub/deep", 77), ("sub", 78), ("", 79)] {
        let t = nix::sys::time::TimeSpec::new(secs, 123_456_789);
        let follow = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        nix::sys::stat::utimensat(nix::fcntl::AT_FDCWD, &root.join(path), &t, &t, follow).unwrap();
    }
}

/// Every path with all that a copy must keep.
pub fn listing(root: &Path) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut links: BTreeMap<u64, usize> = BTreeMap::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let m = fs::symlink_metadata(&path).unwrap();
        let kind = m.file_type();
        let content = if kind.is_file() {
            blake3::hash(&fs::read(&path).unwrap()).to_hex().to_string()
        } else if kind.is_symlink() {
            fs::read_link(&path).unwrap().display().to_string()
        } else {
            String::new()
        };
        if kind.is_dir() {
            let mut below: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
            below.sort();
            ahead.extend(below);
        }
        // Hard links by order of appearance.
        let next = links.len();
        let group = if m.nlink() > 1 && !kind.is_dir() { *links.entry(m.ino()).or_insert(next) } else { usize::MAX };
        let size = if kind.is_dir() { 0 } else { m.size() };
        let special = (kind.is_fifo(), kind.is_socket(), kind.is_dir(), kind.is_symlink());
        let shown = format!(
            "{special:?} {:o} {}:{} {size} {}.{} {} {group} {content}",
            m.mode(),
            m.uid(),
            m.gid(),
            m.mtime(),
            m.mtime_nsec(),
            m.nlink()
        );
        out.insert(path.strip_prefix(root).unwrap().display().to_string(), shown);
    }
    out
}

pub async fn publish(ctx: &StoreContext, id: &str, dir: &Path) -> Result<BaseReport> {
    publish_base(ctx, BaseRequest::new(id, SourceSpec::Directory(dir.to_owned()))?, Arc::new(|_| ())).await
}

/// A base of three small files: `a`, `b` and `dir/c`.
pub async fn small_base(ctx: &StoreContext, id: &str) -> BaseReport {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    for (i, path) in ["a", "b", "dir/c"].into_iter().enumerate() {
        fs::write(dir.path().join(path), noise(i as u64 + 100, 30_000)).unwrap();
    }
    publish(ctx, id, dir.path()).await.unwrap()
}

pub async fn fork_one(ctx: &StoreContext, source: &str, child: &str) {
    let made = hiloop_engine::fork::fork(ctx, source, &[child.to_owned()], &Default::default()).await.unwrap();
    assert!(made[0].error.is_none(), "{:?}", made[0].error);
}

/// Cuts a snapshot of what a workspace has published.
pub async fn snapshot(ctx: &StoreContext, workspace: &str, snapshot: &str) {
    let s = resolve(ctx, &format!("workspace:{workspace}")).await.unwrap();
    let doc = SnapshotDoc {
        format: FORMAT,
        name: name(snapshot),
        workspace: name(workspace),
        epoch: s.epoch,
        session: s.session.unwrap_or_default(),
        sequence: s.sequence,
        root: s.root.unwrap(),
        front: s.front,
        bases: s.bases,
        inode_limit: s.inode_limit,
        quota: s.quota,
        domain: s.domain,
        parent: s.parent,
        nonce: ctx.catalog.nonce(),
        created: ctx.catalog.now(),
        deleted: None,
    };
    assert!(ctx.catalog.create_snapshot(&doc).await.unwrap().is_ok());
}

/// One opening of a workspace for write.
pub struct Writer {
    ctx: StoreContext,
    pub head: Head,
    version: Version,
    key: DomainKey,
}

/// Changes that are not shipped yet.
pub struct Edit {
    ctx: StoreContext,
    root: RootRef,
    epoch: WriterEpoch,
    session: Session,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    data: Vec<(Ino, Vec<u8>)>,
    hasher: NameHasher,
    tick: i64,
}

impl Writer {
    pub async fn open(ctx: &StoreContext, workspace: &str) -> Self {
        let found = ctx.catalog.live_head(&name(workspace)).await.unwrap();
        let mut head = found.doc;
        head.epoch = WriterEpoch(head.epoch.0 + 1);
        head.session = Some(Session(ctx.env().random_u64()));
        head.node = Some(name("node-1"));
        head.sequence = 0;
        head.release = None;
        head.nonce = ctx.catalog.nonce();
        let version = ctx.catalog.swap_head(&found.version, &head).await.unwrap().unwrap();
        let key = DomainKey(ctx.catalog.domain(&head.domain).await.unwrap().key_bytes().unwrap());
        Self { ctx: ctx.clone(), head, version, key }
    }

    pub async fn edit(&self) -> Edit {
        let root = self.head.root.unwrap();
        let mut edit = Edit {
            ctx: self.ctx.clone(),
            root,
            epoch: self.head.epoch,
            session: self.head.session.unwrap(),
            changes: BTreeMap::new(),
            data: Vec::new(),
            hasher: NameHasher::new([0; 32]),
            tick: 1_800_000_000 + i64::try_from(self.head.epoch.0).unwrap(),
        };
        edit.hasher = NameHasher::new(edit.superblock().await.name_key);
        edit
    }

    /// Uploads under the next sequence, without moving the head.
    pub async fn ship(&self, edit: Edit) -> RootRef {
        let origin = Origin {
            owner: Owner::workspace(&self.head.name),
            name: self.head.name.clone(),
            epoch: self.head.epoch,
            session: self.head.session.unwrap(),
            sequence: self.head.sequence + 1,
        };
        let runtime = tokio::runtime::Handle::current();
        let mut shipper = Shipper::new(self.ctx.store().clone(), self.ctx.env().here(), origin);
        let (key, hydrator) = (self.key.clone(), self.ctx.hydrator.clone());
        tokio::task::spawn_blocking(move || {
            let Edit { root, mut changes, data, .. } = edit;
            for (ino, data) in data {
                for (number, plain) in data.chunks(BLOCK as usize).enumerate() {
                    let chunk = encode_chunk(&key, plain, LEVEL_HOT).unwrap();
                    let at = shipper.chunk(&chunk).unwrap();
                    let chunk = ChunkRef { domain: ChunkDomain::Own, id: chunk.id, at };
                    let block =
                        Block::from_pieces(vec![Piece { start: 0, len: plain.len() as u32, source: Source::Chunk { chunk, skip: 0 } }]);
                    changes.insert(Key::block(ino, number as u64).as_bytes().to_vec(), Some(block.encode(None)));
                }
            }
            let changes = changes.into_iter().map(|(k, v)| Ok((Bytes::from(k), v.map(Bytes::from))));
            let mut apply = Apply::new(Some(&root), changes);
            let applied = loop {
                match apply.run(&hydrator, &mut shipper) {
                    Ok(done) => break done,
                    Err(Access::Miss(n)) => _ = runtime.block_on(hydrator.node_now(&n)).unwrap(),
                    Err(Access::Error(e)) => panic!("{e}"),
                }
            };
            shipper.finish().unwrap();
            applied.root
        })
        .await
        .unwrap()
    }

    /// Moves the head to what was shipped last.
    pub async fn commit(&mut self, root: RootRef) -> bool {
        // As a real writer does: a front that cannot be had is left out.
        let front = Front::of(&self.ctx.hydrator, &root).await.unwrap_or_default();
        let next = Head { root: Some(root), front, sequence: self.head.sequence + 1, nonce: self.ctx.catalog.nonce(), ..self.head.clone() };
        match self.ctx.catalog.swap_head(&self.version, &next).await.unwrap() {
            Ok(version) => {
                (self.head, self.version) = (next, version);
                true
            }
            Err(_) => false,
        }
    }

    pub async fn publish(&mut self, edit: Edit) {
        let root = self.ship(edit).await;
        assert!(self.commit(root).await, "fenced");
    }

    pub async fn release(mut self) {
        self.head.release = Some(hiloop_engine::catalog::Release { tail: 0 });
        self.head.nonce = self.ctx.catalog.nonce();
        self.ctx.catalog.swap_head(&self.version, &self.head).await.unwrap().unwrap();
    }
}

impl Edit {
    pub async fn read(&self, key: &Key) -> Option<Vec<u8>> {
        match self.changes.get(key.as_bytes()) {
            Some(v) => v.clone(),
            None => self.ctx.hydrator.with_nodes(|h| get(h, &self.root, key.as_bytes())).await.unwrap().map(|b| b.to_vec()),
        }
    }
    pub fn set(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.changes.insert(key.as_bytes().to_vec(), value);
    }
    pub async fn superblock(&self) -> Super {
        Super::decode(&self.read(&Key::superblock()).await.unwrap()).unwrap()
    }
    pub async fn attr(&self, ino: Ino) -> Attr {
        Attr::decode(&self.read(&Key::attr(ino)).await.unwrap()).unwrap()
    }
    pub fn set_attr(&mut self, ino: Ino, attr: &Attr) {
        self.set(Key::attr(ino), Some(attr.encode()));
    }
    fn now(&mut self) -> Timestamp {
        self.tick += 1;
        Timestamp { secs: self.tick, nanos: 0 }
    }

    pub async fn lookup(&self, path: &str) -> Ino {
        let mut at = ROOT_INO;
        for part in path.split('/').filter(|p| !p.is_empty()) {
            let found = self.read(&self.hasher.entry(at, part.as_bytes())).await.unwrap_or_else(|| panic!("no {path}"));
            at = Entry::decode(&found).unwrap().ino;
        }
        at
    }
    async fn split<'p>(&self, path: &'p str) -> (Ino, &'p str) {
        let (dir, base) = path.rsplit_once('/').unwrap_or(("", path));
        (self.lookup(dir).await, base)
    }

    async fn add_name(&mut self, dir: Ino, base: &str, ino: Ino, kind: FileKind) {
        let mut attr = self.attr(dir).await;
        let index = attr.next_index;
        attr.next_index += 1;
        attr.entries += 1;
        attr.nlink += u32::from(kind == FileKind::Directory);
        (attr.mtime, attr.ctime) = (self.now(), self.now());
        self.set_attr(dir, &attr);
        self.set(self.hasher.entry(dir, base.as_bytes()), Some(Entry { ino, kind, index }.encode()));
        self.set(Key::index(dir, index), Some(IndexEntry { ino, kind, name: base.into() }.encode()));
        self.set(Key::backref(ino, dir, index), Some(Vec::new()));
    }
    async fn drop_name(&mut self, dir: Ino, base: &str) -> Ino {
        let key = self.hasher.entry(dir, base.as_bytes());
        let entry = Entry::decode(&self.read(&key).await.unwrap()).unwrap();
        self.set(key, None);
        self.set(Key::index(dir, entry.index), None);
        self.set(Key::backref(entry.ino, dir, entry.index), None);
        let mut attr = self.attr(dir).await;
        attr.entries -= 1;
        attr.nlink -= u32::from(entry.kind == FileKind::Directory);
        (attr.mtime, attr.ctime) = (self.now(), self.now());
        self.set_attr(dir, &attr);
        entry.ino
    }

    pub async fn create(&mut self, path: &str, kind: FileKind, data: &[u8]) -> Ino {
        let (dir, base) = self.split(path).await;
        let mut s = self.superblock().await;
        let ino = Ino(s.next_ino);
        s.next_ino += 1;
        s.totals.inodes += 1;
        self.set(Key::superblock(), Some(s.encode()));
        let now = self.now();
        let mut attr = Attr::new(kind, 0o644, 7, 8, now);
        (attr.birth_epoch, attr.birth_session) = (self.epoch, self.session);
        if kind == FileKind::Directory {
            attr.parent = dir;
        }
        self.set_attr(ino, &attr);
        self.add_name(dir, base, ino, kind).await;
        if kind == FileKind::File {
            self.write(ino, data).await;
        }
        ino
    }

    pub async fn write(&mut self, ino: Ino, data: &[u8]) {
        let mut attr = self.attr(ino).await;
        let mut s = self.superblock().await;
        s.totals.bytes = s.totals.bytes - attr.allocated + data.len() as u64;
        for number in 0..attr.size.div_ceil(BLOCK) {
            self.set(Key::block(ino, number), None);
        }
        (attr.size, attr.allocated) = (data.len() as u64, data.len() as u64);
        (attr.mtime, attr.ctime) = (self.now(), self.now());
        self.set_attr(ino, &attr);
        self.set(Key::superblock(), Some(s.encode()));
        self.data.push((ino, data.to_vec()));
    }

    pub async fn link(&mut self, from: &str, to: &str) {
        let ino = self.lookup(from).await;
        let (dir, base) = self.split(to).await;
        let mut attr = self.attr(ino).await;
        attr.nlink += 1;
        attr.ctime = self.now();
        self.set_attr(ino, &attr);
        self.add_name(dir, base, ino, attr.kind).await;
    }

    pub async fn rename(&mut self, from: &str, to: &str) {
        let (dir, base) = self.split(from).await;
        let ino = self.drop_name(dir, base).await;
        let (dir, base) = self.split(to).await;
        let mut attr = self.attr(ino).await;
        attr.ctime = self.now();
        if attr.kind == FileKind::Directory {
            attr.parent = dir;
        }
        self.set_attr(ino, &attr);
        self.add_name(dir, base, ino, attr.kind).await;
    }

    pub async fn unlink(&mut self, path: &str) {
        let (dir, base) = self.split(path).await;
        let ino = self.drop_name(dir, base).await;
        let mut attr = self.attr(ino).await;
        attr.nlink -= 1;
        attr.ctime = self.now();
        if attr.nlink > 0 {
            return self.set_attr(ino, &attr);
        }
        let mut s = self.superblock().await;
        s.totals.inodes -= 1;
        s.totals.bytes -= attr.allocated;
        self.set(Key::superblock(), Some(s.encode()));
        let range = KeyRange::prefix(Prefix::inode(ino).start());
        let scan = |h: &hiloop_engine::hydrate::Hydrator| Scan::new(h, &self.root, range.clone()).collect::<Result<Vec<_>, _>>();
        let old = self.ctx.hydrator.with_nodes(scan).await.unwrap();
        for (key, _) in old {
            assert!(KeyKind::parse(&key).is_ok());
            self.changes.insert(key.to_vec(), None);
        }
        self.set(Key::attr(ino), None);
    }
}

pub fn base_of(report: &BaseReport) -> BaseRoot {
    BaseRoot { name: report.build_id.clone(), root: report.root }
}

/// A deep check must find nothing.
pub async fn assert_clean(ctx: &StoreContext) {
    // Nothing in memory may hide what the store has lost.
    let fresh = StoreContext::new(ctx.store().clone(), ctx.env().clone(), "fsck:3");
    let report = hiloop_engine::fsck::fsck(&fresh, &hiloop_engine::fsck::FsckOptions { deep: true, source: None }).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

//! Bringing nodes and chunks from the store into memory: memory, then the disk cache, then the store.
//!
//! Every byte is verified before it is served: chunks against their keyed BLAKE3 id, nodes against theirs. Concurrent misses of one
//! thing are one fetch. Nodes, or chunks, of one pack that lie close together are one request. The place that a reference names is a hint
//! (`protocols.md` 5.2): where it does not hold, the pack's directory is consulted, then a forward object.

mod local;
mod runs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::future::try_join_all;
use hiloop_cache::{Cache, CacheKey, Frame, Joined, SingleFlight};
use hiloop_manifest::pack::{PackDirectory, TAIL_GUESS, Tail};
use hiloop_manifest::schema::{ChunkDomain, ChunkRef};
use hiloop_manifest::tree::{Access, Node, NodeRef, NodeSource};
use hiloop_manifest::{Codec, DomainKey, FrameLoc, decode_chunk, verify};
use hiloop_store::Store;
use hiloop_types::{ChunkId, Error, ErrorKind, PackId, Result, ResultExt, limits};
use tokio::sync::Semaphore;

use crate::forward::Forward;

/// Requests in flight for one store and daemon; bounds the memory of fetches to this many coalesced ranges.
const FETCHES: usize = 32;

/// Keys of the two dedup domains that a tree's chunks may belong to.
#[derive(Clone)]
pub struct DomainKeys {
    /// Of published bases.
    pub public: DomainKey,
    /// Of the workspace.
    pub own: DomainKey,
}

impl DomainKeys {
    /// The key that chunks of `domain` are made with.
    pub fn of(&self, domain: ChunkDomain) -> &DomainKey {
        match domain {
            ChunkDomain::Public => &self.public,
            ChunkDomain::Own => &self.own,
        }
    }
}

/// Least recently used: the frequency-based default may refuse what was just fetched, and the operation that waits for it would
/// fetch it for ever.
fn lru() -> moka::policy::EvictionPolicy {
    moka::policy::EvictionPolicy::lru()
}

/// Decoded nodes and chunks in memory, shared by all stores and workspaces of a process.
#[derive(Clone)]
pub struct Memory {
    nodes: moka::sync::Cache<NodeRef, Arc<Node>>,
    chunks: moka::sync::Cache<ChunkId, Bytes>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    rounds: AtomicU64,
    bytes: AtomicU64,
}

/// What was asked of packs in all stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Hydration {
    /// Reads.
    pub requests: u64,
    /// How many of them waited for each other: a read belongs to the round behind the last one that had ended when it was decided on.
    /// Reads that one miss names share a round, also where a fast store answers one before a thread comes to the next.
    pub rounds: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Memory {
    /// Memory for `nodes` and `chunks` bytes.
    pub fn new(nodes: u64, chunks: u64) -> Self {
        Self {
            nodes: moka::sync::Cache::builder()
                .eviction_policy(lru())
                .max_capacity(nodes)
                .weigher(|_, n: &Arc<Node>| n.memory() as u32)
                .build(),
            chunks: moka::sync::Cache::builder()
                .eviction_policy(lru())
                .max_capacity(chunks)
                .weigher(|_, b: &Bytes| b.len() as u32 + 64)
                .build(),
            counts: Arc::default(),
        }
    }
    /// Forgets everything: what is needed comes from the disk cache or the store again.
    pub fn forget(&self) {
        self.nodes.iter().for_each(|(k, _)| self.nodes.invalidate(&*k));
        self.chunks.iter().for_each(|(k, _)| self.chunks.invalidate(&*k));
    }
    /// What was fetched so far.
    pub fn hydration(&self) -> Hydration {
        let c = &self.counts;
        Hydration { requests: c.requests.load(Relaxed), rounds: c.rounds.load(Relaxed), bytes: c.bytes.load(Relaxed) }
    }
    /// Bytes held now, (nodes, chunks).
    pub fn usage(&self) -> (u64, u64) {
        (self.nodes.weighted_size(), self.chunks.weighted_size())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(limits::MEMORY_NODES, limits::MEMORY_CHUNKS)
    }
}

/// Fetches from one store. Cheap to clone.
#[derive(Clone)]
pub struct Hydrator(Arc<Inner>);

struct Inner {
    store: Store,
    memory: Memory,
    disk: Option<Arc<Cache>>,
    nodes: SingleFlight<NodeRef, Result<Arc<Node>>>,
    chunks: SingleFlight<ChunkId, Result<Bytes>>,
    slots: Semaphore,
}

impl NodeSource for Hydrator {
    fn node(&self, node: &NodeRef) -> Result<Arc<Node>, Access> {
        self.0.memory.nodes.get(node).ok_or(Access::Miss(*node))
    }
}

/// A node is cached under its identity *and* place: two copies may name different packs for their children.
fn node_key(node: &NodeRef) -> CacheKey {
    let mut h = blake3::Hasher::new();
    h.update(node.id.as_bytes());
    h.update(&node.loc.pack.to_bytes());
    h.update(&node.loc.offset.to_le_bytes());
    CacheKey(*h.finalize().as_bytes())
}

fn frame(codec: Codec, plain_len: u32, stored: Bytes) -> Frame {
    Frame { codec: codec as u8, plain_len, stored }
}

impl Hydrator {
    /// Fetches from `store`, keeping what it fetched in `memory` and, where there is one, in `disk`.
    pub fn new(store: Store, memory: Memory, disk: Option<Arc<Cache>>) -> Self {
        Self(Arc::new(Inner {
            store,
            memory,
            disk,
            nodes: SingleFlight::new(),
            chunks: SingleFlight::new(),
            slots: Semaphore::new(FETCHES),
        }))
    }
    /// The store below.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// A chunk that is in memory.
    pub fn chunk_in_memory(&self, id: &ChunkId) -> Option<Bytes> {
        self.0.memory.chunks.get(id)
    }

    /// Runs a tree operation, fetching what it misses, until it is through.
    ///
    /// # Errors
    /// Those of the operation, or of a fetch.
    pub async fn with_nodes<T>(&self, mut f: impl FnMut(&Self) -> Result<T, Access>) -> Result<T> {
        loop {
            match f(self) {
                Ok(v) => return Ok(v),
                Err(Access::Error(e)) => return Err(e),
                Err(Access::Miss(n)) => {
                    self.node_now(&n).await?;
                }
            }
        }
    }

    /// A node, from wherever it is.
    ///
    /// # Errors
    /// `Unavailable` where the store does not answer in time, `Corrupt` where no copy of it is whole, `NotFound` where none exists.
    pub fn node_now<'a>(&'a self, node: &'a NodeRef) -> BoxFuture<'a, Result<Arc<Node>>> {
        Box::pin(async move {
            if let Some(n) = self.0.memory.nodes.get(node) {
                return Ok(n);
            }
            match self.0.nodes.join(*node) {
                Joined::Leader(leader) => {
                    let got = self.load_node(node).await;
                    if let Ok(n) = &got {
                        self.0.memory.nodes.insert(*node, n.clone());
                    }
                    leader.finish(got.clone());
                    got
                }
                Joined::Waiter(waiter) => {
                    waiter.await.unwrap_or_else(|_| Err(Error::unavailable("the fetch of a manifest node was given up")))
                }
            }
        })
    }

    /// Nodes that are needed, fetched side by side with as few requests as their places allow.
    ///
    /// # Errors
    /// The first error of [`Self::node_now`].
    pub fn nodes_now<'a>(&'a self, nodes: &'a [NodeRef]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.nodes_ahead(nodes).await;
            try_join_all(nodes.iter().map(|n| self.node_now(n))).await.map(drop)
        })
    }

    /// As [`Self::chunks_ahead`], nodes.
    pub fn nodes_ahead(&self, nodes: &[NodeRef]) -> impl Future<Output = ()> + Send + use<> {
        self.begin(None, nodes)
    }

    async fn load_node(&self, node: &NodeRef) -> Result<Arc<Node>> {
        let key = node_key(node);
        if let Some(hit) = self.disk_lookup(key).await {
            match Node::from_frame(node, &hit) {
                Ok(n) => return Ok(Arc::new(n)),
                Err(_) => self.quarantine(&key),
            }
        }
        let stored = self.frame_bytes(&node.id.0, &node.loc, |b| Node::from_frame(node, b).map(drop)).await?;
        let n = Arc::new(Node::from_frame(node, &stored)?);
        self.disk_insert(key, frame(node.loc.codec, node.loc.plain_len, stored));
        Ok(n)
    }

    /// A node that was just made: it need not be fetched back.
    pub fn keep_node(&self, node: &NodeRef, decoded: &Arc<Node>) {
        self.0.memory.nodes.insert(*node, decoded.clone());
    }

    /// The plain bytes of a small chunk that was just made: a file that was just written is often read next.
    pub fn keep_plain(&self, id: &ChunkId, plain: &[u8]) {
        if plain.len() as u64 <= limits::BLOCK {
            self.0.memory.chunks.insert(*id, Bytes::copy_from_slice(plain));
        }
    }

    /// A chunk that was just made, kept in the disk cache as it was stored.
    pub fn keep_chunk(&self, chunk: &ChunkRef, stored: Bytes) {
        self.disk_insert(chunk.id.into(), frame(chunk.at.codec, chunk.at.plain_len, stored));
    }

    /// A chunk, from wherever it is, verified.
    ///
    /// # Errors
    /// As [`Self::node_now`].
    pub fn chunk_now<'a>(&'a self, keys: &'a DomainKeys, chunk: &'a ChunkRef) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            if let Some(b) = self.0.memory.chunks.get(&chunk.id) {
                return Ok(b);
            }
            match self.0.chunks.join(chunk.id) {
                Joined::Leader(leader) => {
                    let got = self.load_chunk(keys, chunk).await;
                    if let Ok(b) = &got {
                        self.0.memory.chunks.insert(chunk.id, b.clone());
                    }
                    leader.finish(got.clone());
                    got
                }
                Joined::Waiter(waiter) => waiter.await.unwrap_or_else(|_| Err(Error::unavailable("the fetch of a chunk was given up"))),
            }
        })
    }

    async fn load_chunk(&self, keys: &DomainKeys, chunk: &ChunkRef) -> Result<Bytes> {
        if let Some(plain) = self.chunk_from_disk(keys, chunk).await {
            return Ok(plain);
        }
        let stored = self.frame_bytes(&chunk.id.0, &chunk.at, |b| open_chunk(keys, chunk, b).map(drop)).await?;
        let plain = open_chunk(keys, chunk, &stored)?;
        self.keep_chunk(chunk, stored);
        Ok(plain)
    }

    /// Chunks that are needed, fetched with as few requests as their places allow: begun by this call, done by the future. What fails here
    /// is left to [`Self::chunk_now`], so this never fails.
    pub fn chunks_ahead(&self, keys: &DomainKeys, chunks: &[ChunkRef]) -> impl Future<Output = ()> + Send + use<> {
        self.begin(Some(keys), chunks)
    }

    async fn chunk_from_disk(&self, keys: &DomainKeys, chunk: &ChunkRef) -> Option<Bytes> {
        let disk = self.0.disk.clone()?;
        let (keys, chunk) = (keys.clone(), *chunk);
        self.0
            .store
            .env()
            .blocking(move || {
                let key = CacheKey::from(chunk.id);
                let hit = disk.lookup(&key)?;
                let codec = Codec::from_u8(hit.frame.codec).ok()?;
                let good = decode_chunk(codec, &hit.frame.stored, hit.frame.plain_len).and_then(|plain| {
                    if hit.verified { Ok(plain) } else { verify(keys.of(chunk.domain), &chunk.id, &plain).map(|()| plain) }
                });
                match good {
                    Ok(plain) => {
                        if !hit.verified {
                            disk.mark_verified(&key);
                        }
                        Some(plain)
                    }
                    Err(_) => {
                        disk.quarantine(&key);
                        None
                    }
                }
            })
            .await
            .ok()?
    }

    async fn disk_lookup(&self, key: CacheKey) -> Option<Bytes> {
        let disk = self.0.disk.clone()?;
        self.0.store.env().blocking(move || disk.lookup(&key).map(|h| h.frame.stored)).await.ok()?
    }

    fn quarantine(&self, key: &CacheKey) {
        if let Some(d) = &self.0.disk {
            d.quarantine(key);
        }
    }

    fn disk_insert(&self, key: CacheKey, frame: Frame) {
        if let Some(d) = &self.0.disk {
            // The page cache takes the bytes; whether they found room is the cache's to count, not the reader's to know.
            let _fill = d.insert(key, &frame);
        }
    }

    /// The round of a read that is decided on now.
    fn next_round(&self) -> u64 {
        self.0.memory.counts.rounds.load(Relaxed) + 1
    }

    async fn range(&self, round: u64, pack: &PackId, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let _slot = self.0.slots.acquire().await.map_err(|_| Error::closed("the daemon is shutting down"))?;
        let counts = &self.0.memory.counts;
        let answer = self.0.store.get_range(&pack.key(), offset, len).await;
        counts.requests.fetch_add(1, Relaxed);
        counts.rounds.fetch_max(round, Relaxed);
        counts.bytes.fetch_add(answer.as_ref().ok().and_then(Option::as_ref).map_or(0, |b| b.len() as u64), Relaxed);
        answer
    }

    /// Stored bytes of a frame: at the hinted place, else where the pack's directory or a forward says.
    async fn frame_bytes(&self, id: &[u8; 32], at: &FrameLoc, check: impl Fn(&Bytes) -> Result<()>) -> Result<Bytes> {
        let hinted = match self.range(self.next_round(), &at.pack, at.offset.into(), at.stored_len.into()).await {
            Ok(Some(b)) => match check(&b) {
                Ok(()) => return Ok(b),
                Err(e) => e.at(at.pack),
            },
            Ok(None) => Error::not_found("its pack is gone").at(at.pack),
            // A range behind the end of a pack is a wrong hint like any other.
            Err(e) if e.kind() == ErrorKind::Corrupt || e.kind() == ErrorKind::Invalid => e,
            Err(e) => return Err(e),
        };
        // A rewritten pack may have been rewritten again.
        let mut packs = vec![at.pack];
        let mut next = 0;
        while let Some(pack) = packs.get(next).copied() {
            next += 1;
            if let Some(forward) = Forward::read(&self.0.store, &pack).await? {
                let fresh: Vec<_> = forward.to.into_iter().filter(|p| !packs.contains(p)).collect();
                packs.extend(fresh);
            }
            let Some(directory) = read_directory(&self.0.store, &pack).await? else { continue };
            let Some(entry) = directory.lookup(id) else { continue };
            if let Some(b) = self.range(self.next_round(), &pack, entry.loc.offset.into(), entry.loc.stored_len.into()).await?
                && check(&b).is_ok()
            {
                return Ok(b);
            }
        }
        Err(hinted.hint("`fsck --deep` lists what is missing or damaged"))
    }
}

fn open_chunk(keys: &DomainKeys, chunk: &ChunkRef, stored: &Bytes) -> Result<Bytes> {
    let plain = decode_chunk(chunk.at.codec, stored, chunk.at.plain_len)?;
    verify(keys.of(chunk.domain), &chunk.id, &plain)?;
    Ok(plain)
}

/// The directory of a pack; `None` where the pack does not exist.
///
/// # Errors
/// Those of the store; `Corrupt` where the pack's end is not a directory of this pack.
pub async fn read_directory(store: &Store, pack: &PackId) -> Result<Option<PackDirectory>> {
    let key = pack.key();
    let Some(info) = store.head(&key).await? else { return Ok(None) };
    let mut want = TAIL_GUESS.min(info.size);
    loop {
        let Some(tail) = store.get_range(&key, info.size - want, want).await? else { return Ok(None) };
        match PackDirectory::decode(pack, info.size, &tail).at(&key)? {
            Tail::Whole(d) => return Ok(Some(d)),
            Tail::Need(n) => want = n.min(info.size),
        }
    }
}

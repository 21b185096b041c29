//! Fetching many frames with few requests: those that lie close together in a pack are one.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_cache::{Joined, Leader, SingleFlight};
use hiloop_manifest::FrameLoc;
use hiloop_manifest::schema::ChunkRef;
use hiloop_manifest::tree::{Node, NodeRef};
use hiloop_types::{ChunkId, Error, ErrorKind, PackId, Result, limits};

use super::{DomainKeys, Hydrator, Inner, frame, node_key, open_chunk};

/// Ranges of one pack with at most this many unwanted bytes between them are one request.
const COALESCE_GAP: u64 = 64 * limits::KIB;
/// Largest coalesced request, bytes.
const COALESCE_MAX: u64 = 4 * limits::MIB;

/// Something that lies in a pack.
pub(super) trait Lies: Copy + fmt::Debug + Send + Sync + 'static {
    /// What tells it apart in memory.
    type Key: Copy + Eq + Hash + Send + Sync;
    /// Its decoded form.
    type Plain: Clone + Send + Sync;

    fn key(&self) -> Self::Key;
    fn at(&self) -> &FrameLoc;
    /// True where no request is needed for it.
    fn is_local(&self, inner: &Inner) -> bool;
    fn flights(inner: &Inner) -> &SingleFlight<Self::Key, Result<Self::Plain>>;
    /// Decodes and verifies stored bytes, and keeps them in the disk cache.
    fn take(&self, hydrator: &Hydrator, keys: Option<&DomainKeys>, stored: Bytes) -> Result<Self::Plain>;
    /// Fetches it alone, from wherever it is.
    fn alone(&self, hydrator: &Hydrator, keys: Option<&DomainKeys>) -> impl Future<Output = Result<Self::Plain>> + Send;
    fn keep(&self, inner: &Inner, plain: &Self::Plain);
}

impl Lies for NodeRef {
    type Key = Self;
    type Plain = Arc<Node>;

    fn key(&self) -> Self {
        *self
    }
    fn at(&self) -> &FrameLoc {
        &self.loc
    }
    fn is_local(&self, inner: &Inner) -> bool {
        inner.memory.nodes.contains_key(self) || inner.disk.as_ref().is_some_and(|d| d.contains(&node_key(self)))
    }
    fn flights(inner: &Inner) -> &SingleFlight<Self, Result<Arc<Node>>> {
        &inner.nodes
    }
    fn take(&self, hydrator: &Hydrator, _: Option<&DomainKeys>, stored: Bytes) -> Result<Arc<Node>> {
        let node = Arc::new(Node::from_frame(self, &stored)?);
        hydrator.disk_insert(node_key(self), frame(self.loc.codec, self.loc.plain_len, stored));
        Ok(node)
    }
    async fn alone(&self, hydrator: &Hydrator, _: Option<&DomainKeys>) -> Result<Arc<Node>> {
        hydrator.load_node(self).await
    }
    fn keep(&self, inner: &Inner, plain: &Arc<Node>) {
        inner.memory.nodes.insert(*self, plain.clone());
    }
}

impl Lies for ChunkRef {
    type Key = ChunkId;
    type Plain = Bytes;

    fn key(&self) -> ChunkId {
        self.id
    }
    fn at(&self) -> &FrameLoc {
        &self.at
    }
    fn is_local(&self, inner: &Inner) -> bool {
        inner.memory.chunks.contains_key(&self.id) || inner.disk.as_ref().is_some_and(|d| d.contains(&self.id.into()))
    }
    fn flights(inner: &Inner) -> &SingleFlight<ChunkId, Result<Bytes>> {
        &inner.chunks
    }
    fn take(&self, hydrator: &Hydrator, keys: Option<&DomainKeys>, stored: Bytes) -> Result<Bytes> {
        let keys = keys.ok_or_else(|| Error::internal("a chunk was fetched without keys"))?;
        let plain = open_chunk(keys, self, &stored)?;
        hydrator.keep_chunk(self, stored);
        Ok(plain)
    }
    async fn alone(&self, hydrator: &Hydrator, keys: Option<&DomainKeys>) -> Result<Bytes> {
        let keys = keys.ok_or_else(|| Error::internal("a chunk was fetched without keys"))?;
        hydrator.load_chunk(keys, self).await
    }
    fn keep(&self, inner: &Inner, plain: &Bytes) {
        inner.memory.chunks.insert(self.id, plain.clone());
    }
}

/// A frame, and the duty to bring it.
type Duty<T> = (T, Leader<<T as Lies>::Key, Result<<T as Lies>::Plain>>);

/// Frames of one pack that are one request.
struct Run<T: Lies> {
    frames: Vec<Duty<T>>,
}

impl Hydrator {
    /// Begins to bring what needs requests, with as few as places allow. From the return of this call whoever wants one of them waits for
    /// it; the future does the work. What fails is left to whoever asks for it alone, so it never fails.
    pub(super) fn begin<T: Lies>(&self, keys: Option<&DomainKeys>, wanted: &[T]) -> impl Future<Output = ()> + Send + use<T> {
        let mut by_pack: BTreeMap<PackId, Vec<Duty<T>>> = BTreeMap::new();
        for w in wanted.iter().filter(|w| !w.is_local(&self.0)) {
            // Only what nobody else is fetching.
            if let Joined::Leader(leader) = T::flights(&self.0).join(w.key()) {
                by_pack.entry(w.at().pack).or_default().push((*w, leader));
            }
        }
        let mut runs: Vec<Run<T>> = Vec::new();
        for (_, mut list) in by_pack {
            list.sort_by_key(|(w, _)| w.at().offset);
            for (w, leader) in list {
                match runs.last_mut() {
                    Some(run) if run.takes(&w) => run.frames.push((w, leader)),
                    _ => runs.push(Run { frames: vec![(w, leader)] }),
                }
            }
        }
        let (hydrator, keys, round) = (self.clone(), keys.cloned(), self.next_round());
        async move {
            futures::future::join_all(runs.into_iter().map(|run| hydrator.run(round, keys.as_ref(), run))).await;
        }
    }

    async fn run<T: Lies>(&self, round: u64, keys: Option<&DomainKeys>, run: Run<T>) {
        let (Some((first, _)), Some((last, _))) = (run.frames.first(), run.frames.last()) else { return };
        let (pack, start) = (first.at().pack, u64::from(first.at().offset));
        let body = self.range(round, &pack, start, end(last.at()) - start).await;
        for (w, leader) in run.frames {
            let got = match &body {
                Ok(Some(b)) => {
                    let from = (u64::from(w.at().offset) - start) as usize;
                    w.take(self, keys, b.slice(from..from + w.at().stored_len as usize))
                }
                Ok(None) => Err(Error::not_found("its pack is gone").at(pack)),
                Err(e) => Err(e.clone()),
            };
            // A hint that does not hold, or a gap in the store, is settled one at a time.
            let got = match got {
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => w.alone(self, keys).await,
                other => other,
            };
            if let Ok(plain) = &got {
                w.keep(&self.0, plain);
            }
            leader.finish(got);
        }
    }
}

impl<T: Lies> Run<T> {
    fn takes(&self, w: &T) -> bool {
        let (Some((first, _)), Some((last, _))) = (self.frames.first(), self.frames.last()) else { return false };
        let (start, before) = (u64::from(w.at().offset), end(last.at()));
        first.at().pack == w.at().pack
            && start >= before
            && start - before <= COALESCE_GAP
            && end(w.at()) - u64::from(first.at().offset) <= COALESCE_MAX
    }
}

fn end(at: &FrameLoc) -> u64 {
    u64::from(at.offset) + u64::from(at.stored_len)
}

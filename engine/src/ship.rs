//! Shipping: frames go into packs, packs go to the store, a few at a time.
//!
//! A [`Shipper`] runs on a thread that may block (never a FUSE or runtime thread): building packs is work for a CPU, and waiting for
//! an upload slot is what keeps its memory bounded.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_env::{Env, Task};
use hiloop_manifest::pack::{PackBuilder, PackKind};
use hiloop_manifest::tree::{Node, NodeSink};
use hiloop_manifest::{EncodedChunk, FrameLoc, LEVEL_HOT};
use hiloop_store::{Settled, Store};
use hiloop_types::{ChunkId, Error, Name, NodeId, Owner, PackId, Result, Session, WriterEpoch};
use tokio::sync::Semaphore;

/// Packs in flight of one shipper; with the two being built, its memory is at most this many packs and two more.
const UPLOADS: usize = 4;

/// Who ships, and under which sequence: part of every pack's key (`protocols.md` 5.1).
#[derive(Clone, Debug)]
pub struct Origin {
    /// Workspace or base.
    pub owner: Owner,
    /// Its name, for the pack's header.
    pub name: Name,
    /// Epoch of the opening (0 for bases).
    pub epoch: WriterEpoch,
    /// Session of the opening.
    pub session: Session,
    /// Highest sequence of what is shipped.
    pub sequence: u64,
}

/// What a shipper put into the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Shipped {
    /// Objects.
    pub packs: u64,
    /// Bytes of objects.
    pub bytes: u64,
    /// Chunks that were new.
    pub chunks_new: u64,
    /// Chunks that stood in this shipment already.
    pub chunks_repeated: u64,
}

/// Builds packs and uploads them.
pub struct Shipper {
    store: Store,
    env: Env,
    origin: Origin,
    data: Option<PackBuilder>,
    nodes: Option<PackBuilder>,
    known: HashMap<ChunkId, FrameLoc>,
    slots: Arc<Semaphore>,
    uploads: Vec<Task<Result<()>>>,
    shipped: Shipped,
}

impl Shipper {
    /// A shipper for one publish.
    pub fn new(store: Store, env: Env, origin: Origin) -> Self {
        Self {
            store,
            env,
            origin,
            data: None,
            nodes: None,
            known: HashMap::new(),
            slots: Arc::new(Semaphore::new(UPLOADS)),
            uploads: Vec::new(),
            shipped: Shipped::default(),
        }
    }

    /// Where a chunk of this shipment lies already.
    pub fn find(&self, id: &ChunkId) -> Option<FrameLoc> {
        self.known.get(id).copied()
    }

    /// Puts a chunk into a pack, once per shipment. Blocks while all upload slots are taken.
    ///
    /// # Errors
    /// Those of an upload that failed meanwhile.
    pub fn chunk(&mut self, chunk: &EncodedChunk) -> Result<FrameLoc> {
        if let Some(at) = self.find(&chunk.id) {
            self.shipped.chunks_repeated += 1;
            return Ok(at);
        }
        if let Some(full) = self.data.take_if(|p| p.is_full()) {
            self.upload(full)?;
        }
        let id = self.pack_id();
        let at = self.data.get_or_insert_with(|| PackBuilder::new(id, &self.origin.name, PackKind::Data)).add(chunk)?;
        self.known.insert(chunk.id, at);
        self.shipped.chunks_new += 1;
        Ok(at)
    }

    /// Uploads what is still open and waits for everything.
    ///
    /// # Errors
    /// The first upload error; nothing that was shipped may then be referenced.
    pub fn finish(mut self) -> Result<Shipped> {
        for open in [self.data.take(), self.nodes.take()].into_iter().flatten() {
            self.upload(open)?;
        }
        for task in std::mem::take(&mut self.uploads) {
            self.env.block_on(task).map_err(|e| Error::internal(format!("an upload task died: {e}")))??;
        }
        Ok(self.shipped)
    }

    fn pack_id(&self) -> PackId {
        let o = &self.origin;
        PackId { owner: o.owner, epoch: o.epoch, session: o.session, sequence: o.sequence, attempt: self.env.random_u32() }
    }

    fn upload(&mut self, pack: PackBuilder) -> Result<()> {
        let id = *pack.id();
        let bytes = pack.finish();
        self.shipped.packs += 1;
        self.shipped.bytes += bytes.len() as u64;
        let slots = self.slots.clone();
        let slot = self.env.block_on(slots.acquire_owned()).map_err(|_| Error::internal("the upload slots are closed"))?;
        // An upload that failed ends the shipment now rather than after everything else was uploaded in vain.
        if let Some(at) = self.uploads.iter().position(Task::is_finished) {
            let done = self.uploads.swap_remove(at);
            self.env.block_on(done).map_err(|e| Error::internal(format!("an upload task died: {e}")))??;
        }
        let store = self.store.clone();
        self.uploads.push(self.env.spawn(async move {
            let _slot = slot;
            put_pack(&store, &id, bytes).await
        }));
        Ok(())
    }
}

/// Puts a pack create-only; a second answer to the same attempt counts as success.
///
/// # Errors
/// Those of the store; `Conflict` where another object has that key.
pub async fn put_pack(store: &Store, id: &PackId, bytes: Bytes) -> Result<()> {
    let mine = bytes.clone();
    match store.create_settled(&id.key(), bytes, |there| *there == mine).await? {
        Settled::Won(_) => Ok(()),
        Settled::Lost(_) => Err(Error::conflict("another object has the key of this pack").at(id)),
    }
}

impl NodeSink for Shipper {
    fn put(&mut self, id: &NodeId, node: &Arc<Node>) -> Result<FrameLoc> {
        if let Some(full) = self.nodes.take_if(|p| p.is_full()) {
            self.upload(full)?;
        }
        let pack = self.pack_id();
        self.nodes.get_or_insert_with(|| PackBuilder::new(pack, &self.origin.name, PackKind::Node)).add_node(id, node.bytes(), LEVEL_HOT)
    }
}

//! Typed reading and writing of the catalog.

use bytes::Bytes;
use hiloop_env::Env;
use hiloop_store::{Settled, Store, Version};
use hiloop_types::{Error, ErrorKind, Name, Nonce, Result, ResultExt, WriterEpoch};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{BaseDoc, CutOff, Deleted, DomainDoc, FORMAT, Head, Heartbeat, Intent, Lease, LineageEvent, SnapshotDoc};

/// How often something that others move is tried again before they are told to be in the way.
pub(crate) const REDO: usize = 16;

/// A document of the catalog.
pub trait Document: Serialize + DeserializeOwned + Clone {
    /// Key prefix, with the slash.
    const PREFIX: &'static str;
    /// The word for messages.
    const KIND: &'static str;
    /// The part of the key behind [`Self::PREFIX`].
    fn id(&self) -> String;
    /// True for what only marks that something was deleted; [`Catalog::get`] and [`Catalog::list`] do not show it.
    fn is_buried(&self) -> bool {
        false
    }
}

/// Kinds of document whose conditional writes carry a nonce of their own.
pub(crate) trait Signed: Document {
    fn nonce(&self) -> Nonce;
}

/// What is deleted by swapping a tombstone in, as no store removes on a condition: a removal that comes late, or is sent again after
/// an unclear answer, would take what was made under the name since.
pub(crate) trait Mortal: Document {
    /// The tombstone of this document.
    fn tombstone(self, nonce: Nonce, at: u64) -> Self;
    /// True where `self` is a later state of the thing that `other` describes, not another thing of its name.
    fn same_life(&self, other: &Self) -> bool;
}

macro_rules! document {
    ($ty:ty, $prefix:literal, $kind:literal, |$d:ident| $id:expr $(, $buried:ident)?) => {
        impl Document for $ty {
            const PREFIX: &'static str = $prefix;
            const KIND: &'static str = $kind;
            fn id(&self) -> String {
                let $d = self;
                $id
            }
            $(
                fn is_buried(&self) -> bool {
                    self.$buried.is_some()
                }
            )?
        }
    };
}

document!(Head, "heads/", "workspace", |d| d.name.to_string());
document!(BaseDoc, "bases/", "base", |d| d.name.to_string(), deleted);
document!(SnapshotDoc, "snapshots/", "snapshot", |d| d.name.to_string(), deleted);
document!(DomainDoc, "domains/", "domain", |d| d.name.to_string());
document!(Heartbeat, "nodes/", "node", |d| d.node.to_string());
document!(Intent, "intents/", "intent", |d| d.nonce.to_string());
document!(Lease, "leases/", "lease", |d| d.nonce.to_string());
document!(Deleted, "deleted/", "deletion", |d| d.nonce.to_string());
document!(CutOff, "cutoffs/", "cut-off", |d| format!("{}/{:016x}", d.name, d.epoch.0));
// A nonce behind the epoch would let two events of one kind stand side by side; the kind and sequence do, and stay sorted.
document!(LineageEvent, "lineage/", "lineage event", |d| {
    use super::LineageKind as K;
    let what = match &d.event {
        K::Opened { .. } => "0-opened".to_owned(),
        K::Snapshot { name, sequence } => format!("1-snapshot-{sequence:016x}-{name}"),
        K::Deleted => "2-deleted".to_owned(),
    };
    format!("{}/{:016x}-{what}", d.workspace, d.epoch.0)
});

impl Signed for Head {
    fn nonce(&self) -> Nonce {
        self.nonce
    }
}
impl Signed for BaseDoc {
    fn nonce(&self) -> Nonce {
        self.nonce
    }
}
impl Signed for SnapshotDoc {
    fn nonce(&self) -> Nonce {
        self.nonce
    }
}

impl Mortal for BaseDoc {
    fn tombstone(self, nonce: Nonce, at: u64) -> Self {
        Self { root: None, reuses: Vec::new(), content: None, nonce, deleted: Some(at), ..self }
    }
    fn same_life(&self, other: &Self) -> bool {
        self.session == other.session
    }
}
impl Mortal for SnapshotDoc {
    fn tombstone(self, nonce: Nonce, at: u64) -> Self {
        Self { bases: Vec::new(), nonce, deleted: Some(at), ..self }
    }
    fn same_life(&self, other: &Self) -> bool {
        self.nonce == other.nonce
    }
}

/// A document that was read, and the version to swap it by.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// The document.
    pub doc: T,
    /// Its version in the store.
    pub version: Version,
}

/// The catalog of one store.
#[derive(Clone)]
pub struct Catalog {
    store: Store,
    env: Env,
}

impl Catalog {
    /// The catalog of `store`.
    pub fn new(store: Store, env: Env) -> Self {
        Self { store, env }
    }
    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }
    /// The surroundings.
    pub fn env(&self) -> &Env {
        &self.env
    }
    /// A fresh nonce.
    pub fn nonce(&self) -> Nonce {
        Nonce(self.env.random_u64())
    }
    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        self.env.wall().as_secs()
    }

    /// Reads a document by its id.
    pub async fn get<T: Document>(&self, id: &str) -> Result<Option<Found<T>>> {
        Ok(self.get_or_tombstone(id).await?.filter(|f: &Found<T>| !f.doc.is_buried()))
    }

    /// As [`Self::get`], tombstones too.
    pub(crate) async fn get_or_tombstone<T: Document>(&self, id: &str) -> Result<Option<Found<T>>> {
        let key = format!("{}{id}", T::PREFIX);
        match self.store.get(&key).await? {
            None => Ok(None),
            Some(v) => Ok(Some(Found { doc: decode(&key, &v.bytes)?, version: v.version })),
        }
    }

    /// Reads a document that must exist.
    pub async fn require<T: Document>(&self, id: &str) -> Result<Found<T>> {
        self.get::<T>(id).await?.ok_or_else(|| {
            Error::not_found(format!("there is no {} {id:?}", T::KIND))
                .at(self.store.name())
                .hint(format!("`list {}s` shows what there is", T::KIND))
        })
    }

    /// Reads the head of a workspace that exists and is not deleted.
    pub async fn live_head(&self, name: &Name) -> Result<Found<Head>> {
        let found = self.require::<Head>(name.as_str()).await?;
        if found.doc.tombstone {
            return Err(Error::not_found(format!("workspace {name:?} is deleted")).at(self.store.name()));
        }
        Ok(found)
    }

    /// All documents of a kind, sorted by key. One unreadable document fails the call: a partial list must never look whole.
    pub async fn list<T: Document>(&self) -> Result<Vec<Found<T>>> {
        let mut all: Vec<Found<T>> = self.list_with_tombstones().await?;
        all.retain(|f| !f.doc.is_buried());
        Ok(all)
    }

    /// As [`Self::list`], tombstones too.
    pub(crate) async fn list_with_tombstones<T: Document>(&self) -> Result<Vec<Found<T>>> {
        let mut keys: Vec<String> = self.store.list(T::PREFIX).await?.into_iter().map(|o| o.key).collect();
        keys.sort();
        let mut out = Vec::with_capacity(keys.len());
        for batch in keys.chunks(32) {
            let reads = batch.iter().map(|k| async move {
                match self.store.get(k).await? {
                    // Removed since the listing: not there is what a later list would say.
                    None => Ok(None),
                    Some(v) => Ok(Some(Found { doc: decode(k, &v.bytes)?, version: v.version })),
                }
            });
            out.extend(futures::future::try_join_all(reads).await?.into_iter().flatten());
        }
        Ok(out)
    }

    /// Puts a document that must not exist yet; `Conflict` where somebody else's is there.
    pub async fn create<T: Document>(&self, doc: &T) -> Result<Version> {
        let (key, bytes) = encode(doc)?;
        let mine = bytes.clone();
        match self.store.create_settled(&key, bytes, |there| *there == mine).await? {
            Settled::Won(v) => Ok(v),
            Settled::Lost(_) => Err(Error::conflict(format!("{} {:?} exists already", T::KIND, doc.id())).at(self.store.name())),
        }
    }

    /// Puts a document over whatever is there.
    pub async fn put<T: Document>(&self, doc: &T) -> Result<Version> {
        let (key, bytes) = encode(doc)?;
        self.store.put(&key, bytes).await
    }

    /// Removes a document; true where it was there.
    pub async fn remove<T: Document>(&self, id: &str) -> Result<bool> {
        self.store.delete(&format!("{}{id}", T::PREFIX)).await
    }

    /// Puts a document that carries a nonce and must not exist yet. `Ok(Err(found))` where somebody else's is there.
    async fn create_signed<T: Signed>(&self, doc: &T) -> Result<Result<Version, Option<Found<T>>>> {
        let (key, bytes) = encode(doc)?;
        let nonce = doc.nonce();
        let settled = self.store.create_settled(&key, bytes, |b| decode::<T>(&key, b).is_ok_and(|d| d.nonce() == nonce)).await?;
        Self::settled(&key, settled)
    }

    /// Replaces a document that carries a nonce, if it still is `version`. `Ok(Err(found))` where somebody else moved it.
    async fn swap_signed<T: Signed>(&self, version: &Version, doc: &T) -> Result<Result<Version, Option<Found<T>>>> {
        let (key, bytes) = encode(doc)?;
        let nonce = doc.nonce();
        let settled = self.store.swap_settled(&key, version, bytes, |b| decode::<T>(&key, b).is_ok_and(|d| d.nonce() == nonce)).await?;
        Self::settled(&key, settled)
    }

    fn settled<T: Document>(key: &str, s: Settled) -> Result<Result<Version, Option<Found<T>>>> {
        Ok(match s {
            Settled::Won(v) => Ok(v),
            Settled::Lost(None) => Err(None),
            Settled::Lost(Some(v)) => Err(Some(Found { doc: decode(key, &v.bytes)?, version: v.version })),
        })
    }

    /// Creates a head. `Ok(Err(found))` where one is there.
    pub async fn create_head(&self, head: &Head) -> Result<Result<Version, Option<Found<Head>>>> {
        self.create_signed(head).await
    }
    /// Moves a head. `Ok(Err(found))` where somebody else moved it, `Ok(Err(None))` where it is gone.
    pub async fn swap_head(&self, version: &Version, head: &Head) -> Result<Result<Version, Option<Found<Head>>>> {
        self.swap_signed(version, head).await
    }
    /// Creates a base or its intent. `Ok(Err(found))` where one is there.
    pub async fn create_base(&self, base: &BaseDoc) -> Result<Result<Version, Option<Found<BaseDoc>>>> {
        self.create_over_tombstone(base).await
    }
    /// Turns a base's intent into the base. `Ok(Err(found))` where somebody else did.
    pub async fn swap_base(&self, version: &Version, base: &BaseDoc) -> Result<Result<Version, Option<Found<BaseDoc>>>> {
        self.swap_signed(version, base).await
    }
    /// Creates a snapshot. `Ok(Err(found))` where one of that name is there.
    pub async fn create_snapshot(&self, doc: &SnapshotDoc) -> Result<Result<Version, Option<Found<SnapshotDoc>>>> {
        self.create_over_tombstone(doc).await
    }

    /// As [`Self::create_signed`]; a tombstone is not there.
    async fn create_over_tombstone<T: Signed>(&self, doc: &T) -> Result<Result<Version, Option<Found<T>>>> {
        let mut put = self.create_signed(doc).await?;
        // Others may make and delete the same name in between; one that goes on for ever is theirs.
        for _ in 0..REDO {
            match put {
                Err(Some(old)) if old.doc.is_buried() => put = self.swap_signed(&old.version, doc).await?,
                other => return Ok(other),
            }
        }
        Ok(put)
    }

    /// Swaps a tombstone in for what was read. `Ok(Err(now))` where it is another by now, or gone.
    pub(crate) async fn bury<T: Mortal + Signed>(&self, found: &Found<T>) -> Result<Result<(), Option<Found<T>>>> {
        let tombstone = found.doc.clone().tombstone(self.nonce(), self.now());
        let swapped = self.swap_signed(&found.version, &tombstone).await?;
        Ok(swapped.map(drop).map_err(|now| now.filter(|n| !n.doc.is_buried())))
    }

    /// The domain's document, made on first use.
    pub async fn domain(&self, name: &Name) -> Result<DomainDoc> {
        if let Some(found) = self.get::<DomainDoc>(name.as_str()).await? {
            return Ok(found.doc);
        }
        let key = self.env.random_key().iter().map(|b| format!("{b:02x}")).collect();
        let doc = DomainDoc { format: FORMAT, name: name.clone(), key };
        match self.create(&doc).await {
            Ok(_) => Ok(doc),
            Err(e) if e.kind() == ErrorKind::Conflict => Ok(self.require::<DomainDoc>(name.as_str()).await?.doc),
            Err(e) => Err(e),
        }
    }

    /// Events of one workspace, oldest first.
    pub async fn lineage(&self, workspace: &Name) -> Result<Vec<LineageEvent>> {
        let prefix = format!("{}{workspace}/", LineageEvent::PREFIX);
        let mut keys: Vec<String> = self.store.list(&prefix).await?.into_iter().map(|o| o.key).collect();
        keys.sort();
        let mut out = Vec::with_capacity(keys.len());
        for k in keys {
            if let Some(v) = self.store.get(&k).await? {
                out.push(decode(&k, &v.bytes)?);
            }
        }
        Ok(out)
    }

    /// Cut-off of one epoch, where there is one.
    pub async fn cut_off(&self, workspace: &Name, epoch: WriterEpoch) -> Result<Option<Found<CutOff>>> {
        self.get::<CutOff>(&format!("{workspace}/{:016x}", epoch.0)).await
    }
}

impl DomainDoc {
    /// The key of chunk ids in this domain.
    pub fn key_bytes(&self) -> Result<[u8; 32]> {
        hiloop_types::ChunkId::from_hex(&self.key)
            .map(|c| c.0)
            .ok_or_else(|| Error::corrupt("the domain's key is not 64 hexadecimal digits").at(format!("domains/{}", self.name)))
    }
}

pub(crate) fn encode<T: Document>(doc: &T) -> Result<(String, Bytes)> {
    let key = format!("{}{}", T::PREFIX, doc.id());
    let bytes = serde_json::to_vec_pretty(doc).map_err(|e| Error::internal(format!("cannot encode a {}: {e}", T::KIND)).at(&key))?;
    Ok((key, bytes.into()))
}

pub(crate) fn decode<T: Document>(key: &str, bytes: &[u8]) -> Result<T> {
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    let bad = |e: serde_json::Error| Error::corrupt(format!("is not a {} document: {e}", T::KIND)).at(key);
    let format: Format = serde_json::from_slice(bytes).map_err(bad)?;
    if format.format > FORMAT {
        return Err(Error::corrupt(format!("has format {}, this hiloop reads up to {FORMAT}", format.format))
            .at(key)
            .hint("upgrade hiloop"));
    }
    serde_json::from_slice(bytes).map_err(bad).at("the store")
}

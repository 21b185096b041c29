//! Publishing a base: a source tree becomes an immutable, content-addressed tree in the store.
//!
//! # Order of events (`protocols.md` 7.6)
//!
//! 1. The store is probed.
//! 2. `bases/<build id>` is created without a root: the base's own intent, naming the bases whose chunks may be reused and the session
//!    in the keys of all packs to come; both are safe from collection from here on.
//! 3. The reused bases are read again; one that went away meanwhile is not reused.
//! 4. Contents are cut, named, packed and shipped as the source is read; then the tree is built.
//! 5. The reused bases are read once more and the intent is swapped for the base. Whoever finds its intent moved or removed fails, and
//!    nothing names what it shipped.
//!
//! While it works a publisher renews its intent each [`HEARTBEAT`](limits::HEARTBEAT). Another one of the same build id watches for
//! [`BaseRequest::patience`] whether the intent moves and takes a still one over by a swap; time decides only about
//! patience, the swap decides who publishes.
//!
//! # Determinism
//!
//! Inode numbers are breadth-first positions, so that those of one directory are in sequence; ctime and btime are mtime, and so is
//! atime; births are epoch 0 and session 0; the name-hash key is derived from the domain's. So equal sources give equal records, and
//! [`BaseDoc::content`] is a digest over them in which chunks stand by identity. A build id that exists is read in a mode that names chunks
//! and uploads nothing, and compared.

mod contents;
mod records;
mod reuse;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use hiloop_env::Env;
use hiloop_manifest::DomainKey;
use hiloop_manifest::schema::ChunkDomain;
use hiloop_manifest::tree::{Builder, RootRef};
use hiloop_source::{SourceLimits, SourceSpec};
use hiloop_store::Version;
use hiloop_types::{Error, ErrorKind, Name, NodeId, Owner, Result, ResultExt, Session, WriterEpoch, limits};
use serde::Serialize;

use crate::catalog::{BaseDoc, Document, FORMAT, Found, PUBLIC_DOMAIN};
use crate::context::StoreContext;
use crate::front::Front;
use crate::ship::{Origin, Shipped, Shipper};
use contents::{Counts, Reading};
use reuse::Reusable;

/// How often a choice of bases to reuse is made again because one of them went away meanwhile.
const CHOICES: usize = 4;

/// What to publish, and as what.
#[derive(Clone, Debug)]
pub struct BaseRequest {
    /// Name of the base.
    pub build_id: Name,
    /// Dedup domain; [`PUBLIC_DOMAIN`] unless the base must stay within an organisation.
    pub domain: Name,
    /// Where the tree comes from.
    pub source: SourceSpec,
    /// Bounds on the source.
    pub limits: SourceLimits,
    /// How long to watch whether the publisher of an unfinished base of this build id is alive, before it is taken over; zero takes it
    /// over at once.
    pub patience: Duration,
}

impl BaseRequest {
    /// A request with the usual domain and limits.
    ///
    /// # Errors
    /// `Invalid` for a build id that is no name.
    pub fn new(build_id: &str, source: SourceSpec) -> Result<Self> {
        Ok(Self {
            build_id: Name::new(hiloop_types::NameKind::Base, build_id)?,
            domain: Name::new(hiloop_types::NameKind::Domain, PUBLIC_DOMAIN)?,
            source,
            limits: SourceLimits::default(),
            patience: limits::HEARTBEAT_WATCH,
        })
    }
}

/// How far a publish has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseProgress {
    /// An unfinished publish of the same build id was found; this one waits to see whether its publisher lives.
    Watching,
    /// The source is being read.
    Reading {
        /// Entries met.
        entries: u64,
        /// Content bytes read.
        bytes: u64,
    },
    /// All contents are read; the tree is being built and uploaded.
    Building,
}

/// Is told about progress, from several threads.
pub type ProgressFn = Arc<dyn Fn(BaseProgress) + Send + Sync>;

/// What a publish did.
#[derive(Clone, Debug, Serialize)]
pub struct BaseReport {
    /// The base.
    pub build_id: Name,
    /// Its tree.
    pub root: RootRef,
    /// Digest of its content, equal for equal sources in one domain of one store.
    pub content: NodeId,
    /// Number of inodes.
    pub files: u64,
    /// Bytes that are not holes.
    pub bytes_logical: u64,
    /// Bytes that the base put into packs.
    pub bytes_stored: u64,
    /// Chunks uploaded by this call.
    pub chunks_new: u64,
    /// Chunks that other bases (or this one, where it existed) had already.
    pub chunks_reused: u64,
    /// Packs uploaded by this call.
    pub packs: u64,
    /// True where the base existed with this content and nothing was written.
    pub existed: bool,
    /// Time taken.
    pub seconds: f64,
}

/// Publishes a base. See [the module](self).
///
/// # Errors
/// `Conflict` where the build id has other content or a live publisher, or where this publisher's intent was taken or removed;
/// `Invalid` where the store does no conditional writes; those of the source and of the store. After an error the intent is removed
/// again where that is possible.
pub fn publish_base<'a>(ctx: &'a StoreContext, request: BaseRequest, progress: ProgressFn) -> BoxFuture<'a, Result<BaseReport>> {
    Box::pin(async move {
        let started = ctx.env().monotonic();
        ctx.store().probe().await?;
        let key = DomainKey(ctx.catalog.domain(&request.domain).await?.key_bytes()?);
        let reading = Reading {
            source: request.source.clone(),
            limits: request.limits.clone(),
            key,
            domain: if request.domain.as_str() == PUBLIC_DOMAIN { ChunkDomain::Public } else { ChunkDomain::Own },
            progress,
            cancelled: Arc::default(),
        };
        let existing = ctx.catalog.get::<BaseDoc>(request.build_id.as_str()).await?;
        let mut report = match existing {
            Some(Found { doc, .. }) if doc.root.is_some() => compare(ctx.env(), reading, doc).await?,
            other => Publisher::start(ctx, &request, other, &reading.progress).await?.run(reading).await?,
        };
        report.seconds = ctx.env().monotonic().saturating_sub(started).as_secs_f64();
        Ok(report)
    })
}

/// Reads the source without uploading and compares it with the base that is there.
async fn compare(env: &Env, reading: Reading, doc: BaseDoc) -> Result<BaseReport> {
    let Some(root) = doc.root else { return Err(Error::internal("an unfinished base cannot be compared")) };
    let guard = CancelOnDrop(reading.cancelled.clone());
    let (summary, distinct) = blocking(env, move || {
        let name_key = reading.name_key();
        let (tree, contents, counts, _) = reading.read(None, None)?;
        Ok((records::write(&tree, &contents, name_key, |_, _| Ok(()))?, counts.distinct))
    })
    .await?;
    drop(guard);
    if doc.content != Some(summary.content) {
        return Err(Error::conflict(format!("base {:?} exists with other content", doc.name))
            .at(format!("bases/{}", doc.name))
            .hint("a base never changes: publish under another build id"));
    }
    Ok(BaseReport {
        build_id: doc.name,
        root,
        content: summary.content,
        files: doc.files,
        bytes_logical: doc.bytes_logical,
        bytes_stored: doc.bytes_stored,
        chunks_new: 0,
        chunks_reused: distinct,
        packs: 0,
        existed: true,
        seconds: 0.0,
    })
}

async fn blocking<T: Send + 'static>(env: &Env, f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    env.blocking(f).await.map_err(|e| Error::internal(format!("a publishing thread died: {e}")))?
}

/// Stops the threads of a publish whose caller went away.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the blocking part of a publish yields.
struct Built {
    root: RootRef,
    summary: records::Summary,
    counts: Counts,
    shipped: Shipped,
}

/// The holder of a base's intent.
struct Publisher<'a> {
    ctx: &'a StoreContext,
    doc: BaseDoc,
    version: Version,
}

impl<'a> Publisher<'a> {
    /// Puts the intent, or takes over the one that is there, and makes sure that the bases to reuse were there after it.
    async fn start(ctx: &'a StoreContext, request: &BaseRequest, there: Option<Found<BaseDoc>>, progress: &ProgressFn) -> Result<Self> {
        let there = match there {
            Some(found) => Some(watch(ctx, found, request.patience, progress).await?),
            None => None,
        };
        let mut doc = BaseDoc {
            format: FORMAT,
            name: request.build_id.clone(),
            root: None,
            front: Front::default(),
            reuses: reuse::choose(ctx, request).await?,
            domain: request.domain.clone(),
            inode_limit: 0,
            files: 0,
            bytes_logical: 0,
            bytes_stored: 0,
            content: None,
            session: Session(ctx.env().random_u64()),
            holder: ctx.holder.clone(),
            nonce: ctx.catalog.nonce(),
            created: ctx.catalog.now(),
            deleted: None,
        };
        let put = match &there {
            None => ctx.catalog.create_base(&doc).await?,
            Some(old) => ctx.catalog.swap_base(&old.version, &doc).await?,
        };
        let version = put.map_err(|found| lost(&request.build_id, found.as_ref()))?;
        let mut publisher = Self { ctx, doc: doc.clone(), version };
        for _ in 0..CHOICES {
            if reuse::still_there(ctx, &publisher.doc.reuses).await? {
                return Ok(publisher);
            }
            doc.reuses = reuse::choose(ctx, request).await?;
            publisher.replace(doc.clone()).await?;
        }
        doc.reuses = Vec::new();
        publisher.replace(doc).await?;
        Ok(publisher)
    }

    /// Swaps the base object for `doc` under a new nonce: one nonce names one attempt, or an older answer could pass for a newer.
    async fn replace(&mut self, mut doc: BaseDoc) -> Result<()> {
        doc.nonce = self.ctx.catalog.nonce();
        match self.ctx.catalog.swap_base(&self.version, &doc).await? {
            Ok(version) => {
                self.version = version;
                self.doc = doc;
                Ok(())
            }
            Err(found) => Err(lost(&self.doc.name, found.as_ref())),
        }
    }

    async fn run(mut self, reading: Reading) -> Result<BaseReport> {
        match self.publish(reading).await {
            Ok(report) => Ok(report),
            Err(e) => {
                self.abandon().await;
                Err(e)
            }
        }
    }

    async fn publish(&mut self, reading: Reading) -> Result<BaseReport> {
        let reusable = reuse::load(self.ctx, &self.doc.reuses, reading.domain).await?;
        let guard = CancelOnDrop(reading.cancelled.clone());
        let shipper = self.shipper();
        let env = self.ctx.env();
        let built = self.beating(async { blocking(env, move || build(reading, shipper, reusable)).await }, &guard).await?;
        if !reuse::still_there(self.ctx, &self.doc.reuses).await? {
            return Err(Error::conflict("a base whose chunks were reused was removed or changed meanwhile")
                .at(format!("bases/{}", self.doc.name))
                .hint("publish again"));
        }
        let done = BaseDoc {
            root: Some(built.root),
            front: Front::or_none(&self.ctx.hydrator, &built.root).await,
            inode_limit: built.summary.next_ino,
            files: built.summary.totals.inodes,
            bytes_logical: built.summary.totals.bytes,
            bytes_stored: built.shipped.bytes,
            content: Some(built.summary.content),
            created: self.ctx.catalog.now(),
            ..self.doc.clone()
        };
        self.replace(done).await?;
        Ok(BaseReport {
            build_id: self.doc.name.clone(),
            root: built.root,
            content: built.summary.content,
            files: built.summary.totals.inodes,
            bytes_logical: built.summary.totals.bytes,
            bytes_stored: built.shipped.bytes,
            chunks_new: built.shipped.chunks_new,
            chunks_reused: built.counts.reused,
            packs: built.shipped.packs,
            existed: false,
            seconds: 0.0,
        })
    }

    fn shipper(&self) -> Shipper {
        let origin = Origin {
            owner: Owner::base(&self.doc.name),
            name: self.doc.name.clone(),
            epoch: WriterEpoch(0),
            session: self.doc.session,
            sequence: 0,
        };
        Shipper::new(self.ctx.store().clone(), self.ctx.env().here(), origin)
    }

    /// Renews the intent while `work` runs; a lost intent stops it.
    async fn beating<T>(&mut self, work: impl Future<Output = Result<T>>, cancel: &CancelOnDrop) -> Result<T> {
        tokio::pin!(work);
        let mut taken = None;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return match taken {
                    Some(e) => Err(e),
                    None => done,
                },
                () = self.ctx.env().sleep(limits::HEARTBEAT), if taken.is_none() => match self.replace(self.doc.clone()).await {
                    Ok(()) => {}
                    // The store is away: the swap at the end will tell.
                    Err(e) if e.kind() == ErrorKind::Unavailable => {}
                    Err(e) => {
                        cancel.0.store(true, Ordering::Relaxed);
                        taken = Some(e);
                    }
                },
            }
        }
    }

    /// Removes the intent if it is still this publisher's; what cannot be removed is taken over by the next publish.
    async fn abandon(&self) {
        let key = self.doc.name.as_str();
        let mine = |f: &Found<BaseDoc>| f.doc.root.is_none() && f.doc.session == self.doc.session;
        let removed = match self.ctx.catalog.get::<BaseDoc>(key).await {
            Ok(Some(found)) if mine(&found) => self.ctx.catalog.bury(&found).await.map(drop),
            other => other.map(drop),
        };
        if let Err(e) = removed {
            tracing::warn!(error = %e, base = key, "the intent of a failed publish stays");
        }
    }
}

fn lost(name: &Name, found: Option<&Found<BaseDoc>>) -> Error {
    let at = format!("bases/{name}");
    match found.filter(|f| !f.doc.is_buried()) {
        None => Error::conflict(format!("the intent to publish base {name:?} was removed meanwhile")).at(at).hint("publish again"),
        Some(f) if f.doc.root.is_some() => {
            Error::conflict(format!("base {name:?} was published by {} meanwhile", f.doc.holder)).at(at).hint("publish again to compare")
        }
        Some(f) => Error::conflict(format!("{} publishes base {name:?} now", f.doc.holder)).at(at),
    }
}

/// Waits until it is clear whether the publisher of an unfinished base lives.
async fn watch(ctx: &StoreContext, found: Found<BaseDoc>, patience: Duration, progress: &ProgressFn) -> Result<Found<BaseDoc>> {
    progress(BaseProgress::Watching);
    let mut left = patience;
    while left > Duration::ZERO {
        let step = left.min(limits::HEARTBEAT);
        ctx.env().sleep(step).await;
        left -= step;
        let name = &found.doc.name;
        match ctx.catalog.get::<BaseDoc>(name.as_str()).await? {
            Some(now) if now.version == found.version => {}
            now => {
                return Err(lost(name, now.as_ref()).hint(format!("wait for it; if it is dead, `delete base {name}` drops its intent")));
            }
        }
    }
    Ok(found)
}

/// The blocking part: contents, then the tree.
fn build(reading: Reading, shipper: Shipper, reusable: Reusable) -> Result<Built> {
    let (progress, name_key) = (reading.progress.clone(), reading.name_key());
    let (tree, contents, counts, shipper) = reading.read(Some(shipper), Some(reusable))?;
    let mut shipper = shipper.ok_or_else(|| Error::internal("the shipper did not come back"))?;
    progress(BaseProgress::Building);
    let mut builder = Builder::new(&mut shipper);
    let summary = records::write(&tree, &contents, name_key, |key, value| builder.push(key, value))?;
    let root = builder.finish().at("the base's tree")?;
    let shipped = shipper.finish()?;
    Ok(Built { root, summary, counts, shipped })
}

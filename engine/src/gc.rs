//! Garbage collection without clocks (`protocols.md` 7).
//!
//! # A run
//!
//! 1. Deletion objects are listed; those whose name is gone already are no roots of this run. Forwards are listed: only they let a
//!    rewritten pack go. Then **packs** are listed, then **intents**, then forwards again, to be followed.
//! 2. Passes ([`passes`]): heads, snapshots, bases, cut-offs, deletion objects, leases and, last, intents are listed and read and all trees
//!    that they name are marked ([`mark`]). Marks accumulate; passes repeat until one shows no new name.
//! 3. Forwards are followed: what a root names in a rewritten pack is marked in the pack that holds it now.
//! 4. From the first listing of packs go those that are not marked, not protected by an intent, not above the limit of a live head's
//!    (epoch, session), and older than the grace; and rewritten packs all of whose live frames were found in their successors.
//! 5. Packs below half live are rewritten ([`repack`]).
//!
//! Any error before step 4 ends the run with nothing deleted. A deletion that fails ends it with what was deleted so far.
//!
//! # Memory
//!
//! Eight bytes (with the table about 16) for each distinct frame, and what the documents of one kind take.

mod mark;
mod passes;
mod repack;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use hiloop_types::{Error, Nonce, PackId, Result};
use serde::Serialize;

use crate::catalog::{BaseDoc, Deleted, DeletedKind, Document, Head, Intent, Lease, SnapshotDoc};
use crate::context::StoreContext;
use crate::forward::Forward;
use mark::Marks;
use passes::Passes;

/// Requests in flight.
const PARALLEL: usize = 16;
/// A deletion object outlives the deletion by this much, so that a run that began before it sees it whatever other runs do.
const DELETION_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a pack that are neither frames nor directory, at most: header with the longest name, trailer. A small pack is not sparse for
/// having them, or it would be rewritten by every run.
const PACK_OVERHEAD: u64 = 256;
/// A cut-off root is kept for `recover` for this long.
const CUT_OFF_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// A tombstone of a base or snapshot stays for this long. Its removal is the only one that carries no condition.
const TOMBSTONE_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How to collect.
#[derive(Clone, Copy, Debug, Default)]
pub struct GcOptions {
    /// Only say what would be done.
    pub dry_run: bool,
    /// Packs younger than this stay, by the store's clock: a second belt, zero is safe.
    pub grace: Duration,
    /// First remove the lease or intent of this nonce, whose holder then fails (ESTALE).
    pub drop: Option<Nonce>,
}

/// A lease or intent that protects something.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    /// `lease`, `fork`, `repack` or `publish`.
    pub what: &'static str,
    /// What `--drop` takes; absent for a publish, which `delete base` drops.
    pub nonce: Option<Nonce>,
    /// The base, where it is a publish.
    pub name: Option<String>,
    /// Who wrote it.
    pub holder: String,
    /// Seconds since it was written, by this machine's clock.
    pub age: u64,
}

/// What a run did, or would do.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GcReport {
    /// True where nothing was changed.
    pub dry_run: bool,
    /// Packs removed.
    pub packs_deleted: u64,
    /// Their bytes.
    pub bytes_freed: u64,
    /// Packs that stay.
    pub packs_kept: u64,
    /// Their bytes.
    pub bytes_kept: u64,
    /// Of these, packs that no root names and that an intent, a session or the grace protects.
    pub packs_protected: u64,
    /// Passes over the names.
    pub passes: u64,
    /// Distinct names seen.
    pub names: u64,
    /// Distinct places of chunks and nodes marked.
    pub chunks_marked: u64,
    /// Of these, nodes.
    pub nodes_marked: u64,
    /// Packs below half live that were rewritten; they go with a later run.
    pub repacked: u64,
    /// Bytes of the packs that took their place.
    pub bytes_repacked: u64,
    /// Packs that should be rewritten and are damaged: `fsck --deep` says more.
    pub damaged: Vec<String>,
    /// Forwards removed because no root names their old pack.
    pub forwards_deleted: u64,
    /// Objects of old deletions and cut-offs removed.
    pub records_deleted: u64,
    /// Leases and intents that stand.
    pub held: Vec<Held>,
}

/// A pack in the first listing.
#[derive(Clone, Copy, Debug)]
struct Listed {
    id: PackId,
    size: u64,
    modified: Duration,
}

/// Collects. See [the module](self).
///
/// # Errors
/// Those of the store and of any document or tree that cannot be read: then nothing was deleted. `NotFound` for a nonce to drop that
/// nobody holds.
pub fn gc<'a>(ctx: &'a StoreContext, options: GcOptions) -> BoxFuture<'a, Result<GcReport>> {
    Box::pin(async move {
        if let Some(nonce) = options.drop {
            drop_held(ctx, nonce).await?;
        }
        let deletions = deletions(ctx).await?;
        let early: BTreeSet<PackId> = forward_ids(ctx).await?.into_iter().collect();
        let packs = list_packs(ctx).await?;
        let first_intents = ctx.catalog.list::<Intent>().await?;
        let forwards = read_forwards(ctx).await?;

        let mut passes = Passes::new(ctx, Marks::new(forwards), &deletions.over);
        // These may be gone by the time the first pass lists intents, and what they were for may come behind its listing of heads.
        passes.first(first_intents.iter().map(|f| &f.doc)).await?;
        passes.run().await?;
        let mut marks = passes.marks;
        let moved = marks.follow(ctx.store()).await?;

        let plan = Plan { ctx, options, marks: &marks, guards: &passes.guards, early: &early, moved: &moved };
        let mut report = GcReport {
            dry_run: options.dry_run,
            passes: passes.passes,
            names: passes.names.len() as u64,
            chunks_marked: marks.frames(),
            nodes_marked: marks.nodes(),
            held: passes.held.clone(),
            ..GcReport::default()
        };
        let doomed = plan.sort(&packs, &mut report);
        let sparse = plan.sparse(&packs);
        if options.dry_run {
            report.repacked = sparse.len() as u64;
            return Ok(report);
        }
        delete_all(ctx, doomed.iter().map(|p| p.id.key()).collect()).await?;
        let unnamed: Vec<_> = early.iter().filter(|p| !marks.names(p)).map(Forward::key).collect();
        report.forwards_deleted = delete_all(ctx, unnamed).await?;
        report.records_deleted = delete_all(ctx, deletions.old.into_iter().chain(passes.expired).collect()).await?;
        report.records_deleted +=
            remove_graves::<BaseDoc>(ctx, &passes.graves).await? + remove_graves::<SnapshotDoc>(ctx, &passes.graves).await?;
        repack::repack(ctx, &marks, &sparse, &mut report).await?;
        Ok(report)
    })
}

async fn list_packs(ctx: &StoreContext) -> Result<Vec<Listed>> {
    let listed = ctx.store().list("packs/").await?;
    // What is no pack's key was not put by hiloop and is left alone.
    Ok(listed.into_iter().filter_map(|o| Some(Listed { id: PackId::parse_key(&o.key)?, size: o.size, modified: o.modified })).collect())
}

async fn forward_ids(ctx: &StoreContext) -> Result<Vec<PackId>> {
    let listed = ctx.store().list(Forward::PREFIX).await?;
    Ok(listed.iter().filter_map(|o| PackId::parse_key(o.key.strip_prefix(Forward::PREFIX)?)).collect())
}

async fn read_forwards(ctx: &StoreContext) -> Result<HashMap<PackId, Forward>> {
    let ids = forward_ids(ctx).await?;
    let reads = ids.into_iter().map(|id| async move { Forward::read(ctx.store(), &id).await.map(|f| f.map(|f| (id, f))) });
    let found: Vec<_> = stream::iter(reads).buffered(PARALLEL).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Deletion objects that stood before packs were listed.
struct Deletions {
    /// Nonces of those whose deletion is over: no roots of this run.
    over: HashSet<Nonce>,
    /// Keys of those among them that no run can need any more.
    old: Vec<String>,
}

async fn deletions(ctx: &StoreContext) -> Result<Deletions> {
    let all = ctx.catalog.list::<Deleted>().await?;
    let now = ctx.catalog.now();
    let checks = all.into_iter().map(|f| async move { is_over(ctx, &f.doc).await.map(|over| (over, f.doc)) });
    let checked: Vec<_> = stream::iter(checks).buffered(PARALLEL).try_collect().await?;
    let over: Vec<_> = checked.into_iter().filter_map(|(over, doc)| over.then_some(doc)).collect();
    let old = over.iter().filter(|d| d.at + DELETION_KEPT.as_secs() < now).map(|d| format!("{}{}", Deleted::PREFIX, d.id())).collect();
    Ok(Deletions { over: over.iter().map(|d| d.nonce).collect(), old })
}

/// True where what the name stands for now is not what was to be deleted: the deletion went through, or never can.
async fn is_over(ctx: &StoreContext, deleted: &Deleted) -> Result<bool> {
    let (c, name) = (&ctx.catalog, deleted.name.as_str());
    let now = match deleted.kind {
        DeletedKind::Workspace => c.get::<Head>(name).await?.map(|f| f.doc.nonce),
        DeletedKind::Snapshot => c.get::<SnapshotDoc>(name).await?.map(|f| f.doc.nonce),
        DeletedKind::Base => c.get::<BaseDoc>(name).await?.map(|f| f.doc.nonce),
    };
    let kept = deleted.owned && deleted.at + CUT_OFF_KEPT.as_secs() >= c.now();
    Ok(now != Some(deleted.of) && !kept)
}

async fn delete_all(ctx: &StoreContext, keys: Vec<String>) -> Result<u64> {
    let deletes = keys.into_iter().map(|key| async move { ctx.store().delete(&key).await });
    let done: Vec<_> = stream::iter(deletes).buffer_unordered(PARALLEL).try_collect().await?;
    Ok(done.len() as u64)
}

/// Removes old tombstones; what was made under the name since the listing stays.
async fn remove_graves<T: Document>(ctx: &StoreContext, keys: &BTreeSet<String>) -> Result<u64> {
    let mut removed = 0;
    for id in keys.iter().filter_map(|k| k.strip_prefix(T::PREFIX)) {
        if ctx.catalog.get_or_tombstone::<T>(id).await?.is_some_and(|f| f.doc.is_buried()) {
            removed += u64::from(ctx.catalog.remove::<T>(id).await?);
        }
    }
    Ok(removed)
}

async fn drop_held(ctx: &StoreContext, nonce: Nonce) -> Result<()> {
    let id = nonce.to_string();
    let (lease, intent) = (ctx.catalog.get::<Lease>(&id).await?, ctx.catalog.get::<Intent>(&id).await?);
    if lease.is_none() && intent.is_none() {
        return Err(Error::not_found(format!("nobody holds a lease or intent {nonce}")).hint("`gc --dry-run` lists them"));
    }
    ctx.catalog.remove::<Lease>(&id).await?;
    ctx.catalog.remove::<Intent>(&id).await.map(drop)
}

/// What is decided about packs once all is marked.
struct Plan<'a> {
    ctx: &'a StoreContext,
    options: GcOptions,
    marks: &'a Marks,
    guards: &'a passes::Guards,
    /// Rewritten packs whose forward stood before anything else was listed.
    early: &'a BTreeSet<PackId>,
    /// Rewritten packs all of whose live frames were found in their successors.
    moved: &'a HashSet<PackId>,
}

impl Plan<'_> {
    /// Counts all packs and answers those that go.
    fn sort(&self, packs: &[Listed], report: &mut GcReport) -> Vec<Listed> {
        let mut doomed = Vec::new();
        for pack in packs {
            let named = self.marks.names(&pack.id) && !(self.early.contains(&pack.id) && self.moved.contains(&pack.id));
            let guarded = self.guarded(pack);
            if named || guarded {
                report.packs_kept += 1;
                report.bytes_kept += pack.size;
                report.packs_protected += u64::from(!named);
            } else {
                report.packs_deleted += 1;
                report.bytes_freed += pack.size;
                doomed.push(*pack);
            }
        }
        doomed
    }

    /// Packs below half live that nobody can come to need more of.
    fn sparse(&self, packs: &[Listed]) -> Vec<Listed> {
        let wanted = |p: &&Listed| {
            let live = self.marks.live_bytes(&p.id);
            live > 0
                && live * 2 + PACK_OVERHEAD < p.size
                && !self.early.contains(&p.id)
                && !self.marks.is_forwarded(&p.id)
                && !self.guarded(p)
        };
        packs.iter().filter(wanted).copied().collect()
    }

    fn guarded(&self, pack: &Listed) -> bool {
        let young = !self.options.grace.is_zero() && pack.modified + self.options.grace > self.ctx.env().wall();
        young || self.guards.covers(&pack.id)
    }
}

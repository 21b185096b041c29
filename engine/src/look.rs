//! Looking at a store without mounting anything: what a SOURCE names, lists, lineage.

use futures::future::BoxFuture;
use hiloop_manifest::tree::RootRef;
use hiloop_store::Version;
use hiloop_types::{Claim, Error, Name, NameKind, Result, Session, WriterEpoch};
use serde::Serialize;

use crate::catalog::{BaseDoc, BaseRoot, Found, Head, LineageEvent, LineageKind, LostWindow, Parent, ParentKind, SnapshotDoc};
use crate::context::StoreContext;
use crate::front::Front;

/// Longest chain that [`lineage`] follows: a defence against documents that name each other in a circle.
const CHAIN_MAX: usize = 10_000;

/// A tree that a name stands for at one moment.
#[derive(Clone, Debug)]
pub struct SourceRoot {
    /// What the name names.
    pub kind: ParentKind,
    /// The name.
    pub name: Name,
    /// The tree; absent for a workspace that has published nothing.
    pub root: Option<RootRef>,
    /// What of the tree an opening reads first.
    pub front: Front,
    /// Base roots that the tree may reference.
    pub bases: Vec<BaseRoot>,
    /// Inode numbers below this may be in use.
    pub inode_limit: u64,
    /// Quota in bytes, where there is one.
    pub quota: Option<u64>,
    /// Dedup domain of the tree's own chunks.
    pub domain: Name,
    /// Epoch of the workspace, or of the snapshot's cut; 0 for bases.
    pub epoch: WriterEpoch,
    /// Session of the workspace, or of the snapshot's cut.
    pub session: Option<Session>,
    /// Published sequence of the workspace, or the snapshot's cut.
    pub sequence: u64,
    /// Where it came from.
    pub parent: Option<Parent>,
    /// Version of the document that was read.
    pub version: Version,
}

impl SourceRoot {
    /// `base:x`, `snapshot:x` or `workspace:x`: resolves to the same thing again.
    pub fn qualified(&self) -> String {
        format!("{}:{}", word(self.kind), self.name)
    }
    /// This source as the parent of something new.
    pub fn as_parent(&self) -> Parent {
        Parent { kind: self.kind, name: self.name.clone(), epoch: self.epoch, sequence: self.sequence }
    }
    /// True where both readings found the same tree, so that protection put in between covers it (`protocols.md` 7.5).
    pub fn same_tree(&self, other: &Self) -> bool {
        (self.kind, &self.name, &self.root, &self.bases) == (other.kind, &other.name, &other.root, &other.bases)
    }

    fn of_base(found: Found<BaseDoc>) -> Option<Self> {
        let Found { doc, version } = found;
        let root = doc.root?;
        Some(Self {
            kind: ParentKind::Base,
            bases: vec![BaseRoot { name: doc.name.clone(), root }],
            name: doc.name,
            root: Some(root),
            front: doc.front,
            inode_limit: doc.inode_limit,
            quota: None,
            domain: doc.domain,
            epoch: WriterEpoch(0),
            session: None,
            sequence: 0,
            parent: None,
            version,
        })
    }
    fn of_snapshot(found: Found<SnapshotDoc>) -> Self {
        let Found { doc, version } = found;
        Self {
            kind: ParentKind::Snapshot,
            name: doc.name,
            root: Some(doc.root),
            front: doc.front,
            bases: doc.bases,
            inode_limit: doc.inode_limit,
            quota: doc.quota,
            domain: doc.domain,
            epoch: doc.epoch,
            session: Some(doc.session),
            sequence: doc.sequence,
            parent: Some(Parent { kind: ParentKind::Workspace, name: doc.workspace, epoch: doc.epoch, sequence: doc.sequence }),
            version,
        }
    }
    fn of_head(found: Found<Head>) -> Option<Self> {
        let Found { doc, version } = found;
        (!doc.tombstone).then_some(Self {
            kind: ParentKind::Workspace,
            name: doc.name,
            root: doc.root,
            front: doc.front,
            bases: doc.bases,
            inode_limit: doc.inode_limit,
            quota: doc.quota,
            domain: doc.domain,
            epoch: doc.epoch,
            session: doc.session,
            sequence: doc.sequence,
            parent: doc.parent,
            version,
        })
    }
}

/// The word of a SOURCE's prefix.
pub(crate) fn word(kind: ParentKind) -> &'static str {
    match kind {
        ParentKind::Base => "base",
        ParentKind::Snapshot => "snapshot",
        ParentKind::Workspace => "workspace",
        ParentKind::Tail => "tail",
    }
}

/// Finds what `source` names: `base:X`, `snapshot:X`, `workspace:X`, or a name that only one of them has.
///
/// # Errors
/// `Invalid` for a prefix or name that cannot be, and for a name that several kinds have; `NotFound`; those of the store.
pub fn resolve<'a>(ctx: &'a StoreContext, source: &'a str) -> BoxFuture<'a, Result<SourceRoot>> {
    Box::pin(async move {
        let accepted = "use base:NAME, snapshot:NAME or workspace:NAME";
        let (kinds, text): (&[ParentKind], &str) = match source.split_once(':') {
            None => (&[ParentKind::Base, ParentKind::Snapshot, ParentKind::Workspace], source),
            Some(("base", n)) => (&[ParentKind::Base], n),
            Some(("snapshot", n)) => (&[ParentKind::Snapshot], n),
            Some(("workspace", n)) => (&[ParentKind::Workspace], n),
            Some((other, _)) => return Err(Error::invalid(format!("{other:?} is no kind of source")).at(source).hint(accepted)),
        };
        let of = match kinds {
            [ParentKind::Base] => NameKind::Base,
            [ParentKind::Snapshot] => NameKind::Snapshot,
            _ => NameKind::Workspace,
        };
        let name = Name::new(of, text)?;
        let reads = kinds.iter().map(|kind| look_up(ctx, *kind, &name));
        let mut found: Vec<SourceRoot> = futures::future::try_join_all(reads).await?.into_iter().flatten().collect();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                found.push(last);
                let all: Vec<_> = found.iter().map(SourceRoot::qualified).collect();
                Err(Error::invalid(format!("{text:?} is ambiguous: it names {}", all.join(" and "))).hint(accepted))
            }
            (None, _) => {
                let all: Vec<_> = kinds.iter().map(|k| word(*k)).collect();
                Err(Error::not_found(format!("there is no {} {text:?}", all.join(", ")))
                    .at(ctx.store().name())
                    .hint("`list` shows what there is"))
            }
        }
    })
}

/// Reads one kind of document; `None` where there is none, or only a tombstone or the intent of a base.
pub(crate) async fn look_up(ctx: &StoreContext, kind: ParentKind, name: &Name) -> Result<Option<SourceRoot>> {
    let c = &ctx.catalog;
    Ok(match kind {
        ParentKind::Base => c.get::<BaseDoc>(name.as_str()).await?.and_then(SourceRoot::of_base),
        ParentKind::Snapshot => c.get::<SnapshotDoc>(name.as_str()).await?.map(SourceRoot::of_snapshot),
        ParentKind::Workspace => c.get::<Head>(name.as_str()).await?.and_then(SourceRoot::of_head),
        ParentKind::Tail => None,
    })
}

/// All trees of the store by name: bases, snapshots, live workspaces.
pub(crate) async fn all_sources(ctx: &StoreContext) -> Result<Vec<SourceRoot>> {
    let c = &ctx.catalog;
    let mut all: Vec<_> = c.list::<BaseDoc>().await?.into_iter().filter_map(SourceRoot::of_base).collect();
    all.extend(c.list::<SnapshotDoc>().await?.into_iter().map(SourceRoot::of_snapshot));
    all.extend(c.list::<Head>().await?.into_iter().filter_map(SourceRoot::of_head));
    Ok(all)
}

/// A base in a list.
#[derive(Clone, Debug, Serialize)]
pub struct BaseRow {
    /// The build id.
    pub name: Name,
    /// The tree's identity; absent while the base is being published.
    pub root: Option<String>,
    /// Number of inodes.
    pub files: u64,
    /// Bytes that are not holes.
    pub bytes_logical: u64,
    /// Bytes in packs of its own.
    pub bytes_stored: u64,
    /// Dedup domain.
    pub domain: Name,
    /// Seconds since 1970.
    pub created: u64,
    /// Who publishes or published it.
    pub holder: String,
}

/// A workspace in a list.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceRow {
    /// The workspace.
    pub name: Name,
    /// The published tree's identity.
    pub root: Option<String>,
    /// Epoch of the last opening for write.
    pub epoch: WriterEpoch,
    /// Published sequence.
    pub sequence: u64,
    /// Node of the last opening.
    pub node: Option<Name>,
    /// True while an opening holds the head.
    pub open: bool,
    /// Where it came from.
    pub parent: Option<Parent>,
    /// Quota in bytes.
    pub quota: Option<u64>,
    /// Dedup domain.
    pub domain: Name,
    /// Kubernetes claim.
    pub claim: Option<Claim>,
    /// Seconds since 1970.
    pub created: u64,
}

/// A snapshot in a list.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotRow {
    /// The snapshot.
    pub name: Name,
    /// The workspace it was cut from.
    pub workspace: Name,
    /// The tree's identity.
    pub root: String,
    /// Epoch of the cut.
    pub epoch: WriterEpoch,
    /// Sequence of the cut.
    pub sequence: u64,
    /// Seconds since 1970.
    pub created: u64,
}

/// All bases, also those that are being published, by name.
///
/// # Errors
/// Those of the store; `Corrupt` for a document that cannot be read.
pub fn list_bases<'a>(ctx: &'a StoreContext) -> BoxFuture<'a, Result<Vec<BaseRow>>> {
    Box::pin(async move {
        let row = |b: BaseDoc| BaseRow {
            name: b.name,
            root: b.root.map(|r| r.node.id.to_string()),
            files: b.files,
            bytes_logical: b.bytes_logical,
            bytes_stored: b.bytes_stored,
            domain: b.domain,
            created: b.created,
            holder: b.holder,
        };
        Ok(ctx.catalog.list::<BaseDoc>().await?.into_iter().map(|f| row(f.doc)).collect())
    })
}

/// All workspaces that are not deleted, by name.
///
/// # Errors
/// As [`list_bases`].
pub fn list_workspaces<'a>(ctx: &'a StoreContext) -> BoxFuture<'a, Result<Vec<WorkspaceRow>>> {
    Box::pin(async move {
        let row = |h: Head| WorkspaceRow {
            open: h.is_open(),
            name: h.name,
            root: h.root.map(|r| r.node.id.to_string()),
            epoch: h.epoch,
            sequence: h.sequence,
            node: h.node,
            parent: h.parent,
            quota: h.quota,
            domain: h.domain,
            claim: h.claim,
            created: h.created,
        };
        Ok(ctx.catalog.list::<Head>().await?.into_iter().filter(|f| !f.doc.tombstone).map(|f| row(f.doc)).collect())
    })
}

/// All snapshots, by name.
///
/// # Errors
/// As [`list_bases`].
pub fn list_snapshots<'a>(ctx: &'a StoreContext) -> BoxFuture<'a, Result<Vec<SnapshotRow>>> {
    Box::pin(async move {
        let row = |s: SnapshotDoc| SnapshotRow {
            name: s.name,
            workspace: s.workspace,
            root: s.root.node.id.to_string(),
            epoch: s.epoch,
            sequence: s.sequence,
            created: s.created,
        };
        Ok(ctx.catalog.list::<SnapshotDoc>().await?.into_iter().map(|f| row(f.doc)).collect())
    })
}

/// One link of a chain of parents.
#[derive(Clone, Debug, Serialize)]
pub struct LineageStep {
    /// What it is.
    pub kind: ParentKind,
    /// Its name.
    pub name: Name,
    /// Epoch at the time that the step below came from it; for the first step, now.
    pub epoch: WriterEpoch,
    /// Sequence at that time.
    pub sequence: u64,
    /// True where it was deleted since, or another thing has its name now.
    pub deleted: bool,
    /// Workspaces: what is known about writes that were lost between openings, by the epoch that opened; clean openings left out.
    pub lost_windows: Vec<EpochWindow>,
    /// Workspaces: openings, snapshots and deletion, oldest first, up to the epoch above.
    pub events: Vec<LineageEvent>,
}

/// A lost window and the opening that found it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EpochWindow {
    /// Epoch of the opening.
    pub epoch: WriterEpoch,
    /// What it found.
    pub window: LostWindow,
}

/// The chain of parents from `source` to its base, `source` first. A bare name of a deleted workspace is found too.
///
/// # Errors
/// As [`resolve`]; a parent that nothing is known about any more ends the chain and is no error.
pub fn lineage<'a>(ctx: &'a StoreContext, source: &'a str) -> BoxFuture<'a, Result<Vec<LineageStep>>> {
    Box::pin(async move {
        let mut next = match resolve(ctx, source).await {
            Ok(found) => Some(found.as_parent()),
            Err(e) => Some(deleted_workspace(ctx, source).await?.ok_or(e)?),
        };
        let mut chain = Vec::new();
        while let Some(at) = next.take() {
            if chain.len() >= CHAIN_MAX {
                return Err(Error::corrupt(format!("the lineage of {source} is longer than {CHAIN_MAX} steps")));
            }
            let (step, parent) = match at.kind {
                ParentKind::Workspace | ParentKind::Tail => workspace_step(ctx, at).await?,
                ParentKind::Snapshot => snapshot_step(ctx, at).await?,
                ParentKind::Base => (step(&at, look_up(ctx, ParentKind::Base, &at.name).await?.is_none()), None),
            };
            chain.push(step);
            next = parent;
        }
        Ok(chain)
    })
}

fn step(at: &Parent, deleted: bool) -> LineageStep {
    LineageStep {
        kind: at.kind,
        name: at.name.clone(),
        epoch: at.epoch,
        sequence: at.sequence,
        deleted,
        lost_windows: Vec::new(),
        events: Vec::new(),
    }
}

async fn deleted_workspace(ctx: &StoreContext, source: &str) -> Result<Option<Parent>> {
    let text = source.strip_prefix("workspace:").unwrap_or(source);
    let Ok(name) = Name::new(NameKind::Workspace, text) else { return Ok(None) };
    let head = ctx.catalog.get::<Head>(name.as_str()).await?;
    Ok(head.map(|f| Parent { kind: ParentKind::Workspace, name, epoch: f.doc.epoch, sequence: f.doc.sequence }))
}

/// A workspace that was deleted and created again has several lives; a deletion's epoch ends one. Only the last life's parent stands
/// in the head, that of an earlier one in the event that ended it.
async fn workspace_step(ctx: &StoreContext, at: Parent) -> Result<(LineageStep, Option<Parent>)> {
    let head = ctx.catalog.get::<Head>(at.name.as_str()).await?.map(|f| f.doc);
    let mut events = ctx.catalog.lineage(&at.name).await?;
    let ends = |e: &&LineageEvent| matches!(e.event, LineageKind::Deleted);
    let ended = events.iter().filter(ends).find(|e| e.epoch >= at.epoch).cloned();
    let before = events.iter().filter(ends).rev().find(|e| e.epoch < at.epoch).map(|e| e.epoch);
    events.retain(|e| e.epoch <= at.epoch && before.is_none_or(|b| e.epoch > b));
    let lost_windows = events
        .iter()
        .filter_map(|e| match e.event {
            LineageKind::Opened { lost_window, .. } if lost_window != LostWindow::None => {
                Some(EpochWindow { epoch: e.epoch, window: lost_window })
            }
            _ => None,
        })
        .collect();
    let deleted = ended.is_some() || head.as_ref().is_none_or(|h| h.tombstone);
    let parent = ended.map_or_else(|| head.and_then(|h| h.parent), |e| e.parent);
    Ok((LineageStep { lost_windows, events, ..step(&at, deleted) }, parent))
}

async fn snapshot_step(ctx: &StoreContext, at: Parent) -> Result<(LineageStep, Option<Parent>)> {
    let found = ctx.catalog.get::<SnapshotDoc>(at.name.as_str()).await?.map(|f| f.doc);
    if let Some(s) = found.filter(|s| (s.epoch, s.sequence) == (at.epoch, at.sequence)) {
        let parent = Parent { kind: ParentKind::Workspace, name: s.workspace, epoch: s.epoch, sequence: s.sequence };
        return Ok((step(&at, false), Some(parent)));
    }
    // The workspace of a deleted snapshot stands in the key of the event that cut it.
    let cut = format!("{:016x}-1-snapshot-{:016x}-{}", at.epoch.0, at.sequence, at.name);
    let listed = ctx.store().list("lineage/").await?;
    let workspace = listed.iter().find_map(|o| o.key.strip_prefix("lineage/")?.strip_suffix(&cut)?.strip_suffix('/'));
    let parent = match workspace {
        Some(w) => {
            let name = Name::new(NameKind::Workspace, w)?;
            Some(Parent { kind: ParentKind::Workspace, name, epoch: at.epoch, sequence: at.sequence })
        }
        None => None,
    };
    Ok((step(&at, true), parent))
}

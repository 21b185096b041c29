//! Retiring names: `deleted/<nonce>` first, then the name (`protocols.md` 7.3).
//!
//! The deletion object keeps the root alive for collectors that look around the listing: whatever was forked from it meanwhile is seen
//! either by its own name or through this object. Then a tombstone is swapped in for exactly what was read: of a workspace one with the
//! next epoch, so that epochs never restart. What was made under the name meanwhile is never deleted. Content goes with the next `gc`.

use futures::future::BoxFuture;
use hiloop_store::Version;
use hiloop_types::{Error, Name, NameKind, Nonce, Result, WriterEpoch};
use serde::Serialize;

use crate::catalog::{
    BaseDoc, Deleted, DeletedKind, Document, FORMAT, Found, Head, LineageEvent, LineageKind, Mortal, REDO, Signed, SnapshotDoc,
};
use crate::context::StoreContext;
use crate::front::Front;

/// One deleted name.
#[derive(Clone, Debug, Serialize)]
pub struct DeleteReport {
    /// What it was.
    pub kind: DeletedKind,
    /// Its name.
    pub name: Name,
    /// Identity of the tree that it named.
    pub root: Option<String>,
}

/// Deletes `name`. With `force` also a workspace whose writer lives: that writer is fenced at its next publish.
///
/// A base that others were built on may be deleted: their heads record its root, which stays. Deleting an unfinished base drops the
/// intent of its publisher, which then fails.
///
/// # Errors
/// `NotFound`; `Conflict` for a workspace with a live writer (names its node), or one that moves all the time.
pub fn delete<'a>(ctx: &'a StoreContext, kind: DeletedKind, name: &'a str, force: bool) -> BoxFuture<'a, Result<DeleteReport>> {
    Box::pin(async move {
        match kind {
            DeletedKind::Workspace => delete_workspace(ctx, &Name::new(NameKind::Workspace, name)?, force).await,
            DeletedKind::Base => {
                let name = Name::new(NameKind::Base, name)?;
                remove_named::<BaseDoc>(ctx, &name, |d| deletion(ctx, kind, &name, d.nonce, d.root, d.reuses.clone())).await
            }
            DeletedKind::Snapshot => {
                let name = Name::new(NameKind::Snapshot, name)?;
                remove_named::<SnapshotDoc>(ctx, &name, |d| deletion(ctx, kind, &name, d.nonce, Some(d.root), d.bases.clone())).await
            }
        }
    })
}

fn deletion(
    ctx: &StoreContext,
    kind: DeletedKind,
    name: &Name,
    of: Nonce,
    root: Option<hiloop_manifest::tree::RootRef>,
    bases: Vec<crate::catalog::BaseRoot>,
) -> Deleted {
    Deleted { format: FORMAT, nonce: ctx.catalog.nonce(), kind, name: name.clone(), of, root, bases, owned: false, at: ctx.catalog.now() }
}

fn report(deleted: Deleted) -> DeleteReport {
    DeleteReport { kind: deleted.kind, name: deleted.name, root: deleted.root.map(|r| r.node.id.to_string()) }
}

fn taken<T: Document>(ctx: &StoreContext, name: &Name) -> Error {
    Error::not_found(format!("{} {name:?} was deleted by somebody else just now", T::KIND)).at(ctx.store().name())
}

/// Deletes a base or snapshot: the one that is there now, and no later one of its name.
async fn remove_named<T: Mortal + Signed>(ctx: &StoreContext, name: &Name, describe: impl Fn(&T) -> Deleted) -> Result<DeleteReport> {
    let c = &ctx.catalog;
    let mut found: Found<T> = c.require(name.as_str()).await?;
    for _ in 0..REDO {
        let deleted = describe(&found.doc);
        c.create(&deleted).await?;
        let moved = match c.bury(&found).await? {
            Ok(()) => return Ok(report(deleted)),
            Err(now) => now,
        };
        // This deletion object names what is not to be deleted.
        c.remove::<Deleted>(&deleted.id()).await?;
        match moved {
            Some(now) if now.doc.same_life(&found.doc) => found = now,
            _ => return Err(taken::<T>(ctx, name)),
        }
    }
    Err(Error::conflict(format!("{} {name:?} changes all the time", T::KIND)).at(ctx.store().name()))
}

async fn delete_workspace(ctx: &StoreContext, name: &Name, force: bool) -> Result<DeleteReport> {
    let c = &ctx.catalog;
    let mut life = None;
    for _ in 0..REDO {
        let Found { doc: head, version } = c.live_head(name).await?;
        // A head that moves keeps its birth.
        let birth = (head.created, head.parent.clone());
        if life.get_or_insert_with(|| birth.clone()) != &birth {
            return Err(taken::<Head>(ctx, name));
        }
        if head.is_open() && !force {
            let node = head.node.map_or_else(|| "an unnamed node".to_owned(), |n| format!("node {n}"));
            return Err(Error::conflict(format!("workspace {name:?} is open for write on {node}"))
                .at(ctx.store().name())
                .hint("unmount it there, or delete it with --force: what that node has not published is then lost"));
        }
        let owned = head.is_open();
        let deleted = Deleted { owned, ..deletion(ctx, DeletedKind::Workspace, name, head.nonce, head.root, head.bases.clone()) };
        c.create(&deleted).await?;
        if bury(ctx, head, &version).await? {
            return Ok(report(deleted));
        }
        // The head moved: this deletion object names a root that is not the one to be deleted.
        c.remove::<Deleted>(&deleted.id()).await?;
    }
    Err(Error::conflict(format!("workspace {name:?} moves all the time"))
        .at(ctx.store().name())
        .hint("fence its writer first: mount it with --take-over"))
}

/// Swaps the tombstone in; false where the head moved.
async fn bury(ctx: &StoreContext, head: Head, version: &Version) -> Result<bool> {
    let tombstone = Head {
        epoch: WriterEpoch(head.epoch.0 + 1),
        session: None,
        node: None,
        root: None,
        front: Front::default(),
        bases: Vec::new(),
        nonce: ctx.catalog.nonce(),
        release: None,
        cut_off: None,
        tombstone: true,
        ..head
    };
    if ctx.catalog.swap_head(version, &tombstone).await?.is_err() {
        return Ok(false);
    }
    let event = LineageEvent {
        format: FORMAT,
        workspace: tombstone.name,
        epoch: tombstone.epoch,
        event: LineageKind::Deleted,
        parent: tombstone.parent,
        at: ctx.catalog.now(),
    };
    ctx.catalog.put(&event).await?;
    Ok(true)
}

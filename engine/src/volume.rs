//! Workspaces that belong to a Kubernetes claim: making or adopting one, describing it, deleting it.
//!
//! The identity of such a workspace follows from its claim ([`Claim::workspace`]), so every rule here is about never handing one
//! claim's data to another: a head is adopted only while it is bound to no claim, a claim that was deleted never comes back, and a
//! repeated request finds what the first one made. A head that an opening holds is not adopted: its owner would read the swap as
//! fencing (`protocols.md` 3.2); nor is one whose release left a tail, which its node could then not take up again.

use futures::future::BoxFuture;
use hiloop_manifest::schema::Totals;
use hiloop_types::{Claim, Error, Name, NameKind, Result};

use crate::catalog::{BaseDoc, Catalog, Claimed, DeletedKind, Found, Head, REDO};
use crate::context::StoreContext;
use crate::delete::delete;
use crate::fork::{Binding, DEFAULT_DOMAIN, ForkOptions, fork};
use crate::node::read_super;

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct VolumeRequest {
    /// The workspace.
    pub name: Name,
    /// The claim.
    pub claim: Claim,
    /// Base that a new workspace starts from; `None`: from nothing. A prepared workspace is adopted whatever it came from.
    pub base: Option<Name>,
    /// Bytes that it must be able to hold; 0: any.
    pub required: u64,
    /// Bytes that it may hold at most; 0: any.
    pub limit: u64,
}

/// How a claim got its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It did not exist.
    Created,
    /// It was prepared and bound to no claim.
    Adopted,
    /// The same claim made it before.
    Found,
}

/// Why a claim does not get its workspace, or why it is not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The identity was deleted and never comes back.
    Deleted,
    /// It is bound to another claim.
    OtherClaim,
    /// It was bound with a size that does not fit.
    OtherSize,
    /// It was created from another base.
    OtherBase,
    /// The size is below what the tree holds already.
    TooSmall,
    /// There is no such base.
    UnknownBase,
    /// An opening holds the head, or left a tail on its node.
    Open,
}

/// What came of a request that was understood.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The workspace is there and belongs to the claim.
    Ready(Box<Head>, How),
    /// Not now, or never: the reason, and a sentence for people.
    Refused(Why, String),
}

fn refused(why: Why, sentence: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Refused(why, sentence.into()))
}

/// Makes the workspace of a claim, or finds it.
///
/// # Errors
/// `Invalid` for a limit below what is required; those of the store. What can be said about a well-formed request is an [`Outcome`].
pub fn create<'a>(ctx: &'a StoreContext, request: &'a VolumeRequest) -> BoxFuture<'a, Result<Outcome>> {
    Box::pin(async move {
        if request.limit > 0 && request.limit < request.required {
            return Err(Error::invalid(format!(
                "the limit of {} bytes is below the {} that are required",
                request.limit, request.required
            )));
        }
        for _ in 0..REDO {
            let done = match ctx.catalog.get::<Head>(request.name.as_str()).await? {
                Some(found) => bind(ctx, request, found).await?,
                None => make(ctx, request).await?,
            };
            if let Some(outcome) = done {
                return Ok(outcome);
            }
        }
        Err(Error::conflict(format!("workspace {} is being made or moved by others", request.name)).hint("try again"))
    })
}

fn claimed(request: &VolumeRequest) -> Claimed {
    Claimed { size: size(request), base: request.base.clone() }
}

/// The size to record; the quota of the workspace. `None`: nothing was asked for.
fn size(request: &VolumeRequest) -> Option<u64> {
    Some(if request.required > 0 { request.required } else { request.limit }).filter(|s| *s > 0)
}

/// True where a volume of `size` is what the request asks for.
fn fits(request: &VolumeRequest, size: Option<u64>) -> bool {
    let Some(size) = size else { return request.required == 0 && request.limit == 0 };
    size >= request.required && (request.limit == 0 || size <= request.limit)
}

fn too_small(request: &VolumeRequest, holds: u64, what: &str) -> Option<Outcome> {
    let size = size(request).filter(|s| *s < holds)?;
    Some(Outcome::Refused(Why::TooSmall, format!("{what} holds {holds} bytes already, which {size} cannot hold; ask for more")))
}

/// Makes the workspace where there is none; `None` where somebody was quicker.
async fn make(ctx: &StoreContext, request: &VolumeRequest) -> Result<Option<Outcome>> {
    let binding = Binding { claim: request.claim.clone(), claimed: claimed(request) };
    let Some(base) = &request.base else {
        let domain = Name::new(NameKind::Domain, DEFAULT_DOMAIN)?;
        ctx.catalog.domain(&domain).await?;
        let mut head = Head::empty(&ctx.catalog, request.name.clone(), hiloop_types::WriterEpoch(0), domain, size(request));
        (head.claim, head.claimed) = (Some(binding.claim), Some(binding.claimed));
        return Ok(ctx.catalog.create_head(&head).await?.is_ok().then(|| Outcome::Ready(Box::new(head), How::Created)));
    };
    let Some(found) = ctx.catalog.get::<BaseDoc>(base.as_str()).await?.filter(|b| b.doc.root.is_some()) else {
        return refused(Why::UnknownBase, format!("there is no base {base}: publish it, or name one that `list bases` shows")).map(Some);
    };
    if let Some(refusal) = too_small(request, found.doc.bytes_logical, &format!("base {base}")) {
        return Ok(Some(refusal));
    }
    let options = ForkOptions { domain: None, quota: size(request), binding: Some(binding) };
    let mut made = fork(ctx, &format!("base:{base}"), &[request.name.to_string()], &options).await?;
    match made.pop().and_then(|m| m.error) {
        None => {
            let head = ctx.catalog.live_head(&request.name).await?;
            Ok(Some(Outcome::Ready(Box::new(head.doc), How::Created)))
        }
        // Somebody made it meanwhile: what is there decides.
        Some(e) if e.kind() == hiloop_types::ErrorKind::Conflict => Ok(None),
        Some(e) => Err(e),
    }
}

/// Finds that the workspace belongs to the claim, or binds it; `None` where it moved meanwhile.
async fn bind(ctx: &StoreContext, request: &VolumeRequest, found: Found<Head>) -> Result<Option<Outcome>> {
    let Found { doc: head, version } = found;
    let (name, claim) = (&request.name, &request.claim);
    if head.tombstone {
        return refused(Why::Deleted, format!("workspace {name} of claim {claim} was deleted and never comes back; use a new claim name"))
            .map(Some);
    }
    match &head.claim {
        Some(bound) if bound != claim => {
            return refused(Why::OtherClaim, format!("workspace {name} belongs to claim {bound}, not to {claim}")).map(Some);
        }
        Some(_) => {}
        None if head.is_open() => {
            let node = head.node.as_ref().map_or("an unnamed node", |n| n.as_str());
            return refused(Why::Open, format!("workspace {name} is open on {node} and is adopted once it is given back")).map(Some);
        }
        None if head.release.is_some_and(|r| r.tail > 0) => {
            let node = head.node.as_ref().map_or("an unnamed node", |n| n.as_str());
            return refused(Why::Open, format!("workspace {name} has writes on {node} that are not published; mount it there first"))
                .map(Some);
        }
        None => {
            if let Some(root) = &head.root {
                let totals: Totals = read_super(&ctx.hydrator, root).await?.totals;
                if let Some(refusal) = too_small(request, totals.bytes, &format!("workspace {name}")) {
                    return Ok(Some(refusal));
                }
            }
            return adopt(&ctx.catalog, request, head, &version).await;
        }
    }
    let has = head.claimed.clone().unwrap_or_default();
    if !fits(request, has.size) {
        let has = has.size.map_or_else(|| "without a size".to_owned(), |s| format!("with {s} bytes"));
        return refused(Why::OtherSize, format!("the volume of claim {claim} exists {has}, which is not what is asked for")).map(Some);
    }
    if request.base != has.base {
        let name = |b: &Option<Name>| b.as_ref().map_or("none", |n| n.as_str()).to_owned();
        let what = format!("the volume of claim {claim} was asked for with base {}, now with {}", name(&has.base), name(&request.base));
        return refused(Why::OtherBase, what).map(Some);
    }
    Ok(Some(Outcome::Ready(Box::new(head), How::Found)))
}

async fn adopt(catalog: &Catalog, request: &VolumeRequest, head: Head, version: &hiloop_store::Version) -> Result<Option<Outcome>> {
    let adopted = Head {
        claim: Some(request.claim.clone()),
        claimed: Some(claimed(request)),
        quota: size(request).or(head.quota),
        nonce: catalog.nonce(),
        ..head
    };
    Ok(catalog.swap_head(version, &adopted).await?.is_ok().then(|| Outcome::Ready(Box::new(adopted), How::Adopted)))
}

/// Deletes the workspace of a claim: a tombstone takes its place. `None` once it is gone, else why it is not; `force` also where an
/// opening holds it.
///
/// # Errors
/// Those of the store.
pub fn retire<'a>(ctx: &'a StoreContext, name: &'a Name, force: bool) -> BoxFuture<'a, Result<Option<(Why, String)>>> {
    Box::pin(async move {
        let Some(found) = ctx.catalog.get::<Head>(name.as_str()).await?.filter(|f| !f.doc.tombstone) else { return Ok(None) };
        let node = found.doc.node.map_or_else(|| "an unnamed node".to_owned(), |n| format!("node {n}"));
        match delete(ctx, DeletedKind::Workspace, name.as_str(), force).await {
            Ok(_) => Ok(None),
            Err(e) if e.kind() == hiloop_types::ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == hiloop_types::ErrorKind::Conflict => {
                Ok(Some((Why::Open, format!("workspace {name} is open for write on {node}; it is deleted once it is given back"))))
            }
            Err(e) => Err(e),
        }
    })
}

//! Forking: new workspaces over an existing tree, one conditional put each (`protocols.md` 7.5).
//!
//! One intent per call names the root; the source is read again after it, and gone or moved means that the intent is removed and all is
//! done anew; then the children are put; then the intent is removed. A name whose workspace was deleted is swapped over with its epoch
//! plus one, so that epochs never restart (`protocols.md` 3.1).

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use hiloop_types::{Claim, Error, ErrorKind, Name, NameKind, Result, WriterEpoch};
use serde::Serialize;

use crate::catalog::{Claimed, FORMAT, Head, Intent, IntentKind, PUBLIC_DOMAIN, Parent, ParentKind, REDO, quota_of};
use crate::context::StoreContext;
use crate::look::{SourceRoot, look_up, resolve};

/// Children put at once.
const PARALLEL: usize = 16;
/// Attempts at one child's name while others delete and create it.
const NAME_ATTEMPTS: usize = 4;
/// Domain of workspaces that say nothing else.
pub const DEFAULT_DOMAIN: &str = "default";

/// What children have that their source does not say.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// Dedup domain of the children: only for children of public bases, all others inherit theirs. Default: [`DEFAULT_DOMAIN`].
    pub domain: Option<Name>,
    /// Quota in bytes, 0 for none; inherited where absent.
    pub quota: Option<u64>,
    /// Claim that the one child is bound to from its first moment on. It is not made over a deleted workspace then: the identity of a
    /// claim never comes back.
    pub binding: Option<Binding>,
}

/// A claim and what it asked for.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The claim.
    pub claim: Claim,
    /// Its size and base.
    pub claimed: Claimed,
}

/// One child.
#[derive(Clone, Debug, Serialize)]
pub struct ForkResult {
    /// Its name.
    pub name: String,
    /// Identity of its tree; absent for a child of an empty workspace, and on error.
    pub root: Option<String>,
    /// Where it came from.
    pub parent: Parent,
    /// Bytes written for it.
    pub bytes_written: u64,
    /// Milliseconds that its put took.
    pub ms: f64,
    /// Why it was not made.
    #[serde(serialize_with = "shown")]
    pub error: Option<Error>,
}

fn shown<S: serde::Serializer>(error: &Option<Error>, s: S) -> Result<S::Ok, S::Error> {
    match error {
        Some(e) => s.collect_str(e),
        None => s.serialize_none(),
    }
}

/// Makes workspaces `names` from `source`. One result each: a name that exists is that child's `Conflict` and no other's.
///
/// # Errors
/// As [`resolve`]; `Invalid` for a domain that the source's chunks are not in; `Conflict` where the source moves all the time; `Closed`
/// where a collector dropped the intent. Children may exist after an error.
pub fn fork<'a>(
    ctx: &'a StoreContext,
    source: &'a str,
    names: &'a [String],
    options: &'a ForkOptions,
) -> BoxFuture<'a, Result<Vec<ForkResult>>> {
    Box::pin(async move {
        let mut found = resolve(ctx, source).await?;
        for _ in 0..REDO {
            let domain = domain_of(&found, options)?;
            let intent = Intent {
                format: FORMAT,
                nonce: ctx.catalog.nonce(),
                holder: ctx.holder.clone(),
                kind: IntentKind::Fork { root: found.root, bases: found.bases.clone() },
                created: ctx.catalog.now(),
            };
            ctx.catalog.create(&intent).await?;
            let done = under_intent(ctx, &found, names, &domain, options, &intent).await;
            if unsettled(&done) {
                // A child's head whose answer was lost may still appear: until somebody drops the intent, its tree stays.
                tracing::warn!(intent = %intent.nonce, "a child is unsettled, so the intent of this fork stays; gc lists it and --drop removes it");
            } else if let Err(e) = ctx.catalog.remove::<Intent>(&intent.nonce.to_string()).await {
                tracing::warn!(error = %e, intent = %intent.nonce, "the intent of a fork stays behind; gc lists it and --drop removes it");
            }
            match done? {
                Attempt::Done(children) => return Ok(children),
                Attempt::Moved(now) => found = *now,
            }
        }
        Err(Error::conflict(format!("{} moves faster than it can be forked", found.qualified())).hint("take a snapshot and fork that"))
    })
}

fn unsettled(done: &Result<Attempt>) -> bool {
    let lost = |e: &Error| e.kind() == ErrorKind::Unavailable;
    match done {
        Ok(Attempt::Done(children)) => children.iter().any(|c| c.error.as_ref().is_some_and(lost)),
        Ok(Attempt::Moved(_)) => false,
        Err(e) => lost(e),
    }
}

enum Attempt {
    Done(Vec<ForkResult>),
    Moved(Box<SourceRoot>),
}

async fn under_intent(
    ctx: &StoreContext,
    found: &SourceRoot,
    names: &[String],
    domain: &Name,
    options: &ForkOptions,
    intent: &Intent,
) -> Result<Attempt> {
    match look_up(ctx, found.kind, &found.name).await? {
        Some(now) if now.same_tree(found) => {}
        Some(now) => return Ok(Attempt::Moved(Box::new(now))),
        None => return Err(Error::not_found(format!("{} was deleted just now", found.qualified())).at(ctx.store().name())),
    }
    let puts: Vec<_> = names.iter().map(|name| child(ctx, found, name, domain, options)).collect();
    let children = stream::iter(puts).buffered(PARALLEL).collect().await;
    // A collector that dropped the intent may have swept what the children need before they were there to be seen.
    if ctx.catalog.get::<Intent>(&intent.nonce.to_string()).await?.is_none() {
        return Err(Error::closed("the intent of this fork was dropped by a collector (ESTALE)")
            .at(found.qualified())
            .hint("check the children with fsck, or delete them and fork again"));
    }
    Ok(Attempt::Done(children))
}

/// A tree holds chunks of the public domain and of one other: children of anything but a public base stay in its domain.
fn domain_of(source: &SourceRoot, options: &ForkOptions) -> Result<Name> {
    let free = source.kind == ParentKind::Base && source.domain.as_str() == PUBLIC_DOMAIN;
    match &options.domain {
        Some(wanted) if free || *wanted == source.domain => Ok(wanted.clone()),
        Some(wanted) => Err(Error::invalid(format!("{} is of domain {:?}, not {wanted:?}", source.qualified(), source.domain))
            .hint("a fork stays in the domain of its source; leave --domain out")),
        None if free => Name::new(NameKind::Domain, DEFAULT_DOMAIN),
        None => Ok(source.domain.clone()),
    }
}

async fn child(ctx: &StoreContext, source: &SourceRoot, name: &str, domain: &Name, options: &ForkOptions) -> ForkResult {
    let started = ctx.env().monotonic();
    let made = put_child(ctx, source, name, domain, options).await;
    let ms = ctx.env().monotonic().saturating_sub(started).as_secs_f64() * 1e3;
    let (root, bytes_written, error) = match made {
        Ok(bytes) => (source.root.map(|r| r.node.id.to_string()), bytes, None),
        Err(e) => (None, 0, Some(e)),
    };
    ForkResult { name: name.to_owned(), root, parent: source.as_parent(), bytes_written, ms, error }
}

async fn put_child(ctx: &StoreContext, source: &SourceRoot, name: &str, domain: &Name, options: &ForkOptions) -> Result<u64> {
    let name = Name::new(NameKind::Workspace, name)?;
    let mut head = Head {
        format: FORMAT,
        name: name.clone(),
        epoch: WriterEpoch(0),
        session: None,
        node: None,
        root: source.root,
        front: source.front.clone(),
        sequence: 0,
        parent: Some(source.as_parent()),
        bases: source.bases.clone(),
        inode_limit: source.inode_limit,
        quota: quota_of(options.quota, source.quota),
        domain: domain.clone(),
        claim: options.binding.as_ref().map(|b| b.claim.clone()),
        claimed: options.binding.as_ref().map(|b| b.claimed.clone()),
        nonce: ctx.catalog.nonce(),
        release: None,
        cut_off: None,
        tombstone: false,
        created: ctx.catalog.now(),
        lost_window: None,
    };
    let mut put = ctx.catalog.create_head(&head).await?;
    for _ in 0..NAME_ATTEMPTS {
        let there = match put {
            Ok(_) => return Ok(size(&head)),
            Err(Some(there)) if there.doc.tombstone && options.binding.is_none() => there,
            Err(Some(_)) => return Err(Error::conflict(format!("workspace {name:?} exists already")).at(ctx.store().name())),
            Err(None) => return Err(Error::conflict(format!("the head of workspace {name:?} was removed by hand")).at(ctx.store().name())),
        };
        head.epoch = WriterEpoch(there.doc.epoch.0 + 1);
        head.nonce = ctx.catalog.nonce();
        put = ctx.catalog.swap_head(&there.version, &head).await?;
    }
    Err(Error::conflict(format!("workspace {name:?} is being created and deleted by others")).at(ctx.store().name()))
}

fn size(head: &Head) -> u64 {
    serde_json::to_vec_pretty(head).map_or(0, |b| b.len() as u64)
}

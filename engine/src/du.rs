//! What a tree weighs: for its users, and for the store.

use std::collections::HashSet;

use futures::future::BoxFuture;
use hiloop_manifest::FrameLoc;
use hiloop_manifest::schema::{Attr, FileKind, KeyKind};
use hiloop_manifest::tree::RootRef;
use hiloop_types::{PackId, Result};
use serde::Serialize;

use crate::context::StoreContext;
use crate::lease::ReadLease;
use crate::look::SourceRoot;
use crate::traverse::{Traverse, chunks_of};

/// Weights of one tree.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DuReport {
    /// The source.
    pub source: String,
    /// Inodes.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Lengths of all files together, holes included.
    pub bytes_logical: u64,
    /// Bytes that are not holes: what the quota counts.
    pub bytes_allocated: u64,
    /// Stored bytes of the distinct chunks and nodes that the tree names.
    pub bytes_stored: u64,
    /// Of these, nodes.
    pub bytes_nodes: u64,
    /// Of these, what the bases that the tree is built on name too.
    pub bytes_shared: u64,
    /// Of these, what they do not.
    pub bytes_unique: u64,
    /// Distinct chunks.
    pub chunks: u64,
}

/// Weighs what `source` names. Reads all of the tree's nodes and those of its bases; memory is about 60 bytes a distinct chunk.
///
/// # Errors
/// As [`resolve`](crate::look::resolve), and any node that cannot be had.
pub fn du<'a>(ctx: &'a StoreContext, source: &'a str) -> BoxFuture<'a, Result<DuReport>> {
    Box::pin(async move {
        let lease = ReadLease::take(ctx, source).await?;
        let done = of(ctx, lease.source()).await;
        lease.end_with(done).await
    })
}

async fn of(ctx: &StoreContext, s: &SourceRoot) -> Result<DuReport> {
    let mut report = DuReport { source: s.qualified(), ..DuReport::default() };
    if let Some(root) = s.root {
        let mut shared = HashSet::new();
        for base in s.bases.iter().filter(|b| b.root.node != root.node) {
            frames(ctx, &base.root, &mut shared).await?;
        }
        weigh(ctx, &root, &shared, &mut report).await?;
        // A base is built on nothing, and a fork that nobody wrote to is its base.
        if s.bases.iter().any(|b| b.root.node == root.node) && s.kind != crate::catalog::ParentKind::Base {
            report.bytes_shared = report.bytes_stored;
        }
        report.bytes_unique = report.bytes_stored - report.bytes_shared;
    }
    Ok(report)
}

type Place = (PackId, u32);

fn place(at: &FrameLoc) -> Place {
    (at.pack, at.offset)
}

async fn frames(ctx: &StoreContext, root: &RootRef, seen: &mut HashSet<Place>) -> Result<()> {
    let mut walk = Traverse::new(root);
    while let Some((_, node)) = walk.next(&ctx.hydrator, |n| seen.insert(place(&n.loc))).await {
        chunks_of(&*node?, |_, c| {
            seen.insert(place(&c.at));
        })?;
    }
    Ok(())
}

async fn weigh(ctx: &StoreContext, root: &RootRef, shared: &HashSet<Place>, report: &mut DuReport) -> Result<()> {
    let mut seen: HashSet<Place> = HashSet::new();
    let mut walk = Traverse::new(root);
    while let Some((at, node)) = walk.next(&ctx.hydrator, |n| seen.insert(place(&n.loc))).await {
        let node = node?;
        let mut add = |at: &FrameLoc| {
            report.bytes_stored += u64::from(at.stored_len);
            if shared.contains(&place(at)) {
                report.bytes_shared += u64::from(at.stored_len);
            }
        };
        add(&at.loc);
        let mut chunks = 0;
        chunks_of(&node, |_, c| {
            if seen.insert(place(&c.at)) {
                chunks += 1;
                add(&c.at);
            }
        })?;
        report.chunks += chunks;
        report.bytes_nodes += u64::from(at.loc.stored_len);
        for i in 0..if node.level() == 0 { node.len() } else { 0 } {
            if let KeyKind::Attr(_) = KeyKind::parse(node.key(i))? {
                let attr = Attr::decode(node.value(i))?;
                report.inodes += 1;
                report.files += u64::from(attr.kind == FileKind::File);
                report.directories += u64::from(attr.kind == FileKind::Directory);
                report.bytes_logical += if attr.kind == FileKind::File { attr.size } else { 0 };
                report.bytes_allocated += attr.allocated;
            }
        }
        ctx.tell("inodes weighed", report.inodes);
    }
    Ok(())
}

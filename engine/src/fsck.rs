//! Checking a store: every node and chunk that a name reaches exists, is whole (deep), and the trees are file systems.
//!
//! The walk reads every node, which verifies it. Chunks are then looked up in the directories of their packs, each read once; what moved
//! is looked for behind forwards. `deep` reads each pack once as a whole and verifies the digest of every frame that is reached. Trees
//! are checked by [`structure`] in one pass over their records.
//!
//! Memory: 64 bytes for each distinct frame.

mod structure;

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use hiloop_manifest::pack::PackDirectory;
use hiloop_manifest::schema::ChunkDomain;
use hiloop_manifest::tree::{Node, NodeRef, RootRef};
use hiloop_manifest::{DomainKey, FrameLoc, decode_chunk, verify};
use hiloop_types::{ChunkId, Error, ErrorKind, Name, NodeId, PackId, Result};
use serde::Serialize;

use crate::context::StoreContext;
use crate::forward::Forward;
use crate::hydrate::read_directory;
use crate::lease::ReadLease;
use crate::look::all_sources;
use crate::traverse::{Traverse, chunks_of};

/// Packs looked at side by side: with `deep` this many are in memory.
const PARALLEL: usize = 4;
/// Faults listed by name; the rest are only counted.
const LISTED_MAX: usize = 10_000;

/// What to check.
#[derive(Clone, Debug, Default)]
pub struct FsckOptions {
    /// Read every pack and verify every digest.
    pub deep: bool,
    /// Only what this SOURCE names; absent: all bases, snapshots and workspaces.
    pub source: Option<String>,
}

/// A node or chunk that is not as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct FsckFault {
    /// A source that reaches it.
    pub source: String,
    /// `node`, `chunk` or `pack`.
    pub what: &'static str,
    /// Its identity.
    pub id: String,
    /// The pack that it should be in.
    pub pack: String,
    /// A file whose content it is.
    pub inode: Option<u64>,
    /// What is wrong.
    pub why: String,
}

/// A rule of the file system that a tree breaks.
#[derive(Clone, Debug, Serialize)]
pub struct StructureFault {
    /// The source.
    pub source: String,
    /// The inode concerned, where there is one.
    pub inode: Option<u64>,
    /// What is wrong.
    pub why: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FsckReport {
    /// Sources checked.
    pub roots: u64,
    /// Distinct nodes reached.
    pub nodes: u64,
    /// Distinct chunks reached.
    pub chunks: u64,
    /// Packs looked at.
    pub packs: u64,
    /// Bytes of packs read by a deep check.
    pub bytes_read: u64,
    /// Inodes of all trees checked.
    pub inodes: u64,
    /// Number of things that do not exist.
    pub missing_total: u64,
    /// Number of things whose bytes are wrong.
    pub corrupt_total: u64,
    /// What does not exist, the first ten thousand.
    pub missing: Vec<FsckFault>,
    /// What has wrong bytes, the first ten thousand.
    pub corrupt: Vec<FsckFault>,
    /// Broken rules.
    pub structure: Vec<StructureFault>,
}

impl FsckReport {
    /// True where nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.missing_total == 0 && self.corrupt_total == 0 && self.structure.is_empty()
    }

    fn add(&mut self, fault: FsckFault, kind: ErrorKind) {
        let (total, list) = match kind {
            ErrorKind::NotFound => (&mut self.missing_total, &mut self.missing),
            _ => (&mut self.corrupt_total, &mut self.corrupt),
        };
        *total += 1;
        if list.len() < LISTED_MAX {
            list.push(fault);
        }
    }
}

/// Checks. What is wrong with the store's content stands in the report.
///
/// # Errors
/// As [`resolve`](crate::look::resolve), and whatever keeps the check from being made (`Unavailable`, `Denied`).
pub fn fsck<'a>(ctx: &'a StoreContext, options: &'a FsckOptions) -> BoxFuture<'a, Result<FsckReport>> {
    Box::pin(async move {
        let names = match &options.source {
            Some(source) => vec![source.clone()],
            None => all_sources(ctx).await?.iter().map(|s| s.qualified()).collect(),
        };
        let mut check = Check {
            ctx,
            report: FsckReport::default(),
            wants: BTreeMap::new(),
            keys: Vec::new(),
            sources: Vec::new(),
            bad: HashSet::new(),
            whole: HashSet::new(),
        };
        // Leases end when all packs were looked at: what the walk reached must still be there.
        let mut leases = Vec::new();
        for name in names {
            match ReadLease::take(ctx, &name).await {
                Ok(lease) => {
                    check.source(&lease).await?;
                    leases.push(lease);
                }
                // Deleted since it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound && options.source.is_none() => {}
                Err(e) => return Err(e),
            }
        }
        check.packs(options.deep).await?;
        for lease in leases {
            lease.finish().await?;
        }
        Ok(check.report)
    })
}

/// A frame that must be there.
#[derive(Clone, Copy)]
struct Want {
    id: [u8; 32],
    /// Zero for nodes and names' roots.
    ino: u64,
    source: u32,
    /// Which key its id is made with; absent for nodes.
    key: Option<u16>,
    at: FrameLoc,
}

struct Check<'a> {
    ctx: &'a StoreContext,
    report: FsckReport,
    wants: BTreeMap<PackId, HashMap<u32, Want>>,
    keys: Vec<(Name, DomainKey)>,
    sources: Vec<String>,
    /// Places of nodes that were told to be bad.
    bad: HashSet<(PackId, u32)>,
    /// Identities of trees whose structure was checked.
    whole: HashSet<NodeId>,
}

impl Check<'_> {
    async fn source(&mut self, lease: &ReadLease) -> Result<()> {
        let source = lease.source();
        let Some(root) = source.root else { return Ok(()) };
        self.report.roots += 1;
        self.sources.push(source.qualified());
        let keys = self.ctx.read_keys(&source.domain).await?;
        let public = self.key(&Name::new(hiloop_types::NameKind::Domain, crate::catalog::PUBLIC_DOMAIN)?, keys.public);
        let own = self.key(&source.domain, keys.own);
        self.tree(&root, public, own).await?;
        for base in &source.bases {
            self.tree(&base.root, public, own).await?;
        }
        // A tree with unreadable nodes was told as such, and says no more.
        if self.whole.insert(root.node.id) {
            let found = structure::check(&self.ctx.hydrator, root).await?;
            self.report.inodes += found.inodes;
            let source = source.qualified();
            self.report.structure.extend(found.faults.into_iter().map(|(inode, why)| StructureFault {
                source: source.clone(),
                inode,
                why,
            }));
        }
        Ok(())
    }

    fn key(&mut self, domain: &Name, key: DomainKey) -> u16 {
        let at = self.keys.iter().position(|(d, _)| d == domain).unwrap_or_else(|| {
            self.keys.push((domain.clone(), key));
            self.keys.len() - 1
        });
        at as u16
    }

    /// Reaches all of a tree that was not reached yet.
    async fn tree(&mut self, root: &RootRef, public: u16, own: u16) -> Result<()> {
        let source = self.sources.len() as u32 - 1;
        let mut walk = Traverse::new(root);
        loop {
            let wants = &mut self.wants;
            let fresh = |n: &NodeRef| want(wants, Want { id: n.id.0, ino: 0, source, key: None, at: n.loc });
            let Some((at, node)) = walk.next(&self.ctx.hydrator, fresh).await else { break };
            self.report.nodes += 1;
            let node = match node {
                Ok(node) => node,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                    self.bad.insert((at.loc.pack, at.loc.offset));
                    let fault = self.fault(source, "node", &at.id.to_string(), &at.loc.pack, 0, &e);
                    self.report.add(fault, e.kind());
                    continue;
                }
                Err(e) => return Err(e),
            };
            let (wants, mut chunks) = (&mut self.wants, 0);
            chunks_of(&node, |ino, c| {
                let key = Some(if c.domain == ChunkDomain::Public { public } else { own });
                chunks += u64::from(want(wants, Want { id: c.id.0, ino: ino.0, source, key, at: c.at }));
            })?;
            self.report.chunks += chunks;
            self.ctx.tell("nodes read", self.report.nodes);
        }
        Ok(())
    }

    fn fault(&self, source: u32, what: &'static str, id: &str, pack: &PackId, ino: u64, why: &Error) -> FsckFault {
        FsckFault {
            source: self.sources.get(source as usize).cloned().unwrap_or_default(),
            what,
            id: id.to_owned(),
            pack: pack.key(),
            inode: (ino > 0).then_some(ino),
            why: why.to_string(),
        }
    }

    async fn packs(&mut self, deep: bool) -> Result<()> {
        let mut wants = std::mem::take(&mut self.wants);
        // What the walk told is not told again.
        for (pack, offset) in &self.bad {
            if let Some(wants) = wants.get_mut(pack) {
                wants.remove(offset);
            }
        }
        let keys: Vec<_> = self.keys.iter().map(|(_, k)| k.clone()).collect();
        let (ctx, keys) = (self.ctx, &keys);
        let mut checks = stream::iter(wants)
            .map(
                |(pack, wants)| async move { PackCheck { ctx, keys, deep, faults: Vec::new(), bytes: 0 }.run(pack, in_order(wants)).await },
            )
            .buffer_unordered(PARALLEL);
        while let Some(done) = checks.next().await {
            let done = done?;
            self.report.packs += 1;
            self.report.bytes_read += done.bytes;
            self.ctx.tell("packs checked", self.report.packs);
            for (want, pack, why) in done.faults {
                let (what, id) = match want.key {
                    Some(_) => ("chunk", ChunkId(want.id).to_string()),
                    None => ("node", NodeId(want.id).to_string()),
                };
                let fault = self.fault(want.source, what, &id, &pack, want.ino, &why);
                self.report.add(fault, why.kind());
            }
        }
        Ok(())
    }
}

/// Notes a frame; false where it was noted.
fn in_order(wants: HashMap<u32, Want>) -> Vec<Want> {
    let mut wants: Vec<_> = wants.into_values().collect();
    wants.sort_unstable_by_key(|w| w.at.offset);
    wants
}

fn want(wants: &mut BTreeMap<PackId, HashMap<u32, Want>>, want: Want) -> bool {
    wants.entry(want.at.pack).or_default().insert(want.at.offset, want).is_none()
}

/// The check of what one pack should hold.
struct PackCheck<'a> {
    ctx: &'a StoreContext,
    keys: &'a [DomainKey],
    deep: bool,
    faults: Vec<(Want, PackId, Error)>,
    bytes: u64,
}

impl PackCheck<'_> {
    /// Looks for all wants in the pack, then for what is left in the packs that took its place.
    async fn run(mut self, pack: PackId, mut wants: Vec<Want>) -> Result<Self> {
        let mut packs = vec![pack];
        let mut next = 0;
        let mut damaged: Option<Error> = None;
        while let Some(at) = packs.get(next).copied() {
            next += 1;
            match read_directory(self.ctx.store(), &at).await {
                Ok(Some(directory)) => wants = self.look(&directory, wants).await?,
                Ok(None) => {}
                Err(e) if e.kind() == ErrorKind::Corrupt => damaged = Some(e),
                Err(e) => return Err(e),
            }
            if wants.is_empty() {
                break;
            }
            if let Some(forward) = Forward::read(self.ctx.store(), &at).await? {
                let fresh: Vec<_> = forward.to.into_iter().filter(|p| !packs.contains(p)).collect();
                packs.extend(fresh);
            }
        }
        for want in wants {
            let why = damaged.clone().unwrap_or_else(|| Error::not_found("no pack holds it"));
            self.faults.push((want, pack, why));
        }
        Ok(self)
    }

    /// Answers what is not in this pack.
    async fn look(&mut self, directory: &PackDirectory, wants: Vec<Want>) -> Result<Vec<Want>> {
        let (found, left): (Vec<_>, Vec<_>) = wants.into_iter().partition(|w| directory.lookup(&w.id).is_some());
        if !self.deep || found.is_empty() {
            return Ok(left);
        }
        let Some(object) = self.ctx.store().get(&directory.id().key()).await? else {
            return Ok(found.into_iter().chain(left).collect());
        };
        self.bytes += object.bytes.len() as u64;
        for want in found {
            let Some(entry) = directory.lookup(&want.id) else { continue };
            if let Err(e) = self.verify(&want, &entry.loc, &object.bytes) {
                self.faults.push((want, *directory.id(), e));
            }
        }
        Ok(left)
    }

    fn verify(&self, want: &Want, at: &FrameLoc, object: &Bytes) -> Result<()> {
        let (from, to) = (at.offset as usize, at.offset as usize + at.stored_len as usize);
        if to > object.len() {
            return Err(Error::corrupt("the pack ends before the frame does"));
        }
        let stored = object.slice(from..to);
        match want.key {
            None => Node::from_frame(&NodeRef { id: NodeId(want.id), loc: *at }, &stored).map(drop),
            Some(key) => verify(&self.keys[usize::from(key)], &ChunkId(want.id), &decode_chunk(at.codec, &stored, at.plain_len)?),
        }
    }
}

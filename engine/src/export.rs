//! Writing a tree into a directory of this machine.
//!
//! Everything is made below the directory that is opened first, one component at a time and never through a symbolic link, and names
//! come from the tree only after a check: whatever the tree or somebody else in the directory does, nothing is written elsewhere.
//!
//! Kept: types, permission bits, set-id bits, owners (as root), times, extended attributes, ACLs, hard links, holes, devices (as root).
//! What this user may not make is left out and listed. Directories get their attributes last, so that read-only ones can be filled and
//! times stay. Writes go to the page cache from the calling task: the command has nothing else to do.

mod make;
mod xattr;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use hiloop_manifest::schema::{Attr, Block, ChunkRef, FileKind, IndexEntry, KeyKind, Prefix, Source};
use hiloop_manifest::tree::KeyRange;
use hiloop_types::{Error, Ino, ROOT_INO, Result, ResultExt, limits::BLOCK};
use serde::Serialize;

use crate::context::StoreContext;
use crate::hydrate::DomainKeys;
use crate::lease::ReadLease;
use crate::look::SourceRoot;
use crate::view::View;
use make::{Directory, Target};

/// Blocks of a file fetched at once: 8 MiB.
const WINDOW: usize = 64;
/// Entries of a directory whose first blocks are fetched at once.
const BATCH: usize = 64;
/// First blocks of each of these.
const FIRST: usize = 4;
/// Things left out that are listed.
const SKIPPED_MAX: usize = 1000;

/// What was written.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportReport {
    /// The source.
    pub source: String,
    /// Inodes made.
    pub inodes: u64,
    /// Names made: inodes and further names of them.
    pub names: u64,
    /// Bytes written.
    pub bytes: u64,
    /// What this user may not make, with the reason; the first thousand.
    pub skipped: Vec<String>,
}

/// Writes what `source` names into `directory`, which must be absent or empty.
///
/// # Errors
/// As [`resolve`](crate::look::resolve); `Conflict` for a directory that is not empty; those of the operating system, by path; any chunk
/// that cannot be had. What was written until then stays.
pub fn export<'a>(ctx: &'a StoreContext, source: &'a str, directory: &'a Path) -> BoxFuture<'a, Result<ExportReport>> {
    Box::pin(async move {
        let lease = ReadLease::take(ctx, source).await?;
        let done = of(ctx, lease.source(), directory).await;
        lease.end_with(done).await
    })
}

async fn of(ctx: &StoreContext, s: &SourceRoot, directory: &Path) -> Result<ExportReport> {
    let target = Target::open(directory)?;
    let mut report = ExportReport { source: s.qualified(), ..ExportReport::default() };
    if let Some(root) = s.root {
        let keys = ctx.read_keys(&s.domain).await?;
        let view = View::new(&ctx.hydrator, root);
        Export { ctx, view, keys, target, linked: HashMap::new(), report: &mut report }.run().await?;
    }
    Ok(report)
}

struct Export<'a> {
    ctx: &'a StoreContext,
    view: View<'a>,
    keys: DomainKeys,
    target: Target,
    /// Where inodes with several names were made first: directory and name.
    linked: HashMap<Ino, (PathBuf, Vec<u8>)>,
    report: &'a mut ExportReport,
}

impl Export<'_> {
    async fn run(mut self) -> Result<()> {
        let root = self.view.require_attr(ROOT_INO).await?;
        let mut ahead = VecDeque::from([(ROOT_INO, PathBuf::new())]);
        let mut made = vec![(ROOT_INO, PathBuf::new(), root)];
        while let Some((ino, path)) = ahead.pop_front() {
            let dir = self.target.enter(&path)?;
            let mut after = 0;
            loop {
                let entries = self.view.entries(ino, after, BATCH).await?;
                let Some((last, _)) = entries.last() else { break };
                after = *last;
                self.fetch(&entries).await?;
                for (_, entry) in &entries {
                    check_name(&entry.name).at(path.display())?;
                    let below = path.join(make::as_path(&entry.name));
                    let attr = self.view.require_attr(entry.ino).await?;
                    self.entry(&dir, &path, entry, &attr).await.at(below.display())?;
                    if attr.kind == FileKind::Directory {
                        ahead.push_back((entry.ino, below.clone()));
                        made.push((entry.ino, below, attr));
                    }
                }
                self.ctx.tell("names exported", self.report.names);
            }
        }
        // Deepest last made, first finished: a directory's times hold once nothing below it moves any more.
        for (ino, path, attr) in made.into_iter().rev() {
            let dir = self.target.enter(&path)?;
            let xattrs = self.xattrs(ino).await?;
            let refused = dir.finish(&attr, &xattrs).at(path.display())?;
            self.skip(&path, refused);
        }
        Ok(())
    }

    /// Fetches the beginnings of small files with few requests.
    async fn fetch(&self, entries: &[(u64, IndexEntry)]) -> Result<()> {
        let mut chunks = Vec::new();
        for (_, entry) in entries.iter().filter(|(_, e)| e.kind == FileKind::File) {
            let blocks = KeyRange::prefix(Prefix::blocks(entry.ino).start());
            for (_, value) in self.view.page(&blocks, FIRST).await? {
                chunks.extend(chunk_refs(&Block::decode(&value, &[])?));
            }
        }
        self.ctx.hydrator.chunks_ahead(&self.keys, &chunks).await;
        Ok(())
    }

    async fn entry(&mut self, dir: &Directory, path: &Path, entry: &IndexEntry, attr: &Attr) -> Result<()> {
        let name = entry.name.as_slice();
        self.report.names += 1;
        if attr.kind == FileKind::Directory {
            self.report.inodes += 1;
            return dir.make_directory(name);
        }
        if attr.nlink > 1 {
            if let Some((first_dir, first)) = self.linked.get(&entry.ino) {
                return self.target.enter(first_dir)?.link(first, dir, name);
            }
            self.linked.insert(entry.ino, (path.to_owned(), name.to_owned()));
        }
        let xattrs = self.xattrs(entry.ino).await?;
        let refused = if attr.kind == FileKind::File {
            let file = dir.make_file(name)?;
            self.content(entry.ino, attr, &file).await?;
            file.finish(attr, &xattrs)?
        } else {
            match dir.make_node(name, attr)? {
                None => dir.finish_node(name, attr, &xattrs)?,
                Some(refused) => {
                    self.linked.remove(&entry.ino);
                    vec![refused]
                }
            }
        };
        self.report.inodes += 1;
        self.skip(&path.join(make::as_path(name)), refused);
        Ok(())
    }

    async fn content(&mut self, ino: Ino, attr: &Attr, file: &make::File) -> Result<()> {
        file.set_len(attr.size)?;
        let mut range = KeyRange::prefix(Prefix::blocks(ino).start());
        loop {
            let page = self.view.page(&range, WINDOW).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            range = range.after(last);
            let mut blocks = Vec::with_capacity(page.len());
            for (key, value) in &page {
                if let KeyKind::Block(_, number) = KeyKind::parse(key)? {
                    blocks.push((number, Block::decode(value, &[])?));
                }
            }
            let chunks: Vec<_> = blocks.iter().flat_map(|(_, b)| chunk_refs(b)).collect();
            self.ctx.hydrator.chunks_ahead(&self.keys, &chunks).await;
            for (number, block) in blocks {
                self.block(number, &block, file).await?;
            }
        }
    }

    async fn block(&mut self, number: u64, block: &Block, file: &make::File) -> Result<()> {
        for piece in block.pieces() {
            let at = number * BLOCK + u64::from(piece.start);
            match &piece.source {
                Source::Zero => file.reserve(at, piece.len.into())?,
                Source::Inline(bytes) => file.write(at, bytes)?,
                Source::Chunk { chunk, skip } => {
                    let plain = self.ctx.hydrator.chunk_now(&self.keys, chunk).await?;
                    file.write(at, &plain[*skip as usize..(skip + piece.len) as usize])?;
                }
                Source::Staged { .. } => return Err(Error::corrupt("a published file names bytes that only a node has")),
            }
            self.report.bytes += u64::from(piece.len);
        }
        Ok(())
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let found = self.view.page(&KeyRange::prefix(Prefix::xattrs(ino).start()), usize::MAX).await?;
        let mut out = Vec::with_capacity(found.len());
        for (key, value) in found {
            if let KeyKind::Xattr(_, name) = KeyKind::parse(&key)? {
                out.push((name.to_vec(), value.to_vec()));
            }
        }
        Ok(out)
    }

    fn skip(&mut self, path: &Path, refused: Vec<String>) {
        let room = SKIPPED_MAX.saturating_sub(self.report.skipped.len());
        self.report.skipped.extend(refused.into_iter().take(room).map(|why| format!("{}: {why}", path.display())));
    }
}

fn chunk_refs(block: &Block) -> impl Iterator<Item = ChunkRef> + '_ {
    block.pieces().iter().filter_map(|p| match &p.source {
        Source::Chunk { chunk, .. } => Some(*chunk),
        _ => None,
    })
}

/// A name from the store must be one component.
fn check_name(name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::corrupt(format!("the tree has an entry {:?}, which is no name", String::from_utf8_lossy(name))));
    }
    Ok(())
}

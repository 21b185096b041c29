//! The records of a base's tree, in key order.

use hiloop_manifest::schema::{Attr, Block, Entry, FileKind, IndexEntry, Key, NameHasher, Piece, Source, Super, Timestamp, Totals};
use hiloop_source::{SourceInode, SourceKind, SourceTree};
use hiloop_types::{Error, Ino, NodeId, Result, ResultExt, WriterEpoch, limits::BLOCK};

use super::contents::{Contents, Extent};

/// What the records amount to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// Inodes and bytes.
    pub(super) totals: Totals,
    /// The first free inode number.
    pub(super) next_ino: u64,
    /// Digest over all records, chunks by identity.
    pub(super) content: NodeId,
}

/// Gives every record to `push`, in ascending order of keys.
pub(super) fn write(
    tree: &SourceTree,
    contents: &Contents,
    name_key: [u8; 32],
    mut push: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<Summary> {
    let totals = Totals { inodes: tree.inodes.len() as u64, bytes: tree.inodes.iter().map(allocated).sum() };
    let next_ino = tree.inodes.len() as u64 + 1;
    let mut records = Records { digest: blake3::Hasher::new(), push: &mut push };
    let superblock = Super { name_key, totals, next_ino, epoch: WriterEpoch(0) };
    records.put(&Key::superblock(), &superblock.encode())?;

    // All names of an inode together: names are numbered breadth first, so each inode's stand in order of (directory, index).
    let mut names: Vec<(u32, u32)> = tree.nodes.iter().enumerate().map(|(node, n)| (n.inode as u32, node as u32)).collect();
    names.sort_unstable();
    let hasher = NameHasher::new(name_key);
    let mut rest = names.as_slice();
    for (number, inode) in tree.inodes.iter().enumerate() {
        let count = rest.iter().take_while(|(i, _)| *i as usize == number).count();
        let (own, behind) = rest.split_at(count);
        rest = behind;
        let one = Inode { tree, contents, number, inode, names: own };
        one.write(&mut records).map_err(|e| e.at(shown(tree, own)))?;
    }
    // A directory has one name, and inodes are numbered by their first: this is the order of their numbers.
    for node in (0..tree.nodes.len()).filter(|n| tree.inode(*n).kind == SourceKind::Directory) {
        entries(tree, node, &hasher, &mut records).map_err(|e| e.at(String::from_utf8_lossy(&tree.path(node)).into_owned()))?;
    }
    Ok(Summary { totals, next_ino, content: NodeId(*records.digest.finalize().as_bytes()) })
}

fn shown(tree: &SourceTree, names: &[(u32, u32)]) -> String {
    names.first().map(|(_, node)| String::from_utf8_lossy(&tree.path(*node as usize)).into_owned()).unwrap_or_default()
}

fn allocated(inode: &SourceInode) -> u64 {
    inode.content.map_or(0, |c| c.size)
}

fn ino(number: usize) -> Ino {
    Ino(number as u64 + 1)
}

type Push<'p> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'p;

struct Records<'p> {
    digest: blake3::Hasher,
    push: &'p mut Push<'p>,
}

impl Records<'_> {
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        self.hash(key, value);
        (self.push)(key.as_bytes(), value)
    }

    fn put_block(&mut self, key: &Key, block: &Block) -> Result<()> {
        self.hash(key, &without_places(block));
        (self.push)(key.as_bytes(), &block.encode(None))
    }

    fn hash(&mut self, key: &Key, value: &[u8]) {
        for part in [key.as_bytes(), value] {
            self.digest.update(&(part.len() as u64).to_le_bytes());
            self.digest.update(part);
        }
    }
}

/// What a block says, but not where its chunks lie.
fn without_places(block: &Block) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.pieces().len() * 48);
    for piece in block.pieces() {
        out.extend_from_slice(&piece.start.to_le_bytes());
        out.extend_from_slice(&piece.len.to_le_bytes());
        match &piece.source {
            Source::Chunk { chunk, skip } => {
                out.extend_from_slice(&[1, chunk.domain as u8]);
                out.extend_from_slice(chunk.id.as_bytes());
                out.extend_from_slice(&skip.to_le_bytes());
            }
            // A base's blocks hold chunks and zeros only.
            _ => out.push(0),
        }
    }
    out
}

/// One inode with its names.
struct Inode<'a> {
    tree: &'a SourceTree,
    contents: &'a Contents,
    number: usize,
    inode: &'a SourceInode,
    names: &'a [(u32, u32)],
}

impl Inode<'_> {
    /// Its records in key order: attributes, blocks, names, extended attributes.
    fn write(&self, records: &mut Records<'_>) -> Result<()> {
        let me = ino(self.number);
        records.put(&Key::attr(me), &self.attr()?.encode())?;
        if let Some(content) = self.inode.content {
            self.blocks(self.contents.extents(content.handle), records)?;
        }
        for (_, node) in self.names {
            let node = *node as usize;
            // The root has no name.
            if node > 0 {
                let parent = self.tree.nodes[node].parent;
                records.put(&Key::backref(me, ino(self.tree.nodes[parent].inode), self.index(parent, node)), &[])?;
            }
        }
        for (name, value) in &self.inode.xattrs {
            records.put(&Key::xattr(me, name), value)?;
        }
        Ok(())
    }

    /// Position of a node in its directory, from 1.
    fn index(&self, parent: usize, node: usize) -> u64 {
        (node - self.tree.children(parent).start) as u64 + 1
    }

    fn node(&self) -> usize {
        self.names.first().map_or(0, |(_, node)| *node as usize)
    }

    fn attr(&self) -> Result<Attr> {
        let i = self.inode;
        let time = Timestamp { secs: i.mtime.0, nanos: i.mtime.1 };
        let rdev = u32::try_from(i.rdev).map_err(|_| Error::invalid(format!("device number {:#x} does not fit 32 bits", i.rdev)))?;
        let mut attr = Attr::new(kind(i.kind), i.mode, i.uid, i.gid, time);
        attr.nlink = i.nlink;
        attr.size = if i.kind == SourceKind::Directory { 0 } else { i.size };
        attr.allocated = allocated(i);
        attr.rdev = rdev;
        attr.target.clone_from(&i.target);
        if i.kind == SourceKind::Directory {
            let node = self.node();
            let children = self.tree.children(node);
            attr.parent = ino(self.tree.nodes[self.tree.nodes[node].parent].inode);
            attr.entries = children.len() as u64;
            attr.next_index = attr.entries + 1;
            // The last number is that of an inode first met here, unless all are links to earlier ones; those numbers are in sequence.
            let last = children.map(|n| ino(self.tree.nodes[n].inode).0).max().unwrap_or(0);
            attr.children = Ino((last + 1).saturating_sub(attr.entries));
        } else {
            attr.next_index = 0;
        }
        Ok(attr)
    }

    /// Cuts extents at block borders.
    fn blocks(&self, extents: impl Iterator<Item = Extent>, records: &mut Records<'_>) -> Result<()> {
        let me = ino(self.number);
        let mut open = (0u64, Block::default());
        for extent in extents {
            let end = extent.offset + u64::from(extent.len);
            let mut at = extent.offset;
            while at < end {
                let number = at / BLOCK;
                if number != open.0 {
                    close(me, &mut open, records)?;
                    open.0 = number;
                }
                let to = end.min((number + 1) * BLOCK);
                let source = match extent.chunk {
                    Some(chunk) => Source::Chunk { chunk, skip: (at - extent.offset) as u32 },
                    None => Source::Zero,
                };
                open.1.put(Piece { start: (at % BLOCK) as u32, len: (to - at) as u32, source });
                at = to;
            }
        }
        close(me, &mut open, records).at("its last block")
    }
}

/// The names in the directory `node`, in key order.
fn entries(tree: &SourceTree, node: usize, hasher: &NameHasher, records: &mut Records<'_>) -> Result<()> {
    let me = ino(tree.nodes[node].inode);
    let children = tree.children(node);
    let mut by_name = Vec::with_capacity(children.len());
    for (i, node) in children.clone().enumerate() {
        let child = &tree.nodes[node];
        let entry = Entry { ino: ino(child.inode), kind: kind(tree.inode(node).kind), index: i as u64 + 1 };
        by_name.push((hasher.entry(me, &child.name), entry));
    }
    by_name.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    for (key, entry) in by_name {
        records.put(&key, &entry.encode())?;
    }
    for (i, node) in children.enumerate() {
        let child = &tree.nodes[node];
        let entry = IndexEntry { ino: ino(child.inode), kind: kind(tree.inode(node).kind), name: child.name.clone() };
        records.put(&Key::index(me, i as u64 + 1), &entry.encode())?;
    }
    Ok(())
}

fn close(me: Ino, open: &mut (u64, Block), records: &mut Records<'_>) -> Result<()> {
    let block = std::mem::take(&mut open.1);
    if block.is_empty() { Ok(()) } else { records.put_block(&Key::block(me, open.0), &block) }
}

fn kind(kind: SourceKind) -> FileKind {
    match kind {
        SourceKind::File => FileKind::File,
        SourceKind::Directory => FileKind::Directory,
        SourceKind::Symlink => FileKind::Symlink,
        SourceKind::Fifo => FileKind::Fifo,
        SourceKind::Socket => FileKind::Socket,
        SourceKind::CharDevice => FileKind::CharDevice,
        SourceKind::BlockDevice => FileKind::BlockDevice,
    }
}

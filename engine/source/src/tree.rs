//! The description of a file tree that a source gives.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sink::Content;

/// Bytes `offset .. offset + length` of a sparse file that hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataRange {
    /// First byte.
    pub offset: u64,
    /// Bytes, never zero.
    pub length: u64,
}

/// Bytes in all ranges together.
pub(crate) fn covered(ranges: &[DataRange]) -> u64 {
    ranges.iter().map(|r| r.length).sum()
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A name in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceNode {
    /// Index of the directory that holds it; the root names itself.
    pub parent: usize,
    /// One component; empty for the root.
    pub name: Vec<u8>,
    /// Index into [`SourceTree::inodes`]; hard links share it.
    pub inode: usize,
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInode {
    /// Its type.
    pub kind: SourceKind,
    /// Permission bits, set-id and sticky bits (`0o7777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification: seconds since 1970 (negative before), nanoseconds.
    pub mtime: (i64, u32),
    /// Device number of a device (Linux `dev_t`), else 0.
    pub rdev: u64,
    /// Bytes of a file with its holes, of a link its target's length, else 0.
    pub size: u64,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What the sink made of the bytes: always there for a file, never for anything else.
    pub content: Option<Content>,
    /// Where a file has data, ascending and apart; `None` if it has no holes.
    pub data: Option<Vec<DataRange>>,
    /// Names that lead here; for a directory 2 and one for each directory in it.
    pub nlink: u32,
}

impl SourceInode {
    /// A directory that nothing describes: `0755`, root's, modified at 0.
    pub(crate) fn implied_directory() -> Self {
        Self {
            kind: SourceKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            rdev: 0,
            size: 0,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            content: None,
            data: None,
            nlink: 0,
        }
    }
}

/// A whole tree. Two sources with the same names and attributes give the same tree, in whatever order they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTree {
    /// Breadth first from the root at 0: the children of a directory stand together, in byte order of their names, and directories'
    /// children stand in the order of the directories.
    pub nodes: Vec<SourceNode>,
    /// In the order of their first node.
    pub inodes: Vec<SourceInode>,
}

impl SourceTree {
    /// The nodes in directory `node` (empty for anything else).
    pub fn children(&self, node: usize) -> Range<usize> {
        // Parents never decrease along the order; the root, its own parent, is left out.
        let below = self.nodes.get(1..).unwrap_or_default();
        let start = below.partition_point(|n| n.parent < node);
        let end = below.partition_point(|n| n.parent <= node);
        start + 1..end + 1
    }

    /// The inode that `node` leads to.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn inode(&self, node: usize) -> &SourceInode {
        &self.inodes[self.nodes[node].inode]
    }

    /// The path of `node` below the root, without a leading slash; empty for the root.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn path(&self, mut node: usize) -> Vec<u8> {
        let mut parts = Vec::new();
        while node != 0 {
            parts.push(self.nodes[node].name.as_slice());
            node = self.nodes[node].parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

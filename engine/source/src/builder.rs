//! The tree while it is put together: entries come in any order, replace each other, and are deleted by whiteouts.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use hiloop_types::limits::LINK_MAX;
use hiloop_types::{Error, Result};

use crate::limits::Meter;
use crate::path::{join, shown};
use crate::tree::{SourceInode, SourceKind, SourceNode, SourceTree};

/// Index of the root among the nodes.
pub(crate) const ROOT: usize = 0;

struct Node {
    inode: usize,
    /// The layer that last named it; a whiteout of that layer leaves it alone.
    layer: u32,
    children: BTreeMap<Box<[u8]>, usize>,
}

/// Nodes that are replaced or deleted stay in the list, unreachable; the entry limit counts them.
pub(crate) struct Builder {
    nodes: Vec<Node>,
    inodes: Vec<SourceInode>,
    layer: u32,
}

impl Default for Builder {
    fn default() -> Self {
        let root = Node { inode: 0, layer: 0, children: BTreeMap::new() };
        Self { nodes: vec![root], inodes: vec![SourceInode::implied_directory()], layer: 0 }
    }
}

impl Builder {
    /// Entries from here on belong to the next layer.
    pub(crate) fn next_layer(&mut self) {
        self.layer += 1;
    }

    fn kind(&self, node: usize) -> SourceKind {
        self.inodes[self.nodes[node].inode].kind
    }

    /// The inode that `node` leads to.
    pub(crate) fn inode_of(&self, node: usize) -> usize {
        self.nodes[node].inode
    }

    /// Whether `node` is a directory.
    pub(crate) fn is_directory(&self, node: usize) -> bool {
        self.kind(node) == SourceKind::Directory
    }

    /// The node at a path, if there is one; never through anything but directories.
    pub(crate) fn find(&self, parts: &[&[u8]]) -> Result<Option<usize>> {
        let mut at = ROOT;
        for (depth, part) in parts.iter().enumerate() {
            self.check_directory(at, &parts[..depth])?;
            match self.nodes[at].children.get(*part) {
                Some(child) => at = *child,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The directory at a path, if there is something.
    pub(crate) fn find_directory(&self, parts: &[&[u8]]) -> Result<Option<usize>> {
        let found = self.find(parts)?;
        if let Some(node) = found {
            self.check_directory(node, parts)?;
        }
        Ok(found)
    }

    /// The directory at a path; those that are missing are made.
    pub(crate) fn directory(&mut self, parts: &[&[u8]], meter: &mut Meter<'_>) -> Result<usize> {
        let mut at = ROOT;
        for (depth, part) in parts.iter().enumerate() {
            at = match self.nodes[at].children.get(*part) {
                Some(child) => *child,
                None => {
                    let path = join(&parts[..=depth]);
                    self.put(at, part, &path, SourceInode::implied_directory(), meter)?
                }
            };
            self.check_directory(at, &parts[..=depth])?;
        }
        Ok(at)
    }

    fn check_directory(&self, node: usize, parts: &[&[u8]]) -> Result<()> {
        match self.kind(node) {
            SourceKind::Directory => Ok(()),
            SourceKind::Symlink => Err(Error::invalid("a symbolic link stands where the path needs a directory")
                .at(shown(&join(parts)))
                .hint("name the entry by its real path")),
            _ => Err(Error::invalid("a non-directory stands where the path needs a directory").at(shown(&join(parts)))),
        }
    }

    /// Gives the root its attributes.
    pub(crate) fn set_root(&mut self, inode: SourceInode, meter: &mut Meter<'_>) -> Result<()> {
        if inode.kind != SourceKind::Directory {
            return Err(Error::invalid("the root of the tree is not a directory").at(shown(b"")));
        }
        meter.entry(b"")?;
        meter.metadata(b"", cost(b"", &inode))?;
        self.inodes[0] = inode;
        Ok(())
    }

    /// Puts an inode under `name`. A directory over a directory takes the new attributes and keeps its children; anything else replaces
    /// what was there with all that is in it. `path` is for messages.
    pub(crate) fn put(&mut self, parent: usize, name: &[u8], path: &[u8], inode: SourceInode, meter: &mut Meter<'_>) -> Result<usize> {
        meter.entry(path)?;
        meter.metadata(path, cost(name, &inode))?;
        if inode.kind == SourceKind::Directory
            && let Some(&there) = self.nodes[parent].children.get(name)
            && self.is_directory(there)
        {
            self.nodes[there].layer = self.layer;
            let slot = self.nodes[there].inode;
            self.inodes[slot] = inode;
            return Ok(there);
        }
        self.inodes.push(inode);
        Ok(self.attach(parent, name, self.inodes.len() - 1))
    }

    /// Puts a further name for an inode.
    pub(crate) fn link(&mut self, parent: usize, name: &[u8], path: &[u8], inode: usize, meter: &mut Meter<'_>) -> Result<()> {
        meter.entry(path)?;
        meter.metadata(path, name.len() as u64)?;
        self.attach(parent, name, inode);
        Ok(())
    }

    fn attach(&mut self, parent: usize, name: &[u8], inode: usize) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node { inode, layer: self.layer, children: BTreeMap::new() });
        self.nodes[parent].children.insert(name.into(), node);
        node
    }

    /// Deletes what lower layers put under `name` in `parent`.
    pub(crate) fn whiteout(&mut self, parent: usize, name: &[u8]) {
        if let Some(&node) = self.nodes[parent].children.get(name)
            && !self.prune(node)
        {
            self.nodes[parent].children.remove(name);
        }
    }

    /// Deletes what lower layers put into `directory`.
    pub(crate) fn opaque(&mut self, directory: usize) {
        let mut children = std::mem::take(&mut self.nodes[directory].children);
        children.retain(|_, child| self.prune(*child));
        self.nodes[directory].children = children;
    }

    /// Deletes lower layers' part of a subtree; false if nothing is left of it. Recurses once a level, at most `DEPTH_MAX`.
    fn prune(&mut self, node: usize) -> bool {
        self.opaque(node);
        let own = self.nodes[node].layer == self.layer;
        let kept = own || !self.nodes[node].children.is_empty();
        if kept && !own {
            // The directory that the lower layer described is gone; this layer's entries imply a new one.
            self.nodes[node].layer = self.layer;
            let slot = self.nodes[node].inode;
            self.inodes[slot] = SourceInode::implied_directory();
        }
        kept
    }

    /// Puts everything that is reachable in the order of [`SourceTree`] and counts links.
    pub(crate) fn finish(mut self) -> Result<SourceTree> {
        let mut tree = SourceTree { nodes: Vec::new(), inodes: Vec::new() };
        let mut renumbered: Vec<Option<usize>> = vec![None; self.inodes.len()];
        let mut queue = VecDeque::from([(ROOT, 0, Vec::new())]);
        while let Some((from, parent, name)) = queue.pop_front() {
            let index = tree.nodes.len();
            let slot = self.nodes[from].inode;
            let inode = *renumbered[slot].get_or_insert_with(|| {
                let taken = std::mem::replace(&mut self.inodes[slot], SourceInode::implied_directory());
                tree.inodes.push(taken);
                tree.inodes.len() - 1
            });
            tree.nodes.push(SourceNode { parent, name, inode });
            if tree.inodes[inode].kind == SourceKind::Directory {
                tree.inodes[inode].nlink = 2;
                if index != ROOT {
                    let above = tree.nodes[parent].inode;
                    tree.inodes[above].nlink += 1;
                }
            } else {
                tree.inodes[inode].nlink += 1;
                if tree.inodes[inode].nlink > LINK_MAX {
                    return Err(Error::exhausted(format!("more than {LINK_MAX} hard links to one file")).at(shown(&tree.path(index))));
                }
            }
            for (name, child) in std::mem::take(&mut self.nodes[from].children) {
                queue.push_back((child, index, name.into_vec()));
            }
        }
        Ok(tree)
    }
}

/// Memory of an entry besides the fixed part, bytes.
fn cost(name: &[u8], inode: &SourceInode) -> u64 {
    // A B-tree slot and two allocations stand behind each attribute.
    let xattrs: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
    let ranges = inode.data.as_ref().map_or(0, |ranges| ranges.len() * 16);
    (name.len() + inode.target.len() + xattrs + ranges) as u64
}

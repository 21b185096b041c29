//! The objects of one store, reduced to what the protocols compare.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Distinct chunks in a world.
pub const CHUNKS: usize = 3;
/// Links of a chain of forwards that a reader follows.
const FORWARDS_MAX: usize = 4;

/// Identity of one conditional write: the actor's tag and a count, so that equal histories have equal nonces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u8, pub u8);

/// Nonce of what stood at the start.
pub const FIRST: Nonce = Nonce(0, 0);

/// Key of a pack (`protocols.md` 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackKey {
    /// Who wrote it.
    pub owner: Name,
    /// Epoch of the opening; 0 for bases.
    pub epoch: u8,
    /// Session of the opening.
    pub session: u8,
    /// Highest sequence in it.
    pub sequence: u8,
    /// Random in the engine, unique here.
    pub attempt: u8,
}

impl fmt::Display for PackKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack {:?}/{}-{}-{}-{}", self.owner, self.epoch, self.session, self.sequence, self.attempt)
    }
}

/// A set of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content(pub u8);

impl Content {
    /// The chunks in it.
    pub fn chunks(self) -> impl Iterator<Item = usize> {
        (0..CHUNKS).filter(move |c| self.has(*c))
    }
    /// True where `chunk` is in it.
    pub const fn has(self, chunk: usize) -> bool {
        self.0 & (1 << chunk) != 0
    }
}

/// An immutable tree: where each of its chunks is said to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tree(pub [Option<PackKey>; CHUNKS]);

impl Tree {
    /// A tree whose chunks are all in one pack.
    pub fn of(content: Content, pack: PackKey) -> Self {
        let mut tree = Self::default();
        content.chunks().for_each(|c| tree.0[c] = Some(pack));
        tree
    }
    /// Its references.
    pub fn refs(&self) -> impl Iterator<Item = (usize, PackKey)> {
        self.0.iter().enumerate().filter_map(|(c, p)| Some((c, (*p)?)))
    }
}

/// What documents are named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A workspace.
    Head(u8),
    /// A snapshot.
    Snapshot(u8),
    /// A base.
    Base(u8),
}

/// Head of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head {
    /// Nonce of its creation: a head that was deleted and made again is another name.
    pub birth: Nonce,
    /// Nonce of the last write.
    pub nonce: Nonce,
    /// Epoch.
    pub epoch: u8,
    /// Session of the last opening.
    pub session: Option<u8>,
    /// The published tree.
    pub root: Tree,
    /// Its sequence.
    pub sequence: u8,
    /// The base root that the tree may reference.
    pub base: Option<Tree>,
    /// What a take-over cut off.
    pub cut_off: Option<CutOff>,
    /// True where the workspace is deleted.
    pub tombstone: bool,
}

impl Head {
    /// A head that nobody opened.
    pub fn new(root: Tree, base: Option<Tree>, nonce: Nonce) -> Self {
        Self { birth: nonce, nonce, epoch: 0, session: None, root, sequence: 0, base, cut_off: None, tombstone: false }
    }
}

/// What a take-over cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CutOff {
    /// The workspace.
    pub workspace: u8,
    /// The epoch that was cut off.
    pub epoch: u8,
    /// Its last published tree.
    pub root: Tree,
}

/// A pinned tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The tree.
    pub root: Tree,
    /// Identity of the write.
    pub nonce: Nonce,
}

/// A base, or the intent to publish one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base {
    /// Absent while it is an intent.
    pub root: Option<Tree>,
    /// Root of the base whose chunks it references.
    pub reuses: Option<Tree>,
    /// Session of the publisher.
    pub session: u8,
    /// Identity of the last write.
    pub nonce: Nonce,
}

/// What an intent protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Intent {
    /// The root of a fork under way, and its base root.
    Fork(Tree, Option<Tree>),
    /// A pack that is being written.
    Repack(PackKey),
}

/// A root whose name is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deleted {
    /// The name.
    pub name: Name,
    /// Nonce of the document that is being deleted.
    pub of: Nonce,
    /// Its root.
    pub root: Tree,
    /// Its base root.
    pub base: Option<Tree>,
    /// True where the head had an owner that had not released it.
    pub owned: bool,
}

/// All objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// `heads/`
    pub heads: BTreeMap<u8, Head>,
    /// `snapshots/`
    pub snapshots: BTreeMap<u8, Snapshot>,
    /// `bases/`
    pub bases: BTreeMap<u8, Base>,
    /// `packs/`
    pub packs: BTreeMap<PackKey, Content>,
    /// `forwards/`
    pub forwards: BTreeMap<PackKey, PackKey>,
    /// `intents/`
    pub intents: BTreeMap<Nonce, Intent>,
    /// `deleted/`
    pub deleted: BTreeMap<Nonce, Deleted>,
    /// `cutoffs/`
    pub cutoffs: BTreeMap<(u8, u8), CutOff>,
    /// Epochs that were given to an opening: no part of the store, but of what is checked.
    opened: BTreeSet<(u8, u8)>,
    /// The first promise that a write broke.
    pub broken: Option<&'static str>,
}

/// A conditional write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Put {
    /// Creates a pack.
    Pack(PackKey, Content),
    /// Creates a head (`None`) or swaps it.
    Head(u8, Option<Nonce>, Head),
    /// Creates a snapshot.
    Snapshot(u8, Snapshot),
    /// Creates a base (`None`) or swaps it.
    Base(u8, Option<Nonce>, Base),
    /// Creates an intent.
    Intent(Nonce, Intent),
    /// Creates a deletion object.
    Deleted(Nonce, Deleted),
    /// Creates a cut-off.
    CutOff(CutOff),
    /// Creates a forward.
    Forward(PackKey, PackKey),
}

impl Put {
    /// True where the condition of the write holds.
    pub fn may_apply(&self, s: &Store) -> bool {
        match self {
            Self::Pack(key, _) => !s.packs.contains_key(key),
            Self::Head(w, over, _) => s.heads.get(w).map(|h| h.nonce) == *over,
            Self::Snapshot(n, _) => !s.snapshots.contains_key(n),
            Self::Base(n, over, _) => s.bases.get(n).map(|b| b.nonce) == *over,
            Self::Intent(n, _) => !s.intents.contains_key(n),
            Self::Deleted(n, _) => !s.deleted.contains_key(n),
            Self::CutOff(c) => !s.cutoffs.contains_key(&(c.workspace, c.epoch)),
            Self::Forward(from, _) => !s.forwards.contains_key(from),
        }
    }

    /// True where what stands under the key is what this write put, by its nonce where it has one, else by its bytes.
    pub fn stands(&self, s: &Store) -> bool {
        match self {
            Self::Pack(key, content) => s.packs.get(key) == Some(content),
            Self::Head(w, _, doc) => s.heads.get(w).is_some_and(|h| h.nonce == doc.nonce),
            Self::Snapshot(n, doc) => s.snapshots.get(n).is_some_and(|d| d.nonce == doc.nonce),
            Self::Base(n, _, doc) => s.bases.get(n).is_some_and(|b| b.nonce == doc.nonce),
            Self::Intent(n, doc) => s.intents.get(n) == Some(doc),
            Self::Deleted(n, doc) => s.deleted.get(n) == Some(doc),
            Self::CutOff(c) => s.cutoffs.get(&(c.workspace, c.epoch)) == Some(c),
            Self::Forward(from, to) => s.forwards.get(from) == Some(to),
        }
    }

    /// Takes effect if its condition holds; true where it did.
    pub fn apply(&self, s: &mut Store) -> bool {
        if !self.may_apply(s) {
            return false;
        }
        match self.clone() {
            Self::Pack(key, content) => {
                s.packs.insert(key, content);
            }
            Self::Head(w, _, doc) => s.put_head(w, doc),
            Self::Snapshot(n, doc) => {
                s.snapshots.insert(n, doc);
            }
            Self::Base(n, _, doc) => {
                s.bases.insert(n, doc);
            }
            Self::Intent(n, doc) => {
                s.intents.insert(n, doc);
            }
            Self::Deleted(n, doc) => {
                s.deleted.insert(n, doc);
            }
            Self::CutOff(c) => {
                s.cutoffs.insert((c.workspace, c.epoch), c);
            }
            Self::Forward(from, to) => {
                s.forwards.insert(from, to);
            }
        }
        true
    }
}

impl Store {
    fn put_head(&mut self, workspace: u8, head: Head) {
        let before = self.heads.insert(workspace, head);
        let opens = head.session.is_some() && before.and_then(|b| b.session) != head.session;
        if opens && !self.opened.insert((workspace, head.epoch)) {
            self.broken = Some("one epoch of a workspace was given to two openings");
        }
    }

    /// The nonce of what a name stands for; `None` where nothing has the name.
    pub fn nonce(&self, name: Name) -> Option<Nonce> {
        match name {
            Name::Head(w) => self.heads.get(&w).map(|h| h.nonce),
            Name::Snapshot(n) => self.snapshots.get(&n).map(|s| s.nonce),
            Name::Base(n) => self.bases.get(&n).map(|b| b.nonce),
        }
    }

    /// The tree that a name stands for and the base root that it records; `None` also for tombstones and intents.
    pub fn tree(&self, name: Name) -> Option<(Tree, Option<Tree>)> {
        match name {
            Name::Head(w) => self.heads.get(&w).filter(|h| !h.tombstone).map(|h| (h.root, h.base)),
            Name::Snapshot(n) => self.snapshots.get(&n).map(|s| (s.root, None)),
            Name::Base(n) => self.bases.get(&n).and_then(|b| b.root).map(|r| (r, Some(r))),
        }
    }

    /// Every tree that must be readable, with its name for messages.
    pub fn live_trees(&self) -> Vec<(String, Tree)> {
        let mut out = Vec::new();
        for (w, h) in self.heads.iter().filter(|(_, h)| !h.tombstone) {
            out.push((format!("workspace {w}"), h.root));
            out.extend(h.cut_off.map(|c| (format!("the cut-off in the head of workspace {w}"), c.root)));
        }
        out.extend(self.snapshots.iter().map(|(n, s)| (format!("snapshot {n}"), s.root)));
        out.extend(self.bases.iter().filter_map(|(n, b)| Some((format!("base {n}"), b.root?))));
        out.extend(self.cutoffs.values().map(|c| (format!("the cut-off of workspace {}, epoch {}", c.workspace, c.epoch), c.root)));
        out
    }

    /// The first chunk of a tree that a reader cannot find, not even behind forwards.
    pub fn unreadable(&self, tree: &Tree) -> Option<(usize, PackKey)> {
        tree.refs().find(|(chunk, pack)| !self.finds(*chunk, *pack))
    }

    fn finds(&self, chunk: usize, mut pack: PackKey) -> bool {
        for _ in 0..FORWARDS_MAX {
            if self.packs.get(&pack).is_some_and(|c| c.has(chunk)) {
                return true;
            }
            match self.forwards.get(&pack) {
                Some(to) => pack = *to,
                None => return false,
            }
        }
        false
    }
}

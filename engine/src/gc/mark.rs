//! Marking: which frames of which packs are named by the trees seen so far.

use std::collections::{BTreeMap, HashMap, HashSet};

use hiloop_manifest::FrameLoc;
use hiloop_manifest::tree::RootRef;
use hiloop_store::Store;
use hiloop_types::{PackId, Result};

use crate::context::StoreContext;
use crate::forward::Forward;
use crate::hydrate::read_directory;
use crate::traverse::{Traverse, chunks_of};

/// Bytes of a frame in a pack's directory.
const DIRECTORY_ENTRY: u64 = 49;

/// The marks of one run.
pub(super) struct Marks {
    packs: HashMap<PackId, PackMark>,
    /// Pack number in the high, offset in the low half.
    frames: HashSet<u64>,
    nodes: u64,
    forwards: HashMap<PackId, Forward>,
    /// Identities that are named in rewritten packs, to be looked for in the packs that took their place.
    ahead: BTreeMap<PackId, HashSet<[u8; 32]>>,
}

struct PackMark {
    number: u32,
    live: u64,
}

impl Marks {
    pub(super) fn new(forwards: HashMap<PackId, Forward>) -> Self {
        Self { packs: HashMap::new(), frames: HashSet::new(), nodes: 0, forwards, ahead: BTreeMap::new() }
    }
    /// True where a root names a frame of this pack.
    pub(super) fn names(&self, pack: &PackId) -> bool {
        self.packs.contains_key(pack)
    }
    pub(super) fn is_forwarded(&self, pack: &PackId) -> bool {
        self.forwards.contains_key(pack)
    }
    /// Bytes of the pack's marked frames.
    pub(super) fn live_bytes(&self, pack: &PackId) -> u64 {
        self.packs.get(pack).map_or(0, |p| p.live)
    }
    pub(super) fn is_live(&self, at: &FrameLoc) -> bool {
        self.packs.get(&at.pack).is_some_and(|p| self.frames.contains(&place(p.number, at.offset)))
    }
    pub(super) fn frames(&self) -> u64 {
        self.frames.len() as u64
    }
    pub(super) fn nodes(&self) -> u64 {
        self.nodes
    }

    fn pack(&mut self, pack: &PackId) -> &mut PackMark {
        let number = self.packs.len() as u32;
        self.packs.entry(*pack).or_insert(PackMark { number, live: 0 })
    }

    /// Marks a place; false where it was marked. By place, not by identity: copies in two packs are two things to keep.
    fn frame(&mut self, id: &[u8; 32], at: &FrameLoc) -> bool {
        let number = self.pack(&at.pack).number;
        if !self.frames.insert(place(number, at.offset)) {
            return false;
        }
        self.pack(&at.pack).live += u64::from(at.stored_len) + DIRECTORY_ENTRY;
        if self.forwards.contains_key(&at.pack) {
            self.ahead.entry(at.pack).or_default().insert(*id);
        }
        true
    }

    /// Marks all that a tree names. What was visited before is not visited again.
    ///
    /// # Errors
    /// Any node that cannot be had: a subtree is then unknown and the run must end.
    pub(super) async fn tree(&mut self, ctx: &StoreContext, root: &RootRef) -> Result<()> {
        let mut walk = Traverse::new(root);
        while let Some((_, node)) = walk.next(&ctx.hydrator, |n| self.frame(&n.id.0, &n.loc)).await {
            self.nodes += 1;
            ctx.tell("nodes marked", self.nodes);
            chunks_of(&*node?, |_, chunk| {
                self.frame(&chunk.id.0, &chunk.at);
            })?;
        }
        Ok(())
    }

    /// Marks in successors what is named in rewritten packs. Answers the rewritten packs that are not needed for it.
    ///
    /// # Errors
    /// Those of the store, and of a successor's directory that cannot be read.
    pub(super) async fn follow(&mut self, store: &Store) -> Result<HashSet<PackId>> {
        let mut moved = HashSet::new();
        let mut kept = HashSet::new();
        while let Some(old) = self.ahead.keys().next().copied() {
            let mut ids = self.ahead.remove(&old).unwrap_or_default();
            let to = self.forwards.get(&old).map(|f| f.to.clone()).unwrap_or_default();
            for pack in to {
                match read_directory(store, &pack).await? {
                    Some(directory) => ids.retain(|id| match directory.lookup(id) {
                        Some(entry) => {
                            self.frame(id, &entry.loc);
                            false
                        }
                        None => true,
                    }),
                    // Rewritten in its turn and gone: a reader goes on from its own forward.
                    None if self.forwards.contains_key(&pack) && pack != old => {
                        self.pack(&pack);
                        self.ahead.entry(pack).or_default().extend(&ids);
                    }
                    None => {}
                }
            }
            if ids.is_empty() {
                moved.insert(old)
            } else {
                kept.insert(old)
            };
        }
        // A pack that came twice must have been found whole each time.
        moved.retain(|p| !kept.contains(p));
        Ok(moved)
    }
}

fn place(pack: u32, offset: u32) -> u64 {
    u64::from(pack) << 32 | u64::from(offset)
}

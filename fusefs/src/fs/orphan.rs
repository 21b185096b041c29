//! Files without a name that are still open.
//!
//! The kernel counts its references to an inode: each answer that hands one out adds one, FORGET takes some back. An inode whose
//! last name goes stands in the manifest's orphan list; when the kernel's count reaches zero it is removed for good. The table is
//! bounded by the kernel's own inode cache. A daemon that dies leaves the list behind, and the next fresh opening empties it. A daemon
//! that takes a living mount over does not know how often the kernel holds what it held before: such an inode is never removed by
//! count, only by that next opening.

use std::collections::{HashMap, HashSet};

use hiloop_engine::workspace::{Read, Txn};
use hiloop_types::{Ino, limits};
use parking_lot::Mutex;

use super::FsResult;

/// A file with more allocated bytes than this is emptied in steps before it is removed, so that no transaction is long.
const STEP_BLOCKS: usize = 8192;
const SHARDS: usize = 16;

/// The kernel's references.
#[derive(Debug)]
pub struct References {
    counts: [Mutex<HashMap<Ino, u64>>; SHARDS],
    orphans: Mutex<HashSet<Ino>>,
    /// The kernel may hold inodes below this one more often than is counted.
    counted_from: Ino,
}

impl Default for References {
    fn default() -> Self {
        Self::of_a_mount_before(Ino(0))
    }
}

impl References {
    /// Of a mount that is taken over: the kernel may hold any inode below `next`.
    pub fn of_a_mount_before(next: Ino) -> Self {
        Self { counts: std::array::from_fn(|_| Mutex::default()), orphans: Mutex::default(), counted_from: next }
    }

    /// True where the kernel may hold inodes that are not known here.
    pub fn are_partial(&self) -> bool {
        self.counted_from > Ino(0)
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u64>> {
        &self.counts[ino.0 as usize % SHARDS]
    }

    /// Notes that an answer hands out a reference; call it before the answer is sent.
    pub fn add(&self, ino: Ino) {
        *self.shard(ino).lock().entry(ino).or_insert(0) += 1;
    }

    /// Takes `n` references back. True where the inode is an orphan that nobody holds now: [`reap`] it.
    #[must_use]
    pub fn forget(&self, ino: Ino, n: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(count) = shard.get_mut(&ino) else { return false };
        *count = count.saturating_sub(n);
        if *count > 0 {
            return false;
        }
        shard.remove(&ino);
        drop(shard);
        ino >= self.counted_from && self.orphans.lock().remove(&ino)
    }

    /// Notes that the inode lost its last name. True where nobody holds it: [`reap`] it at once.
    #[must_use]
    pub fn orphaned(&self, ino: Ino) -> bool {
        self.orphans.lock().insert(ino);
        // A FORGET may have run since: whoever takes the inode out of the set removes it.
        ino >= self.counted_from && !self.shard(ino).lock().contains_key(&ino) && self.orphans.lock().remove(&ino)
    }

    /// Notes that a new inode has no name; the answer that tells of it holds it.
    pub fn nameless(&self, ino: Ino) {
        self.orphans.lock().insert(ino);
    }

    /// Notes that an inode has a name again.
    pub fn named(&self, ino: Ino) {
        self.orphans.lock().remove(&ino);
    }

    /// Inodes that the kernel holds.
    pub fn len(&self) -> usize {
        self.counts.iter().map(|s| s.lock().len()).sum()
    }

    /// True where the kernel holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Unlinked inodes that are still held.
    pub fn orphans(&self) -> usize {
        self.orphans.lock().len()
    }

    /// All inodes that the kernel holds.
    pub fn inodes(&self) -> Vec<Ino> {
        self.counts.iter().flat_map(|s| s.lock().keys().copied().collect::<Vec<_>>()).collect()
    }
}

/// Whether [`reap`] has to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// The inode is gone (or has a name).
    Done,
    /// Part of its data is gone: call again.
    More,
}

/// Removes an orphan and its data, a step at a time. Safe to repeat.
pub fn reap(tx: &mut Txn<'_>, ino: Ino) -> FsResult<Reaped> {
    let Some(mut attr) = tx.attr(ino)? else { return Ok(Reaped::Done) };
    if attr.nlink > 0 {
        return Ok(Reaped::Done);
    }
    if attr.allocated > STEP_BLOCKS as u64 * limits::BLOCK {
        let mut seen = 0;
        let mut end = 0;
        tx.blocks_from(ino, 0, &mut |n, _| {
            seen += 1;
            end = (n + 1).saturating_mul(limits::BLOCK);
            seen < STEP_BLOCKS
        })?;
        tx.punch(ino, &mut attr, 0, end)?;
        tx.put_attr(ino, attr)?;
        return Ok(Reaped::More);
    }
    tx.remove_inode(ino)?;
    Ok(Reaped::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_reaped_when_the_last_reference_goes_and_only_once() {
        let r = References::default();
        let ino = Ino(7);
        r.add(ino);
        r.add(ino);
        assert!(!r.orphaned(ino));
        assert_eq!((r.len(), r.orphans()), (1, 1));
        assert!(!r.forget(ino, 1));
        assert!(r.forget(ino, 1));
        assert!(!r.forget(ino, 1), "a second FORGET of an unknown inode is ignored");
        assert!(r.is_empty() && r.orphans() == 0);
    }

    #[test]
    fn an_inode_that_nobody_holds_is_reaped_at_once_and_a_named_one_never() {
        let r = References::default();
        assert!(r.orphaned(Ino(1)));
        r.add(Ino(2));
        assert!(!r.forget(Ino(2), 1));
        r.nameless(Ino(3));
        r.add(Ino(3));
        assert_eq!(r.orphans(), 1);
        r.named(Ino(3));
        assert!(!r.forget(Ino(3), 1) && r.orphans() == 0);
    }

    #[test]
    fn what_the_kernel_held_before_a_takeover_is_never_reaped_by_count() {
        let r = References::of_a_mount_before(Ino(10));
        assert!(r.are_partial());
        assert!(!r.orphaned(Ino(9)), "it may be open");
        r.add(Ino(9));
        assert!(!r.forget(Ino(9), 7));
        r.add(Ino(10));
        assert!(!r.orphaned(Ino(10)));
        assert!(r.forget(Ino(10), 1), "a newer one is counted");
    }
}

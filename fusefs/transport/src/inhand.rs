//! Requests that were taken from the kernel and not answered yet.
//!
//! Two views: a registry in memory, through which FUSE_INTERRUPT finds what it is about, and a hook through which a keeper outside
//! the process learns the same, so that a successor knows what was in hand when a process died.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::abi::Opcode;

/// Hears what is in hand. Called on the path of every request: it must not block and has nowhere to fail to.
///
/// Order for one request: `received`; the file system does it; `applied`, if it changes something; the answer goes to the kernel;
/// `answered`. `unique` comes without the mark of a resent request, so that it is the same when the request comes back.
pub trait InHand: Send + Sync {
    /// A request was read. It comes before the file system sees it.
    fn received(&self, unique: u64, opcode: Opcode, nodeid: u64);
    /// A request that [`Opcode::mutates`] was done, or refused; `result` is the whole message that is sent next, which
    /// [`crate::Reply::recorded`] sends again.
    fn applied(&self, unique: u64, result: &[u8]);
    /// The answer is with the kernel.
    fn answered(&self, unique: u64);
}

/// For sessions whose process has no successor.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTable;

impl InHand for NoTable {
    fn received(&self, _unique: u64, _opcode: Opcode, _nodeid: u64) {}
    fn applied(&self, _unique: u64, _result: &[u8]) {}
    fn answered(&self, _unique: u64) {}
}

type Hook = Box<dyn FnOnce() + Send>;

enum State {
    Running,
    /// Somebody wants to know of an interrupt.
    Hooked(Hook),
    Interrupted,
}

/// Numbers count up in steps of two, so that they are their own hash once shifted.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }
    fn write_u64(&mut self, n: u64) {
        // The table takes its buckets from the low bits and its tags from the high ones.
        self.0 = (n >> 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Shard = HashMap<u64, State, BuildHasherDefault<NumberHasher>>;

const SHARDS: usize = 16;
/// Interrupts that are remembered for requests which have not shown up. One that stays is of a request that was answered before;
/// its number never comes again.
const EARLY: usize = 64;

/// What became of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The request is in hand: its hook ran, or will run as soon as there is one.
    Delivered,
    /// No such request is in hand.
    Unknown,
}

#[derive(Default)]
pub(crate) struct Registry {
    shards: [Mutex<Shard>; SHARDS],
    count: AtomicUsize,
    early: Mutex<VecDeque<u64>>,
    early_count: AtomicUsize,
}

impl Registry {
    fn shard(&self, key: u64) -> &Mutex<Shard> {
        &self.shards[(key >> 1) as usize % SHARDS]
    }

    /// How many are in hand.
    pub(crate) fn len(&self) -> usize {
        self.count.load(SeqCst)
    }

    pub(crate) fn insert(&self, key: u64) {
        self.count.fetch_add(1, SeqCst);
        let mut shard = self.shard(key).lock();
        // Looked up while the shard is held: whoever announces an early interrupt looks into the shard afterwards.
        let early = self.early_count.load(SeqCst) > 0 && self.take_early(key);
        shard.insert(key, if early { State::Interrupted } else { State::Running });
    }

    pub(crate) fn remove(&self, key: u64) {
        let state = self.shard(key).lock().remove(&key);
        if state.is_some() {
            self.count.fetch_sub(1, SeqCst);
        }
    }

    /// Runs `hook` when the request is interrupted; at once, where it was.
    pub(crate) fn on_interrupt(&self, key: u64, hook: Hook) {
        let mut shard = self.shard(key).lock();
        match shard.get_mut(&key) {
            Some(State::Interrupted) => {
                drop(shard);
                hook();
            }
            Some(state) => {
                let old = std::mem::replace(state, State::Hooked(hook));
                drop(shard);
                drop(old);
            }
            // Answered already, by whoever else holds a way to it.
            None => {}
        }
    }

    /// Forgets the hook; an interrupt that comes later finds none.
    pub(crate) fn unhook(&self, key: u64) {
        let mut shard = self.shard(key).lock();
        let old = shard.get_mut(&key).filter(|s| matches!(s, State::Hooked(_))).map(|s| std::mem::replace(s, State::Running));
        drop(shard);
        drop(old);
    }

    pub(crate) fn interrupt(&self, key: u64) -> Interrupt {
        let mut shard = self.shard(key).lock();
        let Some(state) = shard.get_mut(&key) else { return Interrupt::Unknown };
        let old = std::mem::replace(state, State::Interrupted);
        drop(shard);
        if let State::Hooked(hook) = old {
            hook();
        }
        Interrupt::Delivered
    }

    /// Remembers an interrupt whose request another reader has taken from the kernel and not yet shown here.
    pub(crate) fn interrupt_early(&self, key: u64) {
        {
            let mut early = self.early.lock();
            if early.len() == EARLY {
                early.pop_front();
            }
            early.push_back(key);
            self.early_count.store(early.len(), SeqCst);
        }
        if self.interrupt(key) == Interrupt::Delivered {
            self.take_early(key);
        }
    }

    fn take_early(&self, key: u64) -> bool {
        let mut early = self.early.lock();
        let before = early.len();
        early.retain(|k| *k != key);
        self.early_count.store(early.len(), SeqCst);
        early.len() < before
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn counter() -> (Arc<AtomicUsize>, Hook) {
        let n = Arc::new(AtomicUsize::new(0));
        let hook = n.clone();
        let hook = move || {
            hook.fetch_add(1, SeqCst);
        };
        (n, Box::new(hook))
    }

    #[test]
    fn a_hook_runs_once_whichever_comes_first() {
        let r = Registry::default();
        let ((a, hook_a), (b, hook_b)) = (counter(), counter());
        r.insert(2);
        r.on_interrupt(2, hook_a);
        assert_eq!((r.interrupt(2), r.interrupt(2)), (Interrupt::Delivered, Interrupt::Delivered));
        r.insert(4);
        assert_eq!(r.interrupt(4), Interrupt::Delivered);
        r.on_interrupt(4, hook_b);
        assert_eq!((a.load(SeqCst), b.load(SeqCst), r.len()), (1, 1, 2));
        r.remove(2);
        r.remove(4);
        assert_eq!((r.interrupt(2), r.len()), (Interrupt::Unknown, 0));
    }

    #[test]
    fn an_early_interrupt_finds_its_request_and_no_other() {
        let r = Registry::default();
        assert_eq!(r.interrupt(6), Interrupt::Unknown);
        r.interrupt_early(6);
        let ((a, hook_a), (b, hook_b)) = (counter(), counter());
        r.insert(8);
        r.on_interrupt(8, hook_b);
        r.insert(6);
        r.on_interrupt(6, hook_a);
        assert_eq!((a.load(SeqCst), b.load(SeqCst)), (1, 0));
        assert_eq!(r.early_count.load(SeqCst), 0);
        // The other order: the request is there by the time the interrupt is remembered.
        let (c, hook_c) = counter();
        r.insert(10);
        r.on_interrupt(10, hook_c);
        r.interrupt_early(10);
        assert_eq!((c.load(SeqCst), r.early_count.load(SeqCst)), (1, 0));
    }

    #[test]
    fn early_interrupts_of_the_past_are_forgotten() {
        let r = Registry::default();
        (0..1000).for_each(|n| r.interrupt_early(n * 2));
        assert_eq!(r.early.lock().len(), EARLY);
    }

    #[test]
    fn an_unhooked_request_takes_an_interrupt_quietly() {
        let r = Registry::default();
        let (n, hook) = counter();
        r.insert(2);
        r.on_interrupt(2, hook);
        r.unhook(2);
        assert_eq!(Arc::strong_count(&n), 1, "the hook is gone");
        assert_eq!(r.interrupt(2), Interrupt::Delivered);
        assert_eq!(n.load(SeqCst), 0);
    }
}

//! What the requests of one mount share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Txn, Workspace};
use hiloop_env::Env;
use hiloop_types::{Ino, Seqno, limits};
use parking_lot::Mutex;

use super::park::guarded;
use super::stats::Counters;
use super::workers::Workers;
use crate::fs::orphan::{Reaped, References, reap};
use crate::fs::{FsError, FsResult};

/// Shared state of a mount.
pub(super) struct Core {
    pub(super) ws: Workspace,
    pub(super) env: Env,
    pub(super) workers: Arc<Workers>,
    pub(super) counters: Counters,
    pub(super) references: References,
    pub(super) touched: Touched,
    pub(super) listings: Listings,
    pub(super) held_data: HeldData,
    pub(super) read_only: bool,
    /// When a request last gave up on the store, monotonic.
    pub(super) gave_up: Mutex<Option<Duration>>,
}

impl Core {
    pub(super) fn new(ws: Workspace, env: Env, workers: Arc<Workers>, read_only: bool, references: References) -> Arc<Self> {
        // A workspace that is taken back while it drains may hold unflushed changes of the mount before.
        let touched = Touched::since(ws.accepted());
        let listings = Listings::new(&env);
        Arc::new(Self {
            ws,
            env,
            workers,
            counters: Counters::default(),
            references,
            touched,
            listings,
            held_data: HeldData::default(),
            read_only,
            gave_up: Mutex::default(),
        })
    }

    /// Requests that wait for a fetch or for room now.
    pub(super) fn waiting(&self) -> u64 {
        self.counters.parked_now.load(Relaxed) + self.counters.waiting_now.load(Relaxed)
    }

    /// Runs a change and notes under which number it can be waited for.
    pub(super) fn update<T>(&self, touches: &[Ino], change: impl FnOnce(&mut Txn<'_>) -> FsResult<T>) -> FsResult<T> {
        let (value, seqno) = self.ws.update(change)?;
        for ino in touches {
            self.touched.mark(*ino, seqno);
        }
        Ok(value)
    }

    /// As [`Core::update`], for a change that tells itself what it touched.
    pub(super) fn update_and<T>(
        &self,
        change: impl FnOnce(&mut Txn<'_>) -> FsResult<T>,
        touched: impl FnOnce(&T, &mut dyn FnMut(Ino)),
    ) -> FsResult<T> {
        let (value, seqno) = self.ws.update(change)?;
        touched(&value, &mut |ino| self.touched.mark(ino, seqno));
        Ok(value)
    }

    /// A listing that stopped in between is an answer: the kernel asks for the rest. What that will need is fetched meanwhile; a
    /// failure shows when the kernel comes to it.
    pub(super) fn partial(&self, listed: FsResult<()>, added: bool) -> FsResult<()> {
        match listed {
            Err(FsError::Stop(Stop::Miss(miss))) if added => {
                self.ws.fetch(miss, limits::READ_DEADLINE, Box::new(drop));
                Ok(())
            }
            Err(_) if added => Ok(()),
            other => other,
        }
    }

    /// Takes back a reference that an answer gave and the kernel did not take, because the caller is gone.
    pub(super) fn unreferenced(self: &Arc<Self>, ino: Ino) {
        if self.references.forget(ino, 1) {
            self.reap(ino);
        }
    }

    /// Removes an inode that has neither name nor reference: a step at once, the rest on the pool.
    pub(super) fn reap(self: &Arc<Self>, ino: Ino) {
        // It stays in the orphan list, which the next fresh opening empties.
        let stays = move |why: &dyn std::fmt::Debug| tracing::debug!(inode = ino.0, ?why, "an orphan stays until the next opening");
        let core = self.clone();
        match guarded(|| Ok(self.ws.update(|tx| reap(tx, ino))?.0)) {
            Ok(Reaped::Done) => {}
            Ok(Reaped::More) => self.workers.submit(Box::new(move || core.reap(ino))),
            Err(FsError::Stop(Stop::Miss(miss))) => {
                let patience = if matches!(miss, Miss::Room(_)) { Duration::MAX } else { limits::READ_DEADLINE };
                let fetched = move |result: hiloop_types::Result<()>| match result {
                    Ok(()) => {
                        let workers = core.workers.clone();
                        workers.submit(Box::new(move || core.reap(ino)));
                    }
                    Err(e) => stays(&e),
                };
                self.ws.fetch(miss, patience, Box::new(fetched));
            }
            Err(e) => stays(&e),
        }
    }

    /// Removes what was unlinked and still referenced when the mount ended; the kernel sends no FORGET then.
    pub(super) fn reap_all(&self) {
        for ino in self.references.inodes() {
            if !self.references.forget(ino, u64::MAX) {
                continue;
            }
            loop {
                match self.ws.update(|tx| reap(tx, ino)) {
                    Ok((Reaped::More, _)) => {}
                    Ok((Reaped::Done, _)) => break,
                    Err(FsError::Stop(Stop::Miss(miss))) => {
                        if self.ws.fetch_blocking(miss).is_err() {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
        }
    }
}

const TOUCHED: usize = 4096;

/// The last change of each inode, so that fsync waits for its own file and not for what others wrote since. Inodes share slots;
/// a slot holds the highest number, so that sharing only waits longer.
pub(super) struct Touched(Box<[AtomicU64]>);

impl Touched {
    /// Every inode counts as changed by `seqno`.
    fn since(seqno: Seqno) -> Self {
        Self((0..TOUCHED).map(|_| AtomicU64::new(seqno.0)).collect())
    }
    fn slot(&self, ino: Ino) -> &AtomicU64 {
        &self.0[ino.0 as usize % TOUCHED]
    }
    pub(super) fn mark(&self, ino: Ino, seqno: Seqno) {
        self.slot(ino).fetch_max(seqno.0, Relaxed);
    }
    /// A number that covers every change of `ino`.
    pub(super) fn last(&self, ino: Ino) -> Seqno {
        Seqno(self.slot(ino).load(Relaxed))
    }
}

/// Open directory streams: where each ends (see `fs::dir`). Bounded by the kernel: one per open descriptor.
pub(super) struct Listings {
    ends: Mutex<HashMap<u64, u64>>,
    next: AtomicU64,
}

impl Listings {
    /// Handles begin anywhere: of a mount that was taken over the kernel has handles of the daemon before, which must not name a stream
    /// of this one.
    fn new(env: &Env) -> Self {
        Self { ends: Mutex::default(), next: AtomicU64::new(env.random_u64()) }
    }
    pub(super) fn open(&self, end: u64) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        self.ends.lock().insert(handle, end);
        handle
    }
    pub(super) fn rewind(&self, handle: u64, end: u64) {
        self.ends.lock().insert(handle, end);
    }
    pub(super) fn end(&self, handle: u64) -> u64 {
        self.ends.lock().get(&handle).copied().unwrap_or(u64::MAX)
    }
    pub(super) fn close(&self, handle: u64) {
        self.ends.lock().remove(&handle);
    }
}

/// Data of writes that wait for room or metadata: each copied once, all together bounded. A thousand writers before a full
/// backlog would else hold a gigabyte; the kernel's own copies it bounds itself.
#[derive(Clone, Default)]
pub(super) struct HeldData(Arc<AtomicU64>);

/// A copy of a write's data, counted while it lives.
pub(super) struct Held {
    bytes: Vec<u8>,
    sum: Arc<AtomicU64>,
}

impl HeldData {
    /// Copies `data`; of a write that nobody completes (`whole`) always all of it.
    pub(super) fn copy(&self, data: &[u8], whole: bool) -> Held {
        let crowded = self.0.load(Relaxed) + data.len() as u64 > limits::HELD_WRITES;
        let keep = if crowded && !whole { data.len().min(limits::HELD_SHORT) } else { data.len() };
        self.0.fetch_add(keep as u64, Relaxed);
        Held { bytes: data[..keep].to_vec(), sum: self.0.clone() }
    }
}

impl std::ops::Deref for Held {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_data_are_bounded_and_counted_back() {
        let held = HeldData::default();
        let mib = vec![1u8; limits::MIB as usize];
        let full: Vec<_> = (0..limits::HELD_WRITES / limits::MIB).map(|_| held.copy(&mib, false)).collect();
        assert!(full.iter().all(|h| h.len() == mib.len()));
        assert_eq!(held.copy(&mib, false).len(), limits::HELD_SHORT);
        assert_eq!(held.copy(&mib, true).len(), mib.len(), "written-back pages are never cut");
        drop(full);
        assert_eq!(held.0.load(Relaxed), 0);
    }

    #[test]
    fn a_slot_never_forgets_the_later_change() {
        let t = Touched::since(Seqno(3));
        t.mark(Ino(1), Seqno(9));
        t.mark(Ino(1 + TOUCHED as u64), Seqno(5));
        assert_eq!(t.last(Ino(1)), Seqno(9));
        assert_eq!(t.last(Ino(2)), Seqno(3));
    }
}

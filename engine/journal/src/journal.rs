//! The journal's public face.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result, ResultExt, Seqno, limits};
use parking_lot::Mutex;

use crate::anchor::Anchor;
use crate::commit::{Commits, Done, committer, upkeeper};
use crate::disk::Disk;
use crate::format::{DATA_START, SlabId, StagedRef, StreamId, encode_record};
use crate::head::Head;
use crate::health::{Health, State};
use crate::options::{Class, Fault, JournalOptions};
use crate::recovery::{RecoveredRecord, RecoveryReport, recover};
use crate::segments::Pool;
use crate::staging::{Room, Staged, Staging};

/// Room that the journal takes, for metrics and `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of segments that count.
    pub journal_bytes: u64,
    /// Segments that count.
    pub segments: usize,
    /// Spare segments, the reserve included.
    pub spares: usize,
    /// Bytes of staging slab files.
    pub staging_bytes: u64,
    /// Staging slab files.
    pub slabs: usize,
    /// Staged bytes not flushed yet.
    pub staging_dirty: u64,
    /// Records accepted and not flushed yet.
    pub unflushed: u64,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) options: JournalOptions,
    pub(crate) health: Arc<Health>,
    pub(crate) head: Mutex<Head>,
    pub(crate) pool: Pool,
    pub(crate) staging: Staging,
    pub(crate) commits: Commits,
    anchor: Mutex<Anchor>,
    accepted: AtomicU64,
    pub(crate) flushed: AtomicU64,
    released: AtomicU64,
}

impl Inner {
    pub(crate) fn accepted(&self) -> Seqno {
        Seqno(self.accepted.load(Ordering::Acquire))
    }
    pub(crate) fn flushed(&self) -> Seqno {
        Seqno(self.flushed.load(Ordering::Acquire))
    }
}

thread_local! {
    /// Where a thread gathers its records: kept, so that appending allocates nothing.
    static GATHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The node journal. Share it with `Arc`; every method may be called from any thread.
///
/// Dropping it stops its threads and flushes nothing, as a kill would; [`Journal::close`] is the orderly end.
pub struct Journal {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

impl Journal {
    /// Opens or makes `dir/journal` and `dir/staging` (`dir` exists and is locked by [`crate::DirLock`]), recovers, and hands every
    /// surviving unreleased record to `replay`, in order. Numbering resumes at `min_next` or above (above what the index applied
    /// and what the own session published, `protocols.md` 2.5).
    ///
    /// What `replay` builds must stay in memory until this returns: only then are the records certain to survive.
    ///
    /// # Errors
    /// `Corrupt` when the anchor is gone or a record cannot be read, `Exhausted` when the unflushed tail finds no room, `Invalid` for
    /// another format version or unusable sizes, and whatever `replay` returns. Damage is not an error: see
    /// [`RecoveryReport::damage`] and [`Journal::state`].
    pub fn open(
        dir: &Path,
        disk: Arc<dyn Disk>,
        env: &Env,
        options: JournalOptions,
        min_next: Seqno,
        replay: &mut dyn FnMut(RecoveredRecord<'_>) -> Result<()>,
    ) -> Result<(Self, RecoveryReport)> {
        if options.segment_size < 4096 || options.slab_size < 4096 || options.segment_size > u64::from(u32::MAX) {
            return Err(Error::invalid("segment and slab sizes start at 4096 bytes, and a segment ends below 4 GiB"));
        }
        let health = Arc::new(Health::default());
        let r = recover(dir, disk, env, &options, &health, min_next, replay)?;
        let accepted = r.head.accepted();
        let released = r.anchor.slot.as_ref().map_or(0, |s| s.released.0);
        let inner = Arc::new(Inner {
            env: env.clone(),
            health,
            head: Mutex::new(r.head),
            pool: r.pool,
            staging: r.staging,
            commits: Commits::default(),
            anchor: Mutex::new(r.anchor),
            accepted: AtomicU64::new(accepted.0),
            flushed: AtomicU64::new(r.flushed.0),
            released: AtomicU64::new(released),
            options,
        });
        let mut threads = Vec::new();
        if inner.options.background {
            threads.push(spawn("journal-commit", &inner, committer)?);
            threads.push(spawn("journal-upkeep", &inner, upkeeper)?);
        }
        Ok((Self { inner, threads }, r.report))
    }

    /// Appends a record; when it returns the record is *accepted* (`protocols.md` 2.2). The body is given in pieces; `staged` are the
    /// ranges it refers to by index, each written by [`Journal::stage`] before.
    ///
    /// # Errors
    /// `Invalid` for a record too large, `Exhausted` when the disk is full (nothing was accepted), `Closed` when read-only.
    pub fn append(&self, class: Class, stream: StreamId, kind: u8, body: &[&[u8]], staged: &[StagedRef]) -> Result<Seqno> {
        let inner = &*self.inner;
        inner.health.check()?;
        GATHER.with_borrow_mut(|buf| {
            encode_record(buf, stream, kind, body, staged)?;
            let mut head = inner.head.lock();
            let generation = head.current.generation;
            let result = head.append(buf, class, staged, &inner.pool, inner.flushed());
            if let Ok(seqno) = &result {
                inner.accepted.store(seqno.0, Ordering::Release);
            }
            let opened = head.current.generation != generation;
            drop(head);
            if opened {
                inner.want_upkeep();
            }
            result.inspect_err(|e| {
                if !matches!(e.kind(), ErrorKind::Exhausted | ErrorKind::Invalid) {
                    inner.health.fail(e);
                }
            })
        })
    }
    /// Writes data to a staging slab, before the record that names it. Keep the result until that `append` has returned.
    ///
    /// Never waits for the disk: `None` where [`JournalOptions::staging_dirty`] bytes are unflushed. Nothing was done then;
    /// [`Journal::when_room`] says when to try again.
    ///
    /// # Errors
    /// `Invalid` for nothing or more than a slab holds, `Exhausted` when the disk is full, `Closed` when read-only.
    pub fn stage(&self, data: &[u8]) -> Result<Option<Staged>> {
        let inner = &*self.inner;
        inner.health.check()?;
        let staged = inner.staging.stage(data)?;
        if staged.is_none() || inner.staging.crossed_half(data.len() as u64) {
            inner.want_upkeep();
        }
        Ok(staged)
    }
    /// Calls `room` once when [`Journal::stage`] of `len` bytes may succeed, or never will: on the thread that flushed, or here. It
    /// must not block.
    pub fn when_room(&self, len: u64, room: Room) {
        self.inner.staging.when_room(len, room);
        self.inner.want_upkeep();
    }
    /// Reads `out.len()` bytes of a range from `skip` on. The checksum covers whole ranges and is not looked at.
    ///
    /// # Errors
    /// `Invalid` beyond the range, `Corrupt` when the slab is gone or short.
    pub fn read_staged(&self, range: &StagedRef, skip: u32, out: &mut [u8]) -> Result<()> {
        self.inner.staging.read(range, skip, out)
    }
    /// As [`Journal::read_staged`], but returns `false` when it would wait for the disk (the content of `out` is then undefined).
    ///
    /// # Errors
    /// As [`Journal::read_staged`].
    pub fn read_staged_nowait(&self, range: &StagedRef, skip: u32, out: &mut [u8]) -> Result<bool> {
        self.inner.staging.read_nowait(range, skip, out)
    }
    /// Reads a whole range and checks it.
    ///
    /// # Errors
    /// `Corrupt` when the slab is gone or short or the checksum does not hold.
    pub fn verify_staged(&self, range: &StagedRef) -> Result<Bytes> {
        self.inner.staging.verify(range)
    }
    /// Blocks until everything up to `upto` is flushed; returns the flushed seqno. Callers at the same time share flushes.
    ///
    /// # Errors
    /// The failure of the flush itself (then the journal is read-only), `Invalid` for a number never given out.
    pub fn commit(&self, upto: Seqno) -> Result<Seqno> {
        self.inner.commit(upto)
    }
    /// As [`Journal::commit`], without a waiting thread: `done` runs on the thread that led the flush (the committer's, or another
    /// caller of `commit`), or here if there is nothing to wait for. It must not block.
    pub fn commit_async(&self, upto: Seqno, done: Done) {
        self.inner.commit_async(upto, done);
    }
    /// Last record accepted.
    pub fn accepted(&self) -> Seqno {
        self.inner.accepted()
    }
    /// Everything up to here is on the disk: only this may ship.
    pub fn flushed(&self) -> Seqno {
        self.inner.flushed()
    }
    /// Records up to here are no longer needed.
    pub fn released(&self) -> Seqno {
        Seqno(self.inner.released.load(Ordering::Acquire))
    }
    /// Says that a checkpoint or a confirmed head covers every record up to `upto`: they are not replayed again, and segments that
    /// hold nothing else are recycled. Two small flushes; call it per checkpoint, off the request threads.
    ///
    /// # Errors
    /// `Invalid` above the flushed seqno, `Closed` when read-only, or the failure of the flush (then the journal is read-only).
    pub fn release(&self, upto: Seqno) -> Result<()> {
        let inner = &*self.inner;
        inner.health.check()?;
        if upto > inner.flushed() {
            return Err(Error::invalid(format!("cannot release up to {upto}: flushed only up to {}", inner.flushed())));
        }
        let mut anchor = inner.anchor.lock();
        if upto <= self.released() {
            return Ok(());
        }
        let oldest = inner.head.lock().oldest_kept(upto, inner.flushed());
        let mut slot = anchor.slot.clone().expect("an open journal has an anchor");
        slot.released = upto;
        slot.oldest_generation = oldest;
        slot.next_slab = inner.staging.next_id();
        slot.links.retain(|l| l.end_generation.is_none_or(|end| end > oldest));
        if !inner.options.planted(Fault::SkipAnchorAtRelease) {
            anchor.write(slot).inspect_err(|e| inner.health.fail(e))?;
        }
        inner.released.store(upto.0, Ordering::Release);
        let free: Vec<_> = {
            let mut head = inner.head.lock();
            let count = head.closed.iter().take_while(|s| s.generation < oldest).count();
            head.closed.drain(..count).collect()
        };
        for segment in free {
            inner.pool.give_back(segment.file)?;
        }
        Ok(())
    }
    /// Deletes the slabs that neither `in_use` (layers, checkpoints, cuts, running seals, clones) nor an unreleased record nor a
    /// [`Staged`] names, and that are not being filled. Returns them.
    ///
    /// # Errors
    /// That of the disk; a slab that could not be deleted is found again at the next opening.
    pub fn retain_slabs(&self, in_use: &HashSet<SlabId>) -> Result<Vec<SlabId>> {
        let inner = &*self.inner;
        inner.health.check()?;
        let unused = {
            // Under the head's lock a range is either pinned by its stager or named by its record.
            let head = inner.head.lock();
            let released = self.released();
            let named = head.segments().flat_map(|s| &s.slabs).filter(|(_, last)| *last > released).map(|(id, _)| *id).collect();
            inner.staging.forget_unused(in_use, &named)
        };
        for id in &unused {
            inner.staging.delete(*id)?;
        }
        Ok(unused)
    }
    /// Healthy, or read-only with the reason.
    pub fn state(&self) -> State {
        self.inner.health.state()
    }
    /// Largest record that fits, header and 24 bytes per staged range included.
    pub fn record_max(&self) -> usize {
        limits::JOURNAL_RECORD.min((self.inner.options.segment_size - DATA_START) as usize)
    }
    /// Room taken now.
    pub fn usage(&self) -> Usage {
        let inner = &*self.inner;
        let (journal_bytes, segments) = {
            let head = inner.head.lock();
            (head.segments().map(|s| s.file.size).sum(), head.segments().count())
        };
        let (slabs, staging_bytes) = inner.staging.size();
        Usage {
            journal_bytes,
            segments,
            spares: inner.pool.len(),
            staging_bytes,
            slabs,
            staging_dirty: inner.staging.dirty(),
            unflushed: self.accepted().0 - self.flushed().0,
        }
    }
    /// What the background threads would do now: parked and due commits, write-back, spares. For callers that run without them.
    pub fn maintain(&self) {
        self.inner.serve_commits(false);
        self.inner.upkeep();
    }
    /// Commits everything and flushes the mark of that commit, so that the next opening has nothing to write again.
    ///
    /// # Errors
    /// The failure of a flush; the journal is closed all the same.
    pub fn close(self) -> Result<()> {
        let inner = &*self.inner;
        self.commit(self.accepted())?;
        let file = inner.head.lock().current.file.file.clone();
        file.sync_data().at("journal segment")
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.inner.stop_threads();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a journal thread panicked");
            }
        }
        self.inner.refuse_parked();
    }
}

fn spawn(name: &str, inner: &Arc<Inner>, body: fn(&Arc<Inner>)) -> Result<JoinHandle<()>> {
    let inner = inner.clone();
    std::thread::Builder::new().name(name.into()).spawn(move || body(&inner)).at(name)
}

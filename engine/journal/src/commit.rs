//! Group commit: one flush serves everyone who waits for a number it covers.
//!
//! Whoever finds no flush running leads one; the others wait on the condition. Parked callers are answered by whichever thread led
//! the flush that covers them, the committer thread if nobody else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hiloop_types::limits::{COMMIT_INTERVAL, COMMITS_PARKED};
use hiloop_types::{Error, ErrorKind, Result, ResultExt, Seqno};
use parking_lot::{Condvar, Mutex};

use crate::journal::Inner;
use crate::options::Fault;

/// What a parked caller runs when its number is flushed or never will be.
pub type Done = Box<dyn FnOnce(Result<Seqno>) + Send>;

#[derive(Default)]
struct Turns {
    running: bool,
    parked: Vec<(Seqno, Done)>,
    stop: bool,
    /// Write-back or spare segments are wanted.
    upkeep: bool,
    last_flush: Duration,
}

#[derive(Default)]
pub(crate) struct Commits {
    turns: Mutex<Turns>,
    flushed: Condvar,
    parked: Condvar,
    upkeep: Condvar,
}

impl Inner {
    /// Blocks until `upto` is flushed.
    pub(crate) fn commit(&self, upto: Seqno) -> Result<Seqno> {
        self.check_given(upto)?;
        let mut turns = self.commits.turns.lock();
        loop {
            let flushed = self.flushed();
            if flushed >= upto {
                return Ok(flushed);
            }
            if let Some(e) = self.health.failure() {
                return Err(e);
            }
            if turns.running {
                self.commits.flushed.wait(&mut turns);
                continue;
            }
            turns.running = true;
            drop(turns);
            let result = self.flush();
            turns = self.commits.turns.lock();
            turns.running = false;
            turns.last_flush = self.env.monotonic();
            self.commits.flushed.notify_all();
            let served = take_served(&mut turns.parked, &result, self.flushed());
            if !served.is_empty() {
                drop(turns);
                for (done, answer) in served {
                    done(answer);
                }
                turns = self.commits.turns.lock();
            }
            result?;
        }
    }
    fn check_given(&self, upto: Seqno) -> Result<()> {
        if upto > self.accepted() {
            return Err(Error::invalid(format!("seqno {upto} was not given out; the last is {}", self.accepted())));
        }
        Ok(())
    }
    /// Parks a caller; `done` runs on the thread that led the flush, or at once if there is nothing to wait for.
    pub(crate) fn commit_async(&self, upto: Seqno, done: Done) {
        if let Err(e) = self.check_given(upto) {
            return done(Err(e));
        }
        let mut turns = self.commits.turns.lock();
        let flushed = self.flushed();
        let answer = if flushed >= upto {
            Ok(flushed)
        } else if let Some(e) = self.health.failure() {
            Err(e)
        } else if turns.parked.len() >= COMMITS_PARKED {
            Err(Error::exhausted(format!("{COMMITS_PARKED} commits are waiting already")))
        } else {
            turns.parked.push((upto, done));
            self.commits.parked.notify_one();
            return;
        };
        drop(turns);
        done(answer);
    }
    /// One group commit (`protocols.md` 2.4). Only the leader calls it.
    fn flush(&self) -> Result<()> {
        let (claim, dirty) = {
            let mut head = self.head.lock();
            (head.accepted(), head.take_dirty())
        };
        if self.options.planted(Fault::JournalBeforeStaging) {
            let mark = self.head.lock().mark_flushed(claim, &self.pool);
            let early = mark.and_then(|()| dirty.iter().try_for_each(|f| f.sync_data().at("journal segment")));
            early.inspect_err(|e| self.health.fail(e))?;
        }
        self.staging.flush()?;
        if !self.options.planted(Fault::SkipJournalFlush) {
            for file in dirty {
                let mut result = file.sync_data();
                if result.is_err() && self.options.planted(Fault::RetryFailedFlush) {
                    result = file.sync_data();
                }
                result.at("journal segment").inspect_err(|e| self.health.fail(e))?;
            }
        }
        self.flushed.store(claim.0, Ordering::Release);
        match self.head.lock().mark_flushed(claim, &self.pool) {
            // The mark only spares the next recovery work.
            Err(e) if e.kind() == ErrorKind::Exhausted => Ok(()),
            Err(e) => {
                self.health.fail(&e);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
    /// Commits everything accepted, if that is more than what is flushed.
    fn commit_all(&self) {
        let accepted = self.accepted();
        if accepted > self.flushed()
            && let Err(error) = self.commit(accepted)
        {
            tracing::warn!(%error, "group commit failed");
        }
    }
    /// Answers parked callers, and commits if the last commit is too long ago.
    pub(crate) fn serve_commits(&self, interval_over: bool) {
        let (wanted, last) = {
            let turns = self.commits.turns.lock();
            (!turns.parked.is_empty(), turns.last_flush)
        };
        if wanted || interval_over || self.env.monotonic().saturating_sub(last) >= COMMIT_INTERVAL {
            self.commit_all();
            self.answer_rest();
        }
    }
    /// Answers those whom another's flush, or a failure of the journal, has settled since.
    fn answer_rest(&self) {
        let failure = self.health.failure().map_or(Ok(()), Err);
        let served = take_served(&mut self.commits.turns.lock().parked, &failure, self.flushed());
        for (done, answer) in served {
            done(answer);
        }
    }
    /// Starts write-back of staging and makes spare segments and slabs.
    pub(crate) fn upkeep(&self) {
        if let Some(e) = self.health.failure() {
            return self.staging.wake(&Err(e));
        }
        let done = (|| {
            if self.staging.wants_write_back() {
                self.staging.flush()?;
            }
            self.staging.prepare()?;
            while self.pool.wants_more() {
                self.pool.fill_one()?;
            }
            Ok::<_, Error>(())
        })();
        match done {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::Exhausted => tracing::warn!(error = %e, "node disk is full: journal keeps to its reserve"),
            Err(e) => self.health.fail(&e),
        }
    }
    /// Asks the upkeep thread to look after staging and spares.
    pub(crate) fn want_upkeep(&self) {
        if self.options.background {
            self.commits.turns.lock().upkeep = true;
            self.commits.upkeep.notify_one();
        }
    }
    pub(crate) fn stop_threads(&self) {
        self.commits.turns.lock().stop = true;
        self.commits.parked.notify_all();
        self.commits.upkeep.notify_all();
    }
    /// Answers everyone who still waits when the journal goes away.
    pub(crate) fn refuse_parked(&self) {
        let parked = std::mem::take(&mut self.commits.turns.lock().parked);
        for (_, done) in parked {
            done(Err(Error::closed("the journal was closed before the commit")));
        }
        self.staging.wake(&Err(Error::closed("the journal was closed before there was room")));
    }
}

/// Parked callers that a flush has settled.
fn take_served(parked: &mut Vec<(Seqno, Done)>, result: &Result<()>, flushed: Seqno) -> Vec<(Done, Result<Seqno>)> {
    let settled = parked.extract_if(.., |(upto, _)| *upto <= flushed || result.is_err());
    settled.map(|(upto, done)| (done, if upto <= flushed { Ok(flushed) } else { result.clone().map(|()| flushed) })).collect()
}

/// Body of the committer thread.
pub(crate) fn committer(inner: &Arc<Inner>) {
    loop {
        let timed_out = {
            let mut turns = inner.commits.turns.lock();
            let idle = !turns.stop && turns.parked.is_empty();
            let timed_out = idle && inner.commits.parked.wait_for(&mut turns, COMMIT_INTERVAL).timed_out();
            if turns.stop {
                return;
            }
            timed_out
        };
        inner.serve_commits(timed_out);
    }
}

/// Body of the upkeep thread.
pub(crate) fn upkeeper(inner: &Arc<Inner>) {
    loop {
        inner.upkeep();
        let mut turns = inner.commits.turns.lock();
        while !turns.upkeep {
            if turns.stop {
                return;
            }
            inner.commits.upkeep.wait(&mut turns);
        }
        turns.upkeep = false;
    }
}

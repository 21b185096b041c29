//! Requests that cannot be answered at once.
//!
//! A reader thread never waits. It runs a request; where memory answers, the reply goes out from there. Otherwise the request,
//! its arguments and its reply leave the thread:
//!
//! - something is not in memory: it is fetched in the background, then the whole operation runs again on the pool; after
//!   [`limits::READ_DEADLINE`] in all, EIO. Changes that miss metadata follow the same rule. What the kernel asks right after an EIO
//!   is the page that its failed readahead wanted, for the same caller: it waits only [`AFTER_GIVING_UP`] more;
//! - the node's disk is behind with staged data: the write waits for room, without a deadline, and runs again;
//! - the backlog is full: the change waits, without a deadline, until the workspace has room, then starts from the beginning;
//! - the backlog is above its soft mark: the change is made and its answer held back.
//!
//! What waits and was not done yet is dropped when its caller is killed (see [`super::killed`]).
//!
//! Order: the kernel sends no second buffered write of an inode before the first is answered (it holds the inode's lock), and
//! written-back pages of one file never overlap in flight, so that a parked write cannot be overtaken by one that follows it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Admission, Cost};
use hiloop_transport::Reply;
use hiloop_types::{Error, ErrorKind, limits};

use super::core::Core;
use crate::fs::{FsError, FsResult, errno};

/// How long after an EIO a miss counts as the same one, and how long it may then wait.
const AFTER_GIVING_UP: Duration = Duration::from_secs(2);

/// The answer of a request: a value, or a positive errno.
pub(super) type Answer<T> = Result<T, i32>;

/// A gauge that counts something while it lives.
struct Counted {
    core: Arc<Core>,
    gauge: fn(&Core) -> &AtomicU64,
}

impl Counted {
    fn new(core: &Arc<Core>, gauge: fn(&Core) -> &AtomicU64) -> Self {
        gauge(core).fetch_add(1, Relaxed);
        Self { core: core.clone(), gauge }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.gauge)(&self.core).fetch_sub(1, Relaxed);
    }
}

/// Since when a request waits for something to be fetched.
pub(super) struct Fetching {
    since: Duration,
    _now: Counted,
}

impl Core {
    /// Runs a request that changes nothing; what it finds goes to `answer`.
    pub(super) fn run<T, R, A>(self: &Arc<Self>, reply: Reply, run: R, answer: A)
    where
        R: FnMut(&Core) -> FsResult<T> + Send + 'static,
        A: FnOnce(&Arc<Core>, Reply, Answer<T>) + Send + 'static,
    {
        self.attempt(reply, run, answer, None);
    }

    /// Runs a change once the backlog admits it.
    pub(super) fn modify<T, R, A>(self: &Arc<Self>, cost: Cost, reply: Reply, run: R, answer: A)
    where
        T: Send + 'static,
        R: FnMut(&Core) -> FsResult<T> + Send + 'static,
        A: FnOnce(&Arc<Core>, Reply, Answer<T>) + Send + 'static,
    {
        if self.read_only {
            return answer(self, reply, self.flatten(Err(FsError::Errno(libc::EROFS))));
        }
        match self.ws.admit(cost) {
            Admission::Go => self.attempt(reply, run, answer, None),
            Admission::Delay(delay) => self.attempt(reply, run, move |c, reply, result| c.answer_later(delay, reply, result, answer), None),
            Admission::Wait => self.wait_for_room(cost, reply, move |c, reply| c.modify(cost, reply, run, answer)),
        }
    }

    /// Calls `again` on the pool when the workspace may have room, or was closed; not at all where the caller is killed first.
    pub(super) fn wait_for_room<N>(self: &Arc<Self>, refused: Cost, reply: Reply, again: N)
    where
        N: FnOnce(&Arc<Core>, Reply) + Send + 'static,
    {
        self.counters.waited.fetch_add(1, Relaxed);
        let parked = self.park_killably(reply, (again, Counted::new(self, |c| &c.counters.waiting_now)));
        let core = self.clone();
        let wake = move || {
            let workers = core.workers.clone();
            workers.submit(Box::new(move || {
                if let Some((reply, (again, waiting))) = parked.take() {
                    drop(waiting);
                    again(&core, reply);
                }
            }));
        };
        self.ws.when_room(refused, Box::new(wake));
    }

    /// Answers a change after `delay`; a failed one at once.
    pub(super) fn answer_later<T, A>(self: &Arc<Self>, delay: Duration, reply: Reply, result: Answer<T>, answer: A)
    where
        T: Send + 'static,
        A: FnOnce(&Arc<Core>, Reply, Answer<T>) + Send + 'static,
    {
        if result.is_err() {
            return answer(self, reply, result);
        }
        self.counters.delayed.fetch_add(1, Relaxed);
        let core = self.clone();
        self.workers.after(delay, Box::new(move || answer(&core, reply, result)));
    }

    fn attempt<T, R, A>(self: &Arc<Self>, reply: Reply, mut run: R, answer: A, fetching: Option<Fetching>)
    where
        R: FnMut(&Core) -> FsResult<T> + Send + 'static,
        A: FnOnce(&Arc<Core>, Reply, Answer<T>) + Send + 'static,
    {
        match guarded(|| run(self)) {
            Err(FsError::Stop(Stop::Miss(miss))) => self.fetch(miss, reply, run, answer, fetching),
            result => {
                let result = self.flatten(result);
                drop(fetching);
                answer(self, reply, result);
            }
        }
    }

    /// Has `miss` fetched, then runs the request again on the pool.
    pub(super) fn fetch<T, R, A>(self: &Arc<Self>, miss: Miss, reply: Reply, run: R, answer: A, fetching: Option<Fetching>)
    where
        R: FnMut(&Core) -> FsResult<T> + Send + 'static,
        A: FnOnce(&Arc<Core>, Reply, Answer<T>) + Send + 'static,
    {
        let now = self.env.monotonic();
        let fetching = fetching.unwrap_or_else(|| {
            self.counters.parked.fetch_add(1, Relaxed);
            Fetching { since: now, _now: Counted::new(self, |c| &c.counters.parked_now) }
        });
        let bounded = !matches!(miss, Miss::Room(_));
        let patience = if bounded { self.patience(now, fetching.since) } else { Duration::MAX };
        if patience.is_zero() {
            let late = Error::unavailable(format!("a request needed more than {:?} of fetches", limits::READ_DEADLINE));
            drop(fetching);
            return answer(self, reply, self.flatten(Err(late.into())));
        }
        let parked = self.park_killably(reply, (run, answer, fetching));
        let core = self.clone();
        self.ws.fetch(
            miss,
            patience,
            Box::new(move |fetched| {
                let workers = core.workers.clone();
                workers.submit(Box::new(move || {
                    let Some((reply, (run, answer, fetching))) = parked.take() else { return };
                    match fetched {
                        // Time that a write waited for the disk does not count.
                        Ok(()) => core.attempt(reply, run, answer, Some(fetching).filter(|_| bounded)),
                        Err(e) => {
                            core.note_gave_up(&e, fetching.since);
                            drop(fetching);
                            answer(&core, reply, core.flatten(Err(e.into())));
                        }
                    }
                }));
            }),
        );
    }

    /// How much longer a request that waits since `since` may.
    fn patience(&self, now: Duration, since: Duration) -> Duration {
        let again = self.gave_up.lock().is_some_and(|at| since >= at && since - at < AFTER_GIVING_UP);
        let most = if again { AFTER_GIVING_UP } else { limits::READ_DEADLINE };
        most.saturating_sub(now.saturating_sub(since))
    }

    /// Notes that a request waited its whole time in vain. One that was cut short for another's sake does not count: each new caller
    /// waits its own.
    fn note_gave_up(&self, error: &Error, since: Duration) {
        let now = self.env.monotonic();
        if error.kind() == ErrorKind::Unavailable && now.saturating_sub(since) >= limits::READ_DEADLINE {
            *self.gave_up.lock() = Some(now);
        }
    }

    /// The errno of a failure, counted, and logged where a person should know.
    pub(super) fn flatten<T>(&self, result: FsResult<T>) -> Answer<T> {
        let code = match result {
            Ok(value) => return Ok(value),
            Err(FsError::Errno(code)) => code,
            Err(FsError::Stop(Stop::Error(e))) => {
                match e.kind() {
                    // Said once by the engine; each request of a fenced workspace fails.
                    ErrorKind::Fenced | ErrorKind::Closed | ErrorKind::Exhausted => tracing::debug!(error = %e, "request failed"),
                    _ => tracing::warn!(workspace = %self.ws.name(), error = %e, "request failed"),
                }
                errno(&e)
            }
            // Whoever calls this has parked misses already.
            Err(FsError::Stop(Stop::Miss(_))) => libc::EIO,
        };
        self.counters.errors.fetch_add(1, Relaxed);
        if code == libc::EIO {
            self.counters.io_errors.fetch_add(1, Relaxed);
        }
        Err(code)
    }
}

/// Runs an operation; a panic is a defect of ours that costs one request an EIO, not the mount its reader.
pub(super) fn guarded<T>(run: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(Error::internal("a file system operation panicked").into()))
}

//! Threads for requests that left their reader: a small pool that runs them again, and a timer that answers slowed writers.
//!
//! Shared by all mounts of a daemon. A job never waits: what is still not in memory is fetched and comes back as a new job, so a
//! few threads are enough and one workspace whose store is away holds up no other. The queue is bounded by the kernel: a job
//! stands for a request that some thread waits for, or for one of `max_background`.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Result, ResultExt};
use parking_lot::{Condvar, Mutex};

/// Something to do on a worker.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Threads of the pool.
const THREADS: usize = 4;

struct Timed {
    at: Duration,
    /// Keeps jobs of one instant in order.
    order: u64,
    job: Job,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    timed: BinaryHeap<Timed>,
    order: u64,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    tick: Condvar,
    env: Env,
}

/// The pool and the timer. Dropping the last handle finishes what is queued and ends the threads.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where the operating system gives no thread.
    pub fn start(env: Env) -> Result<Arc<Self>> {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new(), tick: Condvar::new(), env });
        let workers = Arc::new(Self { shared: shared.clone(), threads: Mutex::default() });
        for i in 0..THREADS {
            workers.spawn(format!("fuse-worker-{i}"), Shared::work)?;
        }
        workers.spawn("fuse-timer".into(), Shared::time)?;
        Ok(workers)
    }

    fn spawn(&self, name: String, run: fn(&Shared)) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || run(&shared)).at(format!("thread {name}"))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Runs `job` on the pool.
    pub(crate) fn submit(&self, job: Job) {
        self.shared.submit(job);
    }

    /// Runs `job` on the pool once `delay` is over.
    pub(crate) fn after(&self, delay: Duration, job: Job) {
        let mut q = self.shared.queue.lock();
        q.order += 1;
        let timed = Timed { at: self.shared.env.monotonic() + delay, order: q.order, job };
        q.timed.push(timed);
        drop(q);
        self.shared.tick.notify_one();
    }
}

impl Shared {
    fn submit(&self, job: Job) {
        self.queue.lock().jobs.push_back(job);
        self.work.notify_one();
    }

    fn work(&self) {
        let mut q = self.queue.lock();
        loop {
            if let Some(job) = q.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut q, job);
            } else if q.closed {
                return;
            } else {
                self.work.wait(&mut q);
            }
        }
    }

    fn time(&self) {
        let mut q = self.queue.lock();
        while !q.closed {
            let now = self.env.monotonic();
            match q.timed.peek().map(|t| t.at.saturating_sub(now)) {
                Some(Duration::ZERO) => {
                    if let Some(t) = q.timed.pop() {
                        q.jobs.push_back(t.job);
                        self.work.notify_one();
                    }
                }
                Some(wait) => {
                    self.tick.wait_for(&mut q, wait);
                }
                None => self.tick.wait(&mut q),
            }
        }
    }

    /// Ends the threads once the queue is empty. Every delay is over in the same step, since a waiting process must get its
    /// answer: left to the timer, the workers could find the queue empty and be gone before it came to hand them out.
    fn close(&self) {
        let mut q = self.queue.lock();
        q.closed = true;
        while let Some(t) = q.timed.pop() {
            q.jobs.push_back(t.job);
        }
        drop(q);
        self.tick.notify_all();
        self.work.notify_all();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.close();
        let me = std::thread::current().id();
        for thread in self.threads.get_mut().drain(..) {
            // The last handle may go with a job: a worker does not wait for itself.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a FUSE worker panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn closing_the_pool_finishes_what_is_queued_and_what_is_delayed() {
        let workers = Workers::start(Env::real()).unwrap();
        let (tx, rx) = mpsc::channel();
        for n in 1..4 {
            let tx = tx.clone();
            workers.after(Duration::from_secs(3600 * n), Box::new(move || tx.send(n).unwrap()));
        }
        let last = tx.clone();
        workers.submit(Box::new(move || last.send(0).unwrap()));
        workers.shared.close();
        assert!(workers.shared.queue.lock().timed.is_empty(), "no delayed job is left to a timer that may come too late");
        drop((tx, workers));
        let mut got: Vec<_> = rx.into_iter().collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3]);
    }

    #[test]
    fn the_timer_takes_the_earliest_first() {
        let timed = |at, order| Timed { at: Duration::from_secs(at), order, job: Box::new(|| {}) };
        let mut heap = BinaryHeap::from([timed(2, 1), timed(1, 3), timed(1, 2)]);
        let order = std::iter::from_fn(|| heap.pop().map(|t| t.order)).collect::<Vec<_>>();
        assert_eq!(order, [2, 3, 1]);
    }
}

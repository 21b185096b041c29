//! Backpressure: how much may be accepted before it is published (design.md 4, backlog).
//!
//! Below the soft mark everything is accepted. Between soft and hard mark a writer is slowed so that it approaches the store's measured
//! pace. At the hard mark it waits: its request is parked, never its thread, and woken by the next publish. What frees space or
//! ends work is exempt.
//!
//! The workspaces of a node have a bound together, too. A part of it is each one's own ([`limits::BACKLOG_SHARES`]): up to that a workspace
//! goes on however much its neighbours have. So whoever waits has something of its own to publish, and is woken by that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiloop_types::limits;
use parking_lot::Mutex;

use super::{Durability, Workspace};

/// Longest delay of one request by the soft mark.
const DELAY_MAX: Duration = Duration::from_millis(250);
/// Throughput assumed until it was measured, bytes per second.
const THROUGHPUT_FIRST: u64 = 32 * limits::MIB;

/// What an operation brings.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Bytes of data.
    pub bytes: u64,
    /// True for what frees space or ends work (unlink, rmdir, truncating down, fsync).
    pub exempt: bool,
}

/// Whether an operation may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Go,
    /// It may after this long.
    Delay(Duration),
    /// It may once [`Workspace::when_room`] called back.
    Wait,
}

/// Unpublished bytes of a node, and their bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeBacklog {
    pub bytes: u64,
    pub limit: u64,
}

impl NodeBacklog {
    /// True where a workspace that would then have `bytes` unpublished must wait for its neighbours.
    fn is_full_for(self, bytes: u64) -> bool {
        self.bytes >= self.limit && bytes > self.limit / limits::BACKLOG_SHARES
    }
}

pub(crate) struct Control {
    bytes: AtomicU64,
    operations: AtomicU64,
    throughput: AtomicU64,
    hard: u64,
    waiting: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Control {
    pub fn new(limit: Option<u64>, durability: Durability) -> Self {
        let default = match durability {
            Durability::Local => limits::BACKLOG_HARD,
            Durability::Replicated => limits::BACKLOG_HARD_REPLICATED,
        };
        Self {
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            throughput: AtomicU64::new(0),
            hard: limit.unwrap_or(default),
            waiting: Mutex::new(Vec::new()),
        }
    }
    pub fn hard(&self) -> u64 {
        self.hard
    }
    pub fn throughput(&self) -> u64 {
        self.throughput.load(Ordering::Relaxed)
    }
    /// Unpublished (bytes, operations).
    pub fn backlog(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.operations.load(Ordering::Relaxed))
    }
    pub fn add(&self, bytes: u64, operations: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.operations.fetch_add(operations, Ordering::Relaxed);
    }
    pub fn published(&self, bytes: u64, operations: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.operations.fetch_sub(operations, Ordering::Relaxed);
        self.wake_all();
    }
    /// Notes that `bytes` took `took` to publish; a moving average over about four publishes.
    pub fn measured(&self, bytes: u64, took: Duration) {
        if bytes < limits::MIB || took.is_zero() {
            return;
        }
        let now = (bytes as f64 / took.as_secs_f64()) as u64;
        let before = self.throughput();
        let next = if before == 0 { now } else { before - before / 4 + now / 4 };
        self.throughput.store(next.max(1), Ordering::Relaxed);
    }
    pub fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for wake in waiting {
            wake();
        }
    }
    fn soft(&self) -> u64 {
        let pace = self.throughput();
        let by_time = if pace == 0 { u64::MAX } else { pace.saturating_mul(limits::BACKLOG_SOFT_TIME.as_secs()) };
        limits::BACKLOG_SOFT.min(self.hard / 4).min(by_time.max(limits::PACK_TARGET.min(self.hard / 4)))
    }

    pub fn admit(&self, cost: Cost, node: NodeBacklog) -> Admission {
        if cost.exempt {
            return Admission::Go;
        }
        let (bytes, operations) = self.backlog();
        let then = bytes + cost.bytes;
        // What has nothing unpublished always goes: nothing would ever wake it.
        let full = then > self.hard || node.is_full_for(then);
        if (bytes > 0 && full) || operations >= limits::BACKLOG_OPERATIONS {
            return Admission::Wait;
        }
        let soft = self.soft();
        if bytes <= soft {
            return Admission::Go;
        }
        // At the soft mark no delay, half way the store's pace, towards the hard mark ever slower.
        let fill = (bytes - soft) as f64 / (self.hard - soft).max(1) as f64;
        let pace = match self.throughput() {
            0 => THROUGHPUT_FIRST,
            t => t,
        };
        let seconds = (cost.bytes + 512) as f64 / pace as f64 * (fill / (1.0 - fill).max(0.01));
        Admission::Delay(Duration::from_secs_f64(seconds.min(DELAY_MAX.as_secs_f64())))
    }
}

impl Workspace {
    /// Whether an operation may run now.
    pub fn admit(&self, cost: Cost) -> Admission {
        if self.0.check_writable().is_err() {
            // It will be refused; it must not wait for room that never comes.
            return Admission::Go;
        }
        let node = &self.0.node;
        self.0.admission.admit(cost, NodeBacklog { bytes: node.backlog.load(Ordering::Relaxed), limit: node.backlog_limit })
    }

    /// Calls `wake` once when the operation that was refused may try again, or the workspace stopped accepting.
    pub fn when_room(&self, refused: Cost, wake: Box<dyn FnOnce() + Send>) {
        self.0.admission.waiting.lock().push(wake);
        // A publish between the refusal and the push would have woken nobody.
        if self.admit(refused) != Admission::Wait {
            self.0.admission.wake_all();
        }
        self.0.replicator.hurry();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: NodeBacklog = NodeBacklog { bytes: 0, limit: limits::BACKLOG_NODE };
    const COST: Cost = Cost { bytes: 128 * limits::KIB, exempt: false };

    #[test]
    fn free_then_slower_then_waiting() {
        let c = Control::new(Some(64 * limits::MIB), Durability::Local);
        assert_eq!(c.admit(COST, IDLE), Admission::Go);
        c.add(16 * limits::MIB, 1);
        assert_eq!(c.admit(COST, IDLE), Admission::Go);
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            c.add(limits::MIB, 1);
            let Admission::Delay(d) = c.admit(COST, IDLE) else { panic!("not slowed at {:?}", c.backlog()) };
            assert!(d >= last && d <= DELAY_MAX, "{d:?} after {last:?}");
            last = d;
        }
        c.add(8 * limits::MIB, 1);
        assert_eq!(c.admit(COST, IDLE), Admission::Wait);
        assert_eq!(c.admit(Cost { exempt: true, ..COST }, IDLE), Admission::Go);
        c.published(60 * limits::MIB, 2);
        assert_eq!(c.admit(COST, IDLE), Admission::Go);
    }

    #[test]
    fn each_keeps_its_share_of_a_full_node() {
        let c = Control::new(None, Durability::Local);
        let full = NodeBacklog { bytes: 20 * limits::GIB, limit: limits::BACKLOG_NODE };
        let huge = Cost { bytes: 100 * limits::MIB, exempt: false };
        assert_eq!(c.admit(huge, full), Admission::Go, "what has nothing to publish would never be woken");
        c.add(64 * limits::MIB - COST.bytes, 1);
        assert_eq!(c.admit(COST, full), Admission::Go, "its own share");
        c.add(COST.bytes, 1);
        assert_eq!(c.admit(COST, full), Admission::Wait);
        assert_eq!(c.admit(COST, NodeBacklog { bytes: limits::BACKLOG_NODE - 1, ..full }), Admission::Go);
        c.published(limits::MIB, 1);
        assert_eq!(c.admit(COST, full), Admission::Go);
    }

    #[test]
    fn operations_are_bounded_too() {
        let c = Control::new(None, Durability::Local);
        c.add(0, limits::BACKLOG_OPERATIONS);
        assert_eq!(c.admit(COST, IDLE), Admission::Wait);
    }
}

//! Requests by opcode and what became of them. Counters only: the path of a request takes no lock for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hiloop_transport::abi::Opcode;
use serde::Serialize;

/// Above the number of every request.
const KINDS: usize = 64;

/// Requests by kind.
#[derive(Debug)]
pub struct Requests([AtomicU64; KINDS]);

impl Default for Requests {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Requests {
    /// Counts a request; the newer forms of one under the name of the first.
    pub fn count(&self, op: Opcode) {
        let op = match op {
            Opcode::RENAME2 => Opcode::RENAME,
            Opcode::COPY_FILE_RANGE_64 => Opcode::COPY_FILE_RANGE,
            other => other,
        };
        // A kind that nobody knows is counted where no request has its number.
        let place = usize::try_from(op.0).ok().filter(|n| *n < KINDS).unwrap_or(0);
        self.0[place].fetch_add(1, Relaxed);
    }

    /// Those that came at all, by the protocol's names in lower case.
    pub fn shown(&self) -> BTreeMap<&'static str, u64> {
        let mut shown = BTreeMap::new();
        for (op, n) in self.0.iter().enumerate().map(|(op, n)| (op as u32, n.load(Relaxed))).filter(|(_, n)| *n > 0) {
            *shown.entry(Opcode(op).name()).or_default() += n;
        }
        shown
    }
}

/// Live counters of one mount.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Requests,
    pub(crate) errors: AtomicU64,
    pub(crate) io_errors: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) parked_now: AtomicU64,
    pub(crate) waiting_now: AtomicU64,
    pub(crate) interrupted: AtomicU64,
}

impl Counters {
    pub(crate) fn snapshot(&self, inodes: usize, orphans: usize) -> FuseStats {
        let get = |c: &AtomicU64| c.load(Relaxed);
        FuseStats {
            requests: self.requests.shown(),
            errors: get(&self.errors),
            io_errors: get(&self.io_errors),
            parked: get(&self.parked),
            parked_now: get(&self.parked_now),
            waited: get(&self.waited),
            waiting_now: get(&self.waiting_now),
            delayed: get(&self.delayed),
            interrupted: get(&self.interrupted),
            inodes: inodes as u64,
            orphans: orphans as u64,
        }
    }
}

/// What a mount has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FuseStats {
    /// Requests by opcode, those that came at all.
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests answered with an errno (a name that does not exist counts as an answer).
    pub errors: u64,
    /// Of these, EIO.
    pub io_errors: u64,
    /// Times a request left the reader thread to have something fetched.
    pub parked: u64,
    /// Requests that wait for a fetch now.
    pub parked_now: u64,
    /// Times a change waited for room in the backlog.
    pub waited: u64,
    /// Changes that wait for room now.
    pub waiting_now: u64,
    /// Changes whose answer was held back to slow the writer.
    pub delayed: u64,
    /// Waiting requests whose caller was killed: answered EINTR and not done.
    pub interrupted: u64,
    /// Inodes that the kernel holds.
    pub inodes: u64,
    /// Unlinked inodes that are still open.
    pub orphans: u64,
}

impl FuseStats {
    /// All requests.
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_under_the_names_of_the_protocol() {
        let c = Counters::default();
        for op in [Opcode::LOOKUP, Opcode::COPY_FILE_RANGE, Opcode::COPY_FILE_RANGE_64, Opcode(1 << 20)] {
            c.requests.count(op);
        }
        let s = c.snapshot(3, 1);
        assert_eq!(s.requests.into_iter().collect::<Vec<_>>(), [("copy_file_range", 2), ("lookup", 1), ("unknown", 1)]);
        assert_eq!((s.inodes, s.orphans), (3, 1));
    }

    #[test]
    fn no_known_request_is_counted_as_unknown() {
        assert!((Opcode::COPY_FILE_RANGE_64.0 as usize) < KINDS);
        assert_eq!(Opcode(0).name(), "unknown");
    }
}

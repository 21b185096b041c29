//! What was done: the counters that prove that a fault happened, and what a benchmark reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::Method;
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use crate::plan::{Fault, Plan};

/// What the control endpoint shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The plan in force.
    pub plan: Plan,
    /// Its rules' progress, in their order.
    pub rules: Vec<RuleState>,
    /// Counted since the start, whatever the plan was.
    pub counters: Counters,
}

/// How far a rule has got under the plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleState {
    /// Its fault.
    pub fault: Fault,
    /// Requests that fitted.
    pub fitted: u64,
    /// How often it fired.
    pub fired: u64,
}

/// Counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Faults that happened, by kind; every kind is there.
    pub faults: BTreeMap<Fault, u64>,
    /// Times that an outage began.
    pub outages: u64,
    /// Open connections that outages reset.
    pub outage_resets: u64,
    /// Requests that a profile answered 503.
    pub refusals: u64,
    /// Requests and bytes of bodies by method.
    pub methods: BTreeMap<String, MethodCount>,
    /// Connections taken.
    pub connections: u64,
    /// Requests that the server behind did not answer (502).
    pub upstream_failures: u64,
    /// Own user and system time, microseconds.
    pub cpu_us: u64,
}

/// Requests of one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodCount {
    /// Requests, answered or not.
    pub requests: u64,
    /// Bytes of request bodies that were forwarded.
    pub bytes_up: u64,
    /// Bytes of answers' bodies that were passed on.
    pub bytes_down: u64,
}

const METHODS: [Method; 5] = [Method::GET, Method::PUT, Method::HEAD, Method::DELETE, Method::POST];

/// The live counters.
#[derive(Default)]
pub(crate) struct Stats {
    faults: [AtomicU64; Fault::ALL.len()],
    /// The last one is for all other methods.
    methods: [[AtomicU64; 3]; METHODS.len() + 1],
    pub(crate) outages: AtomicU64,
    pub(crate) outage_resets: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) upstream_failures: AtomicU64,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

impl Stats {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn fault(&self, fault: Fault) {
        let at = Fault::ALL.iter().position(|f| *f == fault).unwrap_or_default();
        Self::add(&self.faults[at]);
    }
    fn of(&self, method: &Method) -> &[AtomicU64; 3] {
        &self.methods[METHODS.iter().position(|m| m == method).unwrap_or(METHODS.len())]
    }
    pub(crate) fn request(&self, method: &Method) {
        Self::add(&self.of(method)[0]);
    }
    pub(crate) fn bytes(&self, method: &Method, way: Way, bytes: u64) {
        let at = if way == Way::Up { 1 } else { 2 };
        self.of(method)[at].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let names = METHODS.iter().map(Method::as_str).chain(["other"]);
        Counters {
            faults: Fault::ALL.into_iter().zip(self.faults.iter().map(read)).collect(),
            outages: read(&self.outages),
            outage_resets: read(&self.outage_resets),
            refusals: read(&self.refusals),
            methods: names
                .zip(&self.methods)
                .map(|(name, [n, up, down])| {
                    (name.to_owned(), MethodCount { requests: read(n), bytes_up: read(up), bytes_down: read(down) })
                })
                .collect(),
            connections: read(&self.connections),
            upstream_failures: read(&self.upstream_failures),
            cpu_us: cpu_us(),
        }
    }
}

/// User and system time of this process.
fn cpu_us() -> u64 {
    // The call only fails for a wrong argument.
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |u| {
        let us = |t: nix::sys::time::TimeVal| t.tv_sec() as u64 * 1_000_000 + t.tv_usec() as u64;
        us(u.user_time()) + us(u.system_time())
    })
}

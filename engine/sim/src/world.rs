//! The real engine in a simulated world (issue 3, Proof): nodes with disks that lose what was not flushed, one store that is slow and lossy,
//! clients that know what they wrote, and a hand that kills, cuts power, separates, rots and moves clocks.
//!
//! # What is real
//!
//! Everything above the seams: engine, journal, cache, store rim, manifest, collection. Simulated are time, chance and the order of things
//! ([`crate::executor`]), the store's objects and the way there ([`store`]), disk, index and cache files ([`ground`]). The journal takes the
//! steps of its two threads from a task (`JournalOptions::background` off). `publish-base`, which computes on threads of its own, is left out.
//!
//! # What is checked
//!
//! Every answer is held against [`model`]: reads equal what was written, an opening after a kill has everything, after a power cut a prefix
//! that holds what was answered as synced, a take-over and a fork something published, a snapshot its cut, a recovered tail what was
//! accepted. Heads never go back ([`store`]). At the end the weather clears: everything is published, tails are recovered, collectors run,
//! `fsck --deep` is clean, and every workspace and snapshot is read on a node that has nothing.
//!
//! Each seed also draws its own odds for all of this, so that some worlds mostly fork and collect and others mostly lose power.
//!
//! # What a seed proves
//!
//! A seed is one world; running it twice gives the same digest of everything that happened, or something outside the seams had a say.
//! [`planted`] takes guards away below the engine, one at a time, and the tests demand that each absence is noticed.

mod chaos;
mod client;
mod closing;
pub mod ground;
pub mod model;
mod nodes;
mod plan;
pub mod planted;
#[cfg(test)]
mod reference;
pub mod report;
pub mod store;
pub mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hiloop_env::Env;
use model::Model;
use nodes::Node;
use parking_lot::Mutex;
pub use plan::Plan;
use planted::Lie;
use report::Report;
use store::SimStore;

use crate::executor::{Executor, Stuck, WallOffset};

/// Wall time at which worlds start, seconds since 1970.
const EPOCH: i64 = 1_800_000_000;

/// How a world went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first broken promise.
    pub violation: Option<String>,
    /// Digest of everything that happened.
    pub digest: u64,
    /// Steps of the schedule.
    pub steps: u64,
    /// What it came across, and how often.
    pub counts: BTreeMap<&'static str, u64>,
    /// What happened, where that was wanted.
    pub trace: Vec<String>,
}

pub(crate) struct World {
    exec: Executor,
    /// The world around the nodes.
    env: Env,
    plan: Plan,
    seed: u64,
    report: Arc<Report>,
    store: Arc<SimStore>,
    model: Mutex<Model>,
    nodes: Vec<Mutex<Node>>,
    names: AtomicU64,
    over: AtomicBool,
}

impl World {
    fn new(seed: u64, plan: Plan, traced: bool) -> Arc<Self> {
        let exec = Executor::new(seed, traced);
        let report = Arc::new(Report::new(exec.clone()));
        let env = exec.env(&exec.group(), seed ^ 0xa5a5, Arc::new(WallOffset::new(EPOCH)));
        let store = SimStore::new(exec.clone(), env.clone(), report.clone());
        let nodes = (0..plan.nodes).map(|i| Mutex::new(Node::new(&exec, seed, i, plan.lie))).collect();
        Arc::new(Self {
            exec,
            env,
            plan,
            seed,
            report,
            store,
            model: Mutex::default(),
            nodes,
            names: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }
    /// Holds a promise against what was found.
    fn check(&self, held: Result<(), String>) {
        if let Err(broken) = held {
            self.report.violation(broken);
        }
    }
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.report.is_broken()
    }
    /// A name that was never used.
    fn fresh(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.names.fetch_add(1, Ordering::SeqCst))
    }
    /// One of `all`.
    fn pick<T: Clone>(&self, all: &[T]) -> Option<T> {
        all.get(self.exec.below(all.len() as u64) as usize).cloned()
    }

    async fn live(self: Arc<Self>) {
        for i in 0..self.plan.nodes {
            self.start(i);
        }
        let clients: Vec<_> = (0..self.plan.clients).map(|_| self.env.spawn(client::live(self.clone()))).collect();
        let chaos = self.env.spawn(chaos::live(self.clone()));
        for c in clients {
            // A client ends when its steps are done; its node may die, it does not.
            let _ended = c.await;
        }
        self.over.store(true, Ordering::SeqCst);
        let _ended = chaos.await;
        if !self.report.is_broken() {
            closing::settle(&self).await;
        }
    }
}

/// Lives one world.
pub fn run(seed: u64, plan: Plan, traced: bool) -> Outcome {
    let world = World::new(seed, plan, traced);
    let end = world.exec.run(world.clone().live());
    let violation = match end {
        Ok(()) => world.report.first(),
        Err(Stuck::Panicked(text)) => Some(world.report.first().unwrap_or(format!("the engine panicked: {text}"))),
        Err(stuck) => Some(world.report.first().unwrap_or(format!("the world came to no end: {stuck:?}"))),
    };
    for i in 0..world.plan.nodes {
        world.stop(i);
    }
    Outcome { violation, digest: world.exec.digest(), steps: world.exec.steps(), counts: world.report.counts(), trace: world.exec.trace() }
}

/// The world of a seed with all guards in force.
pub fn of_seed(seed: u64, traced: bool) -> Outcome {
    run(seed, Plan::of_seed(seed), traced)
}

/// The world of a seed without one guard.
pub fn without(lie: Lie, seed: u64, traced: bool) -> Outcome {
    run(seed, Plan::without(lie, seed), traced)
}

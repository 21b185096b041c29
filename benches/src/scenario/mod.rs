//! Scenarios: figures that are no step on several targets.

mod engine;
mod floor;
mod fork;
mod many;
mod shaped;
mod snapshot;

use std::path::Path;

use hiloop_env::Env;
use hiloop_types::{Error, Result};

use crate::bench::Programs;
use crate::deadline::Deadline;
use crate::figure::Figure;
use crate::run::Tool;
use crate::store::{Shape, Store};

pub use floor::VALID as FLOOR_VALID;

/// What a scenario works with.
pub struct Context<'a> {
    /// An empty directory on the disk.
    pub dir: &'a Path,
    /// What is run.
    pub programs: &'a Programs,
    /// Clock.
    pub env: &'a Env,
    /// Its time box.
    pub limit: Deadline,
    /// Says what is going on.
    pub say: &'a mut dyn FnMut(&str),
}

impl Context<'_> {
    /// Says what comes next.
    ///
    /// # Errors
    /// `Unavailable` where the time box is over.
    fn phase(&mut self, what: &str) -> Result<()> {
        (self.say)(what);
        self.limit.check()
    }
    /// A store in a directory.
    fn plain(&self) -> Result<Store> {
        Store::directory(&self.dir.join("store"))
    }
    /// A real S3 server at fixed latency and bandwidth.
    fn shaped(&self) -> Result<Store> {
        let s3 = self.programs.s3.as_ref().ok_or_else(|| Error::not_found("no S3 server and shaper were given"))?;
        Store::shaped(&self.dir.join("store"), s3, Shape::Steady)
    }
    /// The binary under test over a store.
    fn tool(&self, store: &Store) -> Tool {
        Tool { program: self.programs.ours.clone(), store: store.url.clone(), dir: self.dir.to_owned(), vars: store.vars.clone() }
    }
}

/// Publishes a directory as a base and removes it.
fn publish(tool: &Tool, base: &str, tree: &Path) -> Result<()> {
    tool.json(&["publish-base".as_ref(), "--build-id".as_ref(), base.as_ref(), tree.as_os_str()])?;
    std::fs::remove_dir_all(tree).map_err(|e| Error::io(tree.display(), &e))
}

/// The value below which `part` of the samples lie; 0 of none.
fn percentile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).ceil() as usize).copied().unwrap_or(0.0)
}

/// Runs the scenario of that name.
///
/// # Errors
/// Where a step fails or content is wrong; a missed target is none.
pub fn run(name: &str, context: &mut Context<'_>) -> Result<Vec<Figure>> {
    match name {
        "engine" => engine::run(context),
        "floor" => floor::run(context),
        "fork" => fork::run(context),
        "many" => many::run(context),
        "shaped-cold" => shaped::cold(context),
        "shaped-replication" => shaped::replication(context),
        "shaped-backlog" => shaped::backlog(context),
        "snapshot" => snapshot::run(context),
        other => Err(Error::invalid(format!("no scenario is called {other}"))),
    }
}

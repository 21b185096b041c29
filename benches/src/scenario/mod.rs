//! Scenarios: figures that are no step on several targets.

mod engine;
mod floor;

use std::path::Path;

use hiloop_env::Env;
use hiloop_types::{Error, Result};

use crate::bench::Programs;
use crate::figure::Figure;

pub use floor::VALID as FLOOR_VALID;

/// What a scenario works with.
pub struct Context<'a> {
    /// An empty directory on the disk.
    pub dir: &'a Path,
    /// What is run.
    pub programs: &'a Programs,
    /// Clock.
    pub env: &'a Env,
    /// Says what is going on.
    pub say: &'a mut dyn FnMut(&str),
}

/// Runs the scenario of that name.
///
/// # Errors
/// Where a step fails or content is wrong; a missed target is none.
pub fn run(name: &str, context: &mut Context<'_>) -> Result<Vec<Figure>> {
    match name {
        "engine" => engine::run(context),
        "floor" => floor::run(context),
        other => Err(Error::invalid(format!("no scenario is called {other}"))),
    }
}

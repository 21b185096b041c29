//! Runs rows of the matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Error, Result};

use crate::deadline::{Deadline, Watchdog};
use crate::figure::Verdict;
use crate::goals;
use crate::machine::Machine;
use crate::matrix::{Matrix, Row, Suite};
use crate::report::Report;
use crate::rounds::{Rounds, measure};
use crate::scenario::{self, Context};
use crate::scratch::Scratch;
use crate::store::{S3Programs, Shape, Store};
use crate::target::{Bindfs, Disk, Durability, Floor, Juicefs, Ours, Peers, Rclone, Seaweedfs, Target, version};
use crate::work::Material;

/// What is run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `sandbox-workspace`.
    pub ours: PathBuf,
    /// The peers' programs, where they are installed.
    pub peers: Option<Peers>,
    /// S3 server and shaper, where they are installed.
    pub s3: Option<S3Programs>,
}

/// What these rows need: targets by name, and `s3` for a shaped store.
///
/// # Errors
/// NotFound for a name that the matrix does not have.
pub fn needs(names: &[String]) -> Result<BTreeSet<String>> {
    let matrix = Matrix::read()?;
    let mut needs = BTreeSet::new();
    for name in names {
        for row in matrix.rows(name)? {
            match row {
                Row::Suite(suite) => needs.extend(suite.targets),
                Row::Scenario(scenario) => needs.extend(scenario.needs),
            }
        }
    }
    if needs.iter().any(|n| n.starts_with("ours-s3")) {
        needs.insert("s3".to_owned());
    }
    Ok(needs)
}

/// Runs these commands or rows and returns what they found. What fails stands in the report.
///
/// # Errors
/// Invalid for a name that the matrix does not have; where nothing can be run at all.
pub fn bench(names: &[String], programs: &Programs, scratch: &Path, env: &Env) -> Result<Report> {
    let matrix = Matrix::read()?;
    let mut rows = Vec::new();
    for name in names {
        rows.extend(matrix.rows(name)?);
    }
    let scratch = Scratch::new(scratch.join(format!("hiloop-bench.{}", std::process::id())))?;
    let mut report = Report::new(format!("./dev bench {}", names.join(" ")), Machine::here(scratch.path(), env));
    let watchdog = Watchdog::start()?;
    let start = env.monotonic();
    let since = |from: Duration| env.monotonic().saturating_sub(from).as_secs_f64();
    let mut say = |what: &str| {
        // Where standard error is gone the report has to do.
        let _ = writeln!(std::io::stderr(), "bench [{:6.1} s] {what}", since(start));
    };
    for row in &rows {
        let began = env.monotonic();
        let name = match row {
            Row::Scenario(s) => &s.name,
            Row::Suite(s) => &s.name,
        };
        let dir = Scratch::new(scratch.path().join(name))?;
        let ran = match row {
            Row::Scenario(s) => {
                let limit = Deadline::new(env, Duration::from_secs(s.minutes * 60));
                let mut context = Context { dir: dir.path(), programs, env, limit, say: &mut say };
                scenario::run(&s.name, &mut context).map(|figures| report.figures.extend(figures))
            }
            Row::Suite(s) => suite(&matrix, s, dir.path(), programs, &watchdog, env, &mut say, &mut report),
        };
        if let Err(e) = ran {
            say(&format!("{name} failed: {e}"));
            report.failed.push(format!("{name}: {e}"));
        }
        drop(dir);
        report.budget.push((name.clone(), since(began)));
    }
    report.figures.extend(goals::figures(&report.cells));
    judge_floor(&mut report);
    report.seconds = since(start);
    Ok(report)
}

/// Ratios to a floor that is not the one that targets were set by say nothing.
fn judge_floor(report: &mut Report) {
    let valid = report.figures.iter().find(|f| f.figure == scenario::FLOOR_VALID).map(|f| f.verdict);
    if valid == Some(Verdict::Missed) {
        for figure in report.figures.iter_mut().filter(|f| f.target.starts_with("F ")) {
            figure.verdict = Verdict::Void;
            figure.measured.push_str(" (the floor is too slow today)");
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "the parts of one run")]
fn suite(
    matrix: &Matrix,
    suite: &Suite,
    dir: &Path,
    programs: &Programs,
    watchdog: &Watchdog,
    env: &Env,
    say: &mut dyn FnMut(&str),
    report: &mut Report,
) -> Result<()> {
    let until = Deadline::new(env, Duration::from_secs(suite.minutes * 60));
    let steps = suite.steps()?;
    let material = Material::make(dir, matrix.size(suite)?, &steps)?;
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    for name in &suite.targets {
        match target(name, dir, programs, env) {
            Ok(target) => targets.push(target),
            Err(e) if name == "ext4" => return Err(e),
            // Ours must start wherever it can; others may be missing on a machine.
            Err(e) => {
                say(&format!("{}: no {name}: {e}", suite.name));
                let list = if name == "ours" || name == "floor" { &mut report.failed } else { &mut report.notes };
                list.push(format!("{}: {name} could not be started, its cells are void: {e}", suite.name));
            }
        }
        if let (Some(peers), Some(program)) = (&programs.peers, program_of(name))
            && !report.versions.iter().any(|(p, _)| p == program)
            && let Ok(version) = version(peers, program)
        {
            report.versions.push((program.to_owned(), version));
        }
    }
    let plan = Rounds {
        suite: &suite.name,
        steps: &steps,
        rounds: suite.rounds,
        repeats: suite.repeats,
        mode: suite.mode,
        limit: Duration::from_secs(suite.leg_seconds),
        until,
    };
    let cells = measure(&plan, &mut targets, &material, watchdog, env, say)?;
    report.cells.extend(cells);
    let mut ends: BTreeMap<String, Error> = BTreeMap::new();
    while let Some(target) = targets.pop() {
        let id = target.id().to_owned();
        if let Err(e) = target.end() {
            ends.insert(id, e);
        }
    }
    report.notes.extend(ends.iter().map(|(id, e)| format!("{}: {id} did not end well: {e}", suite.name)));
    Ok(())
}

fn program_of(target: &str) -> Option<&'static str> {
    match target {
        "juicefs" | "juicefs-writeback" => Some("juicefs"),
        "seaweedfs" => Some("weed"),
        "rclone" => Some("rclone"),
        _ => None,
    }
}

fn target(name: &str, dir: &Path, programs: &Programs, env: &Env) -> Result<Box<dyn Target>> {
    let peers = || programs.peers.as_ref().ok_or_else(|| Error::not_found("no --peers directory was given"));
    let ours = |store: Store, durability| Ours::new(name, &programs.ours, dir, store, durability, env);
    let plain = || Store::directory(&dir.join(format!("{name}.store")));
    let shaped = |shape| {
        let s3 = programs.s3.as_ref().ok_or_else(|| Error::not_found("no S3 server and shaper were given"))?;
        Store::shaped(&dir.join(format!("{name}.store")), s3, shape)
    };
    Ok(match name {
        "ext4" => Box::new(Disk::new(dir)?),
        "floor" => Box::new(Floor::new(dir)?),
        "ours" => Box::new(ours(plain()?, Durability::Local)?),
        "ours-replicated" => Box::new(ours(plain()?, Durability::Replicated)?),
        "ours-s3" => Box::new(ours(shaped(Shape::Steady)?, Durability::Local)?),
        "ours-s3-jitter" => Box::new(ours(shaped(Shape::Jitter)?, Durability::Local)?),
        "ours-s3-undelayed" => Box::new(ours(shaped(Shape::Undelayed)?, Durability::Local)?),
        "bindfs" => Box::new(Bindfs::new(dir)?),
        "juicefs" => Box::new(Juicefs::new(peers()?, dir, false)?),
        "juicefs-writeback" => Box::new(Juicefs::new(peers()?, dir, true)?),
        "seaweedfs" => Box::new(Seaweedfs::new(peers()?, dir)?),
        "rclone" => Box::new(Rclone::new(peers()?, dir)?),
        other => return Err(Error::invalid(format!("no target is called {other}"))),
    })
}

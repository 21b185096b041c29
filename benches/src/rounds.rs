//! The rounds: every step on every target, interleaved so that a drift of the machine falls on all of them.
//!
//! In each round a step runs on the disk first and last (A/A: their ratio says how steady the machine was) and on all others between, in
//! an order that turns round by round (ABBA). A ratio is taken within its round, over the geometric mean of the two runs of the disk.
//! Before each leg the disk is synced, after each the target is drained: nobody pays for what another left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Error, Result};

use crate::cell::{Cell, Counts, Leg, Outcome};
use crate::deadline::{Deadline, Watchdog};
use crate::process::{Mode, cpu_of, device_flushes, own_cpu, rss_of};
use crate::sample::Spread;
use crate::statistics::STEADY;
use crate::target::{Target, more};
use crate::tree::make_directory;
use crate::work::{Material, Step};

/// Part of a core that a store's server and shaper may use: beyond, they are what is measured.
const STORE_LOAD: f64 = 0.5;
/// Seconds below which that part is noise.
const SHORT: f64 = 0.5;

/// What to do.
pub struct Rounds<'a> {
    /// Row of the matrix.
    pub suite: &'a str,
    /// Steps that are wanted; what they need runs too and is not reported.
    pub steps: &'a [Step],
    /// Rounds.
    pub rounds: u32,
    /// Times that a step with an unsteady disk is done again.
    pub repeats: u32,
    /// Where processes run.
    pub mode: Mode,
    /// Time box of a leg.
    pub limit: Duration,
    /// The end of the whole suite: a round that has not begun then is left out.
    pub until: Deadline,
}

struct Measured {
    legs: BTreeMap<(Step, usize), Vec<Leg>>,
    /// The disk's second runs.
    again: BTreeMap<Step, Vec<f64>>,
    outcome: BTreeMap<(Step, usize), Outcome>,
}

/// Runs them; the first target is the disk. `say` is told what is going on.
///
/// # Errors
/// Where the disk itself fails, or nothing at all could be measured; what happens to other targets stands in their cells.
pub fn measure(
    plan: &Rounds<'_>,
    targets: &mut [Box<dyn Target>],
    material: &Material,
    watchdog: &Watchdog,
    env: &Env,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Cell>> {
    let pids: Vec<i32> = targets.iter().flat_map(|t| t.pids()).collect();
    plan.mode.bind(&pids)?;
    let mut runner = Runner { plan, material, watchdog, env };
    let mut wanted: BTreeSet<Step> = plan.steps.iter().copied().collect();
    let mut cells: BTreeMap<(Step, usize), Cell> = BTreeMap::new();
    for attempt in 0..=plan.repeats {
        let mut measured = Measured { legs: BTreeMap::new(), again: BTreeMap::new(), outcome: BTreeMap::new() };
        let steps = Step::with_needs(&wanted.iter().copied().collect::<Vec<_>>());
        for round in 0..plan.rounds {
            if plan.until.passed() && round > 0 {
                say(&format!("{}: the time is over after {round} rounds", plan.suite));
                break;
            }
            say(&format!("{}, {}: round {} of {}", plan.suite, plan.mode.name(), round + 1, plan.rounds));
            runner.round(&format!("{}-{attempt}-{round}", plan.mode.name()), round, &steps, targets, &mut measured)?;
        }
        for ((step, index), cell) in runner.cells(&wanted, targets, measured) {
            cells.insert((step, index), cell);
        }
        wanted.retain(|step| cells.get(&(*step, 0)).is_some_and(|c| !STEADY.contains(&c.steady)));
        if wanted.is_empty() || plan.until.passed() {
            break;
        }
        if attempt < plan.repeats {
            let names: Vec<&str> = wanted.iter().map(|s| s.id()).collect();
            say(&format!("{}: the disk was not steady, again: {}", plan.suite, names.join(", ")));
        }
    }
    Mode::Free.bind(&pids)?;
    Ok(cells.into_values().collect())
}

struct Runner<'a> {
    plan: &'a Rounds<'a>,
    material: &'a Material,
    watchdog: &'a Watchdog,
    env: &'a Env,
}

impl Runner<'_> {
    fn round(&mut self, name: &str, round: u32, steps: &[Step], targets: &mut [Box<dyn Target>], measured: &mut Measured) -> Result<()> {
        // The disk has two directories: one for each of its runs.
        let mut places: Vec<(usize, PathBuf)> = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            places.push((index, target.root().join(name)));
        }
        let second = targets[0].root().join(format!("{name}-again"));
        for dir in places.iter().map(|(_, dir)| dir).chain([&second]) {
            if let Err(e) = make_directory(dir)
                && dir.starts_with(targets[0].root())
            {
                return Err(e);
            }
        }
        for step in steps {
            if self.plan.until.passed() {
                for index in (0..targets.len()).filter(|index| !measured.legs.contains_key(&(*step, *index))) {
                    measured.outcome.entry((*step, index)).or_insert_with(|| Outcome::Void("the time of the suite was over".to_owned()));
                }
                continue;
            }
            let (first, others) = places.split_at(1);
            let mut order: Vec<(usize, &PathBuf, bool)> = others.iter().map(|(i, dir)| (*i, dir, false)).collect();
            if !round.is_multiple_of(2) {
                order.reverse();
            }
            let order = [(0, &first[0].1, false)].into_iter().chain(order).chain([(0, &second, true)]);
            for (index, dir, again) in order {
                if measured.outcome.contains_key(&(*step, index)) {
                    continue;
                }
                if let Some(need) = step.needs().iter().find(|need| measured.outcome.contains_key(&(**need, index))) {
                    measured.outcome.insert((*step, index), Outcome::Void(format!("`{}` did not work", need.name())));
                    continue;
                }
                let deadline = Deadline::new(self.env, self.plan.limit);
                // Everybody's dirty pages, so that a leg waits for its own only.
                targets[0].drain()?;
                let target = &mut targets[index];
                match self.leg(*step, dir, round, target.as_mut(), &deadline) {
                    Ok(leg) if again => measured.again.entry(*step).or_default().push(leg.seconds),
                    Ok(leg) => measured.legs.entry((*step, index)).or_default().push(leg),
                    Err(e) if index == 0 => return Err(e),
                    Err(_) if deadline.passed() => {
                        measured.outcome.insert((*step, index), Outcome::TimedOut(self.plan.limit.as_secs()));
                    }
                    Err(e) => {
                        measured.outcome.insert((*step, index), Outcome::Failed(e.to_string()));
                    }
                }
            }
        }
        self.watchdog.stop();
        for (index, dir) in &places {
            self.clear(dir, targets[*index].root().to_owned());
        }
        self.clear(&second, targets[0].root().to_owned());
        targets.iter_mut().skip(1).try_for_each(|t| t.drain().map(drop))
    }

    /// A target that cannot clear up goes on with the next round's new directory.
    fn clear(&self, dir: &Path, mount: PathBuf) {
        self.watchdog.watch(&Deadline::new(self.env, self.plan.limit), mount);
        let _ = std::fs::remove_dir_all(dir);
        self.watchdog.stop();
    }

    fn leg(&self, step: Step, dir: &Path, round: u32, target: &mut dyn Target, deadline: &Deadline) -> Result<Leg> {
        target.check()?;
        self.watchdog.watch(deadline, target.root().to_owned());
        self.material.prepare(step, dir)?;
        let (fuse, store) = (target.requests()?, target.store()?);
        let pids = target.pids();
        let store_cpu = target.store_cpu()?;
        let (daemon, client, flushes) = (cpu_of(&pids)?, own_cpu()?, device_flushes(self.material.disk())?);
        let start = self.env.monotonic();
        let done = self.material.go(step, dir, deadline);
        let seconds = self.env.monotonic().saturating_sub(start).as_secs_f64();
        let flushed = device_flushes(self.material.disk())?;
        done?;
        let counts = Counts {
            fuse: target.requests()?.zip(fuse).map(|(after, before)| more(&after, &before)),
            store: None,
            flushes: flushed.zip(flushes).map(|(after, before)| after.saturating_sub(before)),
            daemon_cpu: cpu_of(&pids)? - daemon,
            store_load: 0.0,
            client_cpu: own_cpu()? - client,
            rss: rss_of(&pids)?,
        };
        if deadline.passed() {
            return Err(Error::unavailable("the time box is over"));
        }
        let drain = target.drain()?;
        let store = target.store()?.zip(store).map(|(after, before)| after.since(&before));
        let store_load = (target.store_cpu()? - store_cpu) / (seconds + drain.unwrap_or(0.0)).max(1e-9);
        self.material.check(step, dir, target.keeps_times())?;
        target.check()?;
        self.watchdog.stop();
        Ok(Leg { round, seconds, drain, counts: Counts { store, store_load, ..counts } })
    }

    fn cells(&self, wanted: &BTreeSet<Step>, targets: &[Box<dyn Target>], measured: Measured) -> Vec<((Step, usize), Cell)> {
        let Measured { legs, again, outcome } = measured;
        let seconds = |step: Step, index: usize, round: u32| -> Option<f64> {
            legs.get(&(step, index))?.iter().find(|l| l.round == round).map(|l| l.seconds)
        };
        let floor = targets.iter().position(|t| t.id() == "floor");
        let mut cells = Vec::new();
        for step in wanted {
            let second = again.get(step).map(Vec::as_slice).unwrap_or_default();
            // One of both runs is missing only where the disk failed, and then nothing is reported.
            let disk = |round: u32| Some((seconds(*step, 0, round)? * second.get(round as usize)?).sqrt());
            let steady: Vec<f64> = second.iter().zip(0..).filter_map(|(b, round)| Some(b / seconds(*step, 0, round)?)).collect();
            let steady = Spread::of(&steady).median;
            for (index, target) in targets.iter().enumerate() {
                let mine = legs.get(&(*step, index)).cloned().unwrap_or_default();
                let over = |under: &dyn Fn(u32) -> Option<f64>| -> Vec<f64> {
                    mine.iter().filter_map(|l| under(l.round).map(|u| l.seconds / u.max(1e-9))).collect()
                };
                let mut end = outcome.get(&(*step, index)).cloned().unwrap_or_default();
                let needed = step.flushes_needed(&self.material.size);
                let few = mine.iter().filter_map(|l| l.counts.flushes).find(|n| *n < needed);
                if let (Outcome::Measured, Some(few), true) = (&end, few, target.id() != "floor") {
                    end =
                        Outcome::Void(format!("{few} device flushes where {needed} are needed: what it acknowledged was not on the disk"));
                }
                let load =
                    mine.iter().filter(|l| l.seconds + l.drain.unwrap_or(0.0) >= SHORT).map(|l| l.counts.store_load).fold(0.0, f64::max);
                if let (Outcome::Measured, true) = (&end, load > STORE_LOAD) {
                    end = Outcome::Void(format!("the store's server and shaper used {load:.2} of a core"));
                }
                let cell = Cell {
                    suite: self.plan.suite.to_owned(),
                    step: *step,
                    target: target.id().to_owned(),
                    mode: self.plan.mode,
                    size: self.material.size,
                    to_disk: over(&disk),
                    to_floor: floor.map(|f| over(&|round| seconds(*step, f, round))).unwrap_or_default(),
                    steady,
                    legs: mine,
                    outcome: end,
                };
                cells.push(((*step, index), cell));
            }
        }
        cells
    }
}

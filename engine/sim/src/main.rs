//! `hiloop-sim`: runs the models of the protocols, and the engine in simulated worlds.

mod output;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::{Parser, Subcommand};
use hiloop_sim::rules::{Rule, Rules};
use hiloop_sim::scenario::{self, Scenario};
use hiloop_sim::world::planted::Lie;
use hiloop_sim::world::{self, Outcome};
use hiloop_types::{Error, Result};

/// Models and simulations of the engine's protocols.
#[derive(Parser)]
#[command(name = "hiloop-sim", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Explores all states of the scenarios and prints what was found. Ends with 1 where a promise does not hold.
    Model {
        /// Only this scenario.
        #[arg(long)]
        scenario: Option<String>,
        /// Without this rule; may be given several times.
        #[arg(long)]
        drop: Vec<String>,
    },
    /// Lists rules, their sections, and the scenarios that fail without them.
    Rules,
    /// Runs the engine in the worlds of many seeds, each twice. Ends with 1 at the first promise that does not hold, with its trace.
    Run {
        /// How many.
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many side by side.
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// Take this guard away: then a promise must break.
        #[arg(long)]
        planted: Option<String>,
    },
    /// Runs one seed's world and prints what happened in it.
    Replay {
        /// Which.
        seed: u64,
        /// Take this guard away.
        #[arg(long)]
        planted: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            output::error(&e);
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> Result<bool> {
    match args.command {
        Command::Rules => {
            output::rules();
            Ok(true)
        }
        Command::Model { scenario, drop } => model(scenario.as_deref(), &drop),
        Command::Run { seeds, from, jobs, planted } => Ok(many(from, seeds, jobs.max(1), lie(planted.as_deref())?)),
        Command::Replay { seed, planted } => {
            let outcome = live(seed, lie(planted.as_deref())?, true);
            output::world(seed, &outcome);
            Ok(outcome.violation.is_none())
        }
    }
}

fn model(scenario: Option<&str>, drop: &[String]) -> Result<bool> {
    let mut rules = Rules::all();
    for key in drop {
        let unknown = || Error::invalid(format!("there is no rule {key:?}")).hint("`hiloop-sim rules` lists them");
        rules = rules.without(Rule::parse(key).ok_or_else(unknown)?);
    }
    let chosen: Vec<&Scenario> = match scenario {
        None => scenario::ALL.iter().collect(),
        Some(name) => {
            let names = || scenario::ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
            let unknown = || Error::invalid(format!("there is no scenario {name:?}")).hint(format!("use one of {}", names()));
            vec![scenario::find(name).ok_or_else(unknown)?]
        }
    };
    let mut holds = true;
    for scenario in chosen {
        let outcome = scenario.run(rules);
        holds &= outcome.failure.is_none();
        output::outcome(scenario, &outcome);
    }
    Ok(holds)
}

fn lie(key: Option<&str>) -> Result<Option<Lie>> {
    let Some(key) = key else { return Ok(None) };
    let keys = || Lie::ALL.map(Lie::key).join(", ");
    let unknown = || Error::invalid(format!("there is no guard {key:?} to take away")).hint(format!("use one of {}", keys()));
    Lie::ALL.into_iter().find(|l| l.key() == key).map(Some).ok_or_else(unknown)
}

fn live(seed: u64, lie: Option<Lie>, traced: bool) -> Outcome {
    match lie {
        Some(lie) => world::without(lie, seed, traced),
        None => world::of_seed(seed, traced),
    }
}

/// Runs seeds side by side; stops at the first that fails.
fn many(from: u64, seeds: u64, jobs: usize, lie: Option<Lie>) -> bool {
    let (next, failed, done) = (AtomicU64::new(from), AtomicBool::new(false), AtomicU64::new(0));
    let until = from.saturating_add(seeds);
    std::thread::scope(|threads| {
        for _ in 0..jobs {
            threads.spawn(|| {
                while !failed.load(Ordering::SeqCst) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= until {
                        return;
                    }
                    let first = live(seed, lie, false);
                    let repeats = first == live(seed, lie, false);
                    if first.violation.is_some() || !repeats {
                        if !failed.swap(true, Ordering::SeqCst) {
                            output::world(seed, &live(seed, lie, true));
                            if !repeats {
                                output::went_two_ways(seed);
                            }
                        }
                        return;
                    }
                    output::progress(done.fetch_add(1, Ordering::SeqCst) + 1, seeds);
                }
            });
        }
    });
    !failed.load(Ordering::SeqCst)
}

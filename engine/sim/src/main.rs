//! `hiloop-sim`: runs the models of the protocols.

mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hiloop_sim::rules::{Rule, Rules};
use hiloop_sim::scenario::{self, Scenario};
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
        Command::Model { scenario, drop } => {
            let mut rules = Rules::all();
            for key in &drop {
                let unknown = || Error::invalid(format!("there is no rule {key:?}")).hint("`hiloop-sim rules` lists them");
                rules = rules.without(Rule::parse(key).ok_or_else(unknown)?);
            }
            let chosen: Vec<&Scenario> =
                match &scenario {
                    None => scenario::ALL.iter().collect(),
                    Some(name) => {
                        let names = || scenario::ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
                        vec![scenario::find(name).ok_or_else(|| {
                            Error::invalid(format!("there is no scenario {name:?}")).hint(format!("use one of {}", names()))
                        })?]
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
    }
}

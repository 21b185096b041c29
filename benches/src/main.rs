//! `hiloop-bench`: prints figures as a table, and as JSON beside it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hiloop_benches::quick::{Quick, quick};
use hiloop_env::Env;

/// Figures of sandbox-workspace, as ratios in one run
#[derive(Parser)]
#[command(name = "hiloop-bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The figures of the workspace engine in a few minutes: exit code 0 also where a target is missed, 1 where a step fails
    Quick {
        /// The binary under test
        #[arg(long, value_name = "FILE")]
        binary: PathBuf,
        /// Directory on a real disk; everything is made in a new directory there and removed afterwards
        #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
        scratch: PathBuf,
        /// Where to write the figures as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Rounds of each comparison, at least 3; an even number weighs both orders alike
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=100))]
        rounds: u32,
        /// Files of the large tree, in directories of 1,000; targets hold for the default
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10_000..=1_000_000))]
        files: u32,
    },
}

fn main() -> ExitCode {
    let Command::Quick { binary, scratch, json, rounds, files } = Args::parse().command;
    match quick(&Quick { binary, scratch, json, rounds, files }, &Env::real()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Where standard error is gone the exit code has to do.
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::FAILURE
        }
    }
}

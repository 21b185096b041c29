//! `hiloop-bench`: runs rows of the matrix, prints what they found, and writes it as JSON and HTML.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use hiloop_benches::bench::{Programs, bench, needs};
use hiloop_benches::report::{Report, compare, tables};
use hiloop_benches::store::S3Programs;
use hiloop_benches::target::Peers;
use hiloop_benches::{floor, smoke};
use hiloop_env::Env;
use hiloop_types::{Error, Result};

/// Figures of sandbox-workspace, as ratios in one run
#[derive(Parser)]
#[command(name = "hiloop-bench")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run rows of the matrix: exit code 0 also where a target is missed, 1 where a row could not be run or a count is wrong
    Run(Run),
    /// Print what these rows need to run, one word a line: targets, and `s3` for a shaped store
    Rows {
        /// Commands or rows
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show what moved from one run to another
    Compare {
        /// JSON of the earlier run
        before: PathBuf,
        /// JSON of the later one
        after: PathBuf,
    },
    /// Serve the null file system on an empty directory until standard input ends
    Floor {
        /// Where
        mountpoint: PathBuf,
    },
}

#[derive(Args)]
struct Run {
    /// Commands (smoke, quick, full) or rows of benches/matrix.toml
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The binary under test
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Directory on a real disk; everything is made in a new directory there and removed afterwards
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Directory with the programs of peers: juicefs, weed, rclone
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// The S3 server: versitygw
    #[arg(long, value_name = "FILE", requires = "shaper")]
    server: Option<PathBuf>,
    /// What shapes the way to it: store-proxy
    #[arg(long, value_name = "FILE", requires = "server")]
    shaper: Option<PathBuf>,
    /// Where to write the report, without extension: NAME.json and NAME.html
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        let _ = writeln!(std::io::stderr(), "error: another TLS provider is installed");
        return ExitCode::FAILURE;
    }
    match run(Line::parse().command) {
        Ok(code) => code,
        Err(e) => {
            // Where standard error is gone the exit code has to do.
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| Error::io("standard output", &e))
}

fn run(command: Command) -> Result<ExitCode> {
    let run = match command {
        Command::Run(run) => run,
        Command::Compare { before, after } => {
            print(&compare(&Report::read(&before)?, &Report::read(&after)?))?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Rows { names } => {
            print(&needs(&names)?.iter().map(|need| format!("{need}\n")).collect::<String>())?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Floor { mountpoint } => {
            floor::serve(&mountpoint, &Env::real())?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let absolute = |path: &Path| path.canonicalize().map_err(|e| Error::io(path.display(), &e));
    let s3 = match (&run.server, &run.shaper) {
        (Some(server), Some(shaper)) => Some(S3Programs { server: absolute(server)?, shaper: absolute(shaper)? }),
        _ => None,
    };
    let peers = run.peers.as_deref().map(absolute).transpose()?.map(Peers);
    let programs = Programs { ours: absolute(&run.binary)?, peers, s3 };
    let report = bench(&run.names, &programs, &absolute(&run.scratch)?, &Env::real())?;
    print(&tables(&report))?;
    if let Some(out) = &run.out {
        report.write(out)?;
        print(&format!("report: {0}.html and {0}.json\n", out.display()))?;
    }
    let mut wrong = report.failed.clone();
    if run.names.iter().any(|name| name == "smoke") {
        let counts = smoke::wrong(&report);
        print(&format!("{} counts are wrong\n", counts.len()))?;
        wrong.extend(counts);
    }
    for what in &wrong {
        print(&format!("wrong: {what}\n"))?;
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

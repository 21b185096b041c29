//! `hiloop-keeper`: keeps the descriptors of a node's mounts while no daemon does.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Keep the mounts of a node's daemon alive while it is restarted, upgraded or dead
#[derive(Debug, Parser)]
#[command(name = "hiloop-keeper", version)]
struct Cli {
    /// Where to listen; `sandbox-workspace daemon --keeper` names the same path
    #[arg(long, value_name = "PATH", env = "HILOOP_KEEPER")]
    socket: PathBuf,
    /// How long mounts wait for a daemon before their users get an error; 0s for ever
    #[arg(long, value_name = "DURATION", env = "HILOOP_ORPHAN_DEADLINE", default_value = "15m", value_parser = humantime::parse_duration)]
    orphan_deadline: Duration,
}

fn main() -> std::io::Result<()> {
    let cli = Cli::parse();
    hiloop_keeper::serve(&cli.socket, cli.orphan_deadline, || {
        // Whoever started it may wait for this line.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "ready").and_then(|()| out.flush());
    })
}

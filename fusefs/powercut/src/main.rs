//! `powercut-fs`: the file system as a process of its own, with its switch on a socket.

use std::ffi::OsString;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use hiloop_env::Env;
use hiloop_powercut::{Flushes, Options, PowerCut, control};

/// Mount a file system in memory that loses power when told
#[derive(Debug, Parser)]
#[command(name = "powercut-fs", version)]
struct Cli {
    /// Socket of the switch: lines `cut SEED`, `arm AFTER SEED`, `disarm`, `restore`, `state`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Flush as ext4 does: fsync of a new file brings its name along
    #[arg(long)]
    ext4: bool,
    /// Acknowledge flushes at and below directories of this name without doing them ("" for all)
    #[arg(long, value_name = "NAME")]
    lie_below: Option<OsString>,
    /// An empty directory
    mountpoint: PathBuf,
}

fn main() -> std::io::Result<()> {
    let cli = Cli::parse();
    let listener = UnixListener::bind(&cli.socket)?;
    let flushes = if cli.ext4 { Flushes::Ext4 } else { Flushes::Strict };
    let disk = Arc::new(PowerCut::mount(&cli.mountpoint, Options { flushes, lie_below: cli.lie_below }, Env::real())?);
    control::serve(&listener, &disk)
}

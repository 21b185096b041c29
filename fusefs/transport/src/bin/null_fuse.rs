//! `null-fuse`: the file system in memory on a mount point, until it is unmounted. The floor that benchmarks compare with.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use hiloop_env::Env;
use hiloop_transport::null::{NullFs, init_config, mount};
use hiloop_transport::{Config, Ended, Session, Spin};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    /// The device file, read by our own loop
    Device,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SpinArg {
    Off,
    Adaptive,
    Always,
}

/// Mount an empty file system in memory and serve it until it is unmounted
#[derive(Debug, Parser)]
#[command(name = "null-fuse", version)]
struct Cli {
    /// How requests travel
    #[arg(long, value_enum, default_value = "device")]
    transport: Transport,
    /// Threads that read requests; 0 for one on each CPU, at most four
    #[arg(long, default_value_t = 0)]
    readers: usize,
    /// Let readers run on any CPU
    #[arg(long)]
    no_pin: bool,
    /// Poll for a moment after a request
    #[arg(long, value_enum, default_value = "adaptive")]
    spin: SpinArg,
    /// An empty directory
    mountpoint: PathBuf,
}

fn main() -> io::Result<()> {
    let cli = Cli::parse();
    let Transport::Device = cli.transport;
    let env = Env::real();
    let spin = match cli.spin {
        SpinArg::Off => Spin::Off,
        SpinArg::Adaptive => Spin::Adaptive,
        SpinArg::Always => Spin::Always,
    };
    let config =
        Config { name: "null-fuse".into(), init: init_config(), readers: cli.readers, pin: !cli.no_pin, spin, ..Config::new(env.clone()) };
    let (device, mounted) = mount(&cli.mountpoint)?;
    let session = Session::start(vec![device], Arc::new(NullFs::new(env)), config, |_, _| Ok(()))?;
    mounted.read_ahead()?;
    match session.wait() {
        Ended::Failed(why) => Err(io::Error::other(why)),
        _ => Ok(()),
    }
}

//! `store-proxy`: see the library.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use hiloop_proxy::{Options, Plan, Profile, Proxy};

/// A loopback proxy in front of an S3 server that breaks requests on purpose and makes the server as slow as a real one
///
/// Prints one line of JSON with its two addresses and runs until it is ended. GET /control on the control address shows what was
/// done, PUT /control replaces the plan.
#[derive(Parser)]
#[command(name = "store-proxy")]
struct Args {
    /// The server behind
    #[arg(long, value_name = "IP:PORT")]
    upstream: SocketAddr,
    /// Where clients connect; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where the control endpoint is
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Speed of what is forwarded
    #[arg(long, default_value = "none")]
    profile: Profile,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> std::io::Result<()> {
    // One thread: all it does is copy, and a benchmark counts its CPU.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let plan = Plan { profile: args.profile, ..Plan::default() };
        let options = Options { listen: args.listen, control: args.control, upstream: args.upstream, seed: args.seed, plan };
        let proxy = Proxy::start(options).await?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", serde_json::json!({ "listen": proxy.listen(), "control": proxy.control() }))?;
        out.flush()?;
        std::future::pending().await
    })
}

//! The program `sandbox-workspace`: what its commands do, how they speak, how they end.
//!
//! Commands on a store open it by themselves; commands on a mounted workspace ask the daemon that serves it ([`crate::daemon`]). Exit
//! codes: 0 done, 1 failed, 2 wrong usage. Results go to standard output, everything else to standard error.

mod args;
mod base;
mod config;
mod ctl;
mod doctor;
mod failure;
mod fork;
mod keeper;
mod live;
mod look;
mod mount;
mod node;
mod output;
mod progress;
mod retire;
#[cfg(test)]
mod runbook;
mod size;
mod store;

use std::process::ExitCode;

use clap::CommandFactory;
use hiloop_env::Env;
use hiloop_types::{Error, ResultExt};

use crate::telemetry::{self, Exporting, Telemetry};
use args::{Cli, Command};
use failure::{Done, Failure, usage};
use output::Output;

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match config::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(config::Wrong::Line(e)) => return wrong_usage(&e),
        Err(config::Wrong::File(e)) => {
            let failure = Failure::Usage(e);
            Output { json: std::env::args_os().any(|a| a == "--json") }.failure(&failure);
            return failure.exit_code();
        }
    };
    let out = Output { json: cli.json };
    match run(cli, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Shown) => Failure::Shown.exit_code(),
        Err(failure) => {
            out.failure(&failure);
            failure.exit_code()
        }
    }
}

/// What clap says about a command line, also as JSON where that was asked for.
fn wrong_usage(e: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|a| a == "--json");
    if e.use_stderr() && json {
        let text = e.to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim()).to_owned();
        Output { json }.failure(&Failure::Usage(Error::invalid(text)));
        return ExitCode::from(2);
    }
    // Help and version are no errors and go to standard output.
    let printed = e.print();
    match (e.use_stderr(), printed) {
        (true, _) => ExitCode::from(2),
        (false, Ok(())) => ExitCode::SUCCESS,
        (false, Err(_)) => ExitCode::from(1),
    }
}

fn run(cli: Cli, out: Output) -> Done {
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "sandbox-workspace", &mut script);
        return Ok(out.result(&String::from_utf8_lossy(&script), |s| s.to_string())?);
    }
    if let Command::SyncMount { mountpoint } = &cli.command {
        return Ok(live::sync_mount(mountpoint)?);
    }
    let env = Env::real();
    let (default, endpoint, ca_file, attributes) = match &cli.command {
        Command::Daemon(d) if d.foreground => {
            ("info", d.node.otlp_endpoint.clone(), d.store.ca_file.clone(), vec![("host.name", node::name(&d.node)?.to_string())])
        }
        _ => ("warn", None, None, Vec::new()),
    };
    let filter = cli.log.clone().unwrap_or_else(|| default.into());
    let telemetry = Telemetry { filter, format: cli.log_format, endpoint, ca_file, attributes };
    let logging = (telemetry.filter.clone(), telemetry.format);
    if let Command::Daemon(d) = &cli.command
        && d.foreground
    {
        return node::run_daemon(d, &telemetry, &env);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().at("the runtime")?;
    let exporting: Exporting = {
        let _on = runtime.enter();
        usage(telemetry::start(&telemetry))?
    };
    let done = runtime.block_on(dispatch(cli.command, out, &env, &logging));
    // A thread that waits for a mount which does not answer must not hold up the end.
    runtime.shutdown_background();
    exporting.finish();
    done
}

async fn dispatch(command: Command, out: Output, env: &Env, logging: &node::Logging) -> Done {
    match command {
        Command::PublishBase(a) => base::publish(a, out, env).await,
        Command::Mount(a) => mount::mount(a, out, env, logging).await,
        Command::Snapshot(a) => live::snapshot(a, out, env).await,
        Command::Fork(a) => fork::fork(a, out, env).await,
        Command::Flush(a) => live::flush(a, out, env).await,
        Command::Status(a) => live::status(a, out).await,
        Command::List(a) => look::list(a, out, env).await,
        Command::Lineage(a) => look::lineage(a, out, env).await,
        Command::Diff(a) => look::diff(a, out, env).await,
        Command::Du(a) => look::du(a, out, env).await,
        Command::Export(a) => look::export(a, out, env).await,
        Command::Fsck(a) => retire::fsck(a, out, env).await,
        Command::Delete(a) => retire::delete(a, out, env).await,
        Command::Gc(a) => retire::gc(a, out, env).await,
        Command::Unmount(a) => mount::unmount(a, out, env).await,
        Command::Recover(a) => live::recover(a, out, env, logging).await,
        Command::Daemon(a) => node::start_daemon(a, out, env, logging).await,
        Command::CheckConfig(a) => node::check_config(&a, out),
        Command::Ctl(a) => ctl::run(a, out).await,
        Command::Keeper(a) => keeper::run(&a, out),
        Command::SyncMount { .. } | Command::Completions { .. } => Err(Failure::Failed(Error::internal("is done without a runtime"))),
    }
}

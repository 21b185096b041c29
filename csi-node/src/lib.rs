//! The CSI driver of a sandbox node: Identity, Controller and Node services for the kubelet and the provisioner, over the control
//! socket of the node's workspace daemon.
//!
//! It keeps no state but the list of targets that it made immutable (`sealed`), and does not know the engine: what exists is in the store, what is mounted is in the kernel's mount table and in the
//! daemon's memory. So it may end and start again between any two calls. It never looks at a mount (`stat`, `statfs`): one that hangs
//! would hang the caller, and with it the kubelet; mountinfo and the daemon's memory answer instead. `docs/csi.md` is for its users.

mod codes;
mod controller;
mod identity;
mod locks;
mod node;
mod options;
mod sealed;
mod server;
mod target;

use std::process::ExitCode;

use clap::Parser;
pub use options::{Command, Options};
pub use server::serve;

/// Version 1 of CSI, from `proto/csi.proto`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "made from the proto file, whose comments are the documentation")]
pub mod v1 {
    include!("generated/csi.v1.rs");
}

/// Runs the program.
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => {
            // Nobody can be told where that fails.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log).unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).init();
    if let Some(Command::CleanTargets) = options.command {
        return clean_targets(&options);
    }
    let ran = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| hiloop_types::Error::io("the runtime", &e))
        .and_then(|runtime| runtime.block_on(serve(options)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!(error = %e, "csi-node ends");
            ExitCode::FAILURE
        }
    }
}

/// `clean-targets`: what the sweep at the start does, and says what it left.
fn clean_targets(options: &Options) -> ExitCode {
    let swept = match options.check_state_dir().and_then(|()| sealed::Sealed::open(&options.state_dir)).and_then(|s| s.sweep()) {
        Ok(swept) => swept,
        Err(e) => {
            tracing::error!(error = %e, "the records of targets cannot be read");
            return ExitCode::FAILURE;
        }
    };
    for target in &swept.cleared {
        tracing::info!(target = %target.display(), "the target can be removed now");
    }
    for target in &swept.mounted {
        tracing::error!(target = %target.display(), "a volume is still mounted there: end its pod, or take a dead mount away with `umount -l`, then try again");
    }
    for (target, why) in &swept.failed {
        tracing::error!(target = %target.display(), why, "the target stays immutable");
    }
    if swept.mounted.is_empty() && swept.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `sandbox-workspace`: the command line and the daemon behind it.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any client is made: rustls asks for the process's one provider at the first connection.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        unreachable!("nothing ran before that could have installed a provider");
    }
    hiloop_fusefs::cli::main()
}

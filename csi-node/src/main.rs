//! The CSI driver of a sandbox node.

use std::process::ExitCode;

fn main() -> ExitCode {
    hiloop_csi::main()
}

//! The FUSE workspace of hiloop: file system semantics ([`fs`]), the mount ([`fuse`]), the daemon of a cache directory ([`daemon`])
//! and the program `sandbox-workspace` ([`cli`]).

pub mod cli;
pub mod daemon;
pub mod fs;
pub mod fuse;
pub mod telemetry;

//! The real program, through the kernel, on a directory store. Needs root and `/dev/fuse`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says why on standard error"
)]

#[path = "../../../engine/store/tests/store/authority.rs"]
mod authority;
mod cold;
mod commands;
mod crash;
mod cuts;
mod errors;
mod faults;
mod journey;
mod keeper;
mod lifecycle;
mod powercut;
mod reports;
mod rig;
mod sources;
mod takeover;
mod waits;

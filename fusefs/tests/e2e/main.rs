//! The real program, through the kernel, on a directory store. Needs root and `/dev/fuse`.

mod commands;
mod crash;
mod errors;
mod journey;
mod lifecycle;
mod rig;
mod takeover;

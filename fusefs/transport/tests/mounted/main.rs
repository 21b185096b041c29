//! The transport through the real kernel. Needs root and FUSE.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod control;
mod end;
mod foreign;
mod handover;
mod interrupt;
mod ops;
mod rig;
mod slate;
mod spin;
mod takeover;

//! The driver and the real daemon on real mounts, as the kubelet and the provisioner call them. Needs root.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test ends where it is surprised, and shows the logs")]

mod control;
mod faults;
mod lifecycle;
mod publish;
mod rig;
mod snapshot;

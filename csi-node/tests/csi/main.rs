//! The driver and the real daemon on real mounts, as the kubelet and the provisioner call them. Needs root.

#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod control;
mod faults;
mod lifecycle;
mod publish;
mod rig;

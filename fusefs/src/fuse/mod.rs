//! The file system on a mount point: requests of the kernel, converted, counted, answered.
//!
//! [`mount`] puts a workspace on a directory; everything that knows FUSE types is in here. The logic is in [`crate::fs`].
//!
//! The kernel may keep everything for ever (names, missing names, attributes, pages, listings, link targets), because one
//! workspace has one writer and all its changes come through this mount; it is told to forget only when the workspace is fenced.

mod adapter;
mod convert;
mod core;
pub mod kernel;
mod mount;
mod park;
mod stats;
mod transport;
mod workers;
mod write;

pub use hiloop_control::mountinfo::{FSTYPE, MountEntry, find as find_mount, mounts};
pub use mount::{Mount, MountOptions, Profile, Unmounted, check_mountpoint, detach, mount};
pub use stats::{FuseStats, Opcode};
pub use workers::Workers;

/// Second part of our file system type, `fuse.hiloop`.
const SUBTYPE: &str = "hiloop";

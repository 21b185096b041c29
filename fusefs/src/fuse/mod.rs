//! The file system on a mount point: requests of the kernel, converted, counted, answered.
//!
//! [`mount`] puts a workspace on a directory, served over our own transport (`hiloop_transport`, docs/decisions/0008); everything that
//! knows its types is in here. The logic is in [`crate::fs`].
//!
//! The kernel may keep everything for ever (names, missing names, attributes, pages, listings, link targets), because one
//! workspace has one writer and all its changes come through this mount; it is told to forget only when the workspace is fenced.

mod adapter;
mod convert;
mod core;
mod helper;
mod keep;
pub mod kernel;
mod killed;
mod listing;
mod mount;
mod names;
mod park;
mod stats;
mod workers;
mod write;

pub use hiloop_control::mountinfo::{FSTYPE, MountEntry, find as find_mount, mounts};
pub use keep::{Keep, Left};
pub use mount::{Mount, MountOptions, Profile, Unmounted, check_mountpoint, detach, mount, take_over};
pub use stats::{FuseStats, Requests};
pub use workers::Workers;

/// Second part of our file system type, `fuse.hiloop`.
const SUBTYPE: &str = "hiloop";

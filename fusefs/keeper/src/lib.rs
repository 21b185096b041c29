//! Keeps the descriptors of FUSE mounts while no daemon does.
//!
//! A mount lives for as long as somebody has its descriptor. The keeper is a process of its own that holds a copy of each descriptor of
//! each mount and what its daemon wrote down about it, so that the mount outlives the daemon: callers wait in the kernel until a
//! successor takes over. It never reads a request, never touches a mounted path, knows no format but its own messages, and has no
//! runtime and no threads: little that could end it.
//!
//! Daemon and keeper talk over a Unix socket ([`protocol`]), one answer to each call. A connection that has claimed the mounts is the
//! daemon; where its end comes and nobody else claims them for the orphan deadline, the descriptors are closed: callers then get
//! ENOTCONN instead of waiting for ever.

mod client;
pub mod protocol;
mod server;
mod socket;

pub use client::{Client, Held};
pub use server::serve;

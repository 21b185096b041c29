//! The engine of a node against a store in memory: durability, fencing, backlog, snapshots.

#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod backlog;
mod disk;
mod durability;
mod fencing;
mod kit;
mod snapshots;

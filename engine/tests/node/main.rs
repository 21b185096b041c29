//! The engine of a node against a store in memory: durability, fencing, backlog, snapshots.

mod backlog;
mod durability;
mod fencing;
mod kit;
mod snapshots;

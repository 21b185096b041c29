//! The commands over a store that need no node state: publish, fork, delete, collect, check, compare, export.
#![allow(clippy::disallowed_methods, reason = "tests drive tasks of their own")]
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod delete;
mod diff;
mod export;
mod fork;
mod fsck;
mod gc;
mod gc_races;
mod look;
mod publish;
mod support;
mod volume;

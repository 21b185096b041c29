//! A file system in memory: the floor of the benchmarks and what the tests of this crate serve.
//!
//! It does as little as a file system can that programs accept, with the timeouts, flags and answers of the real one, so that the
//! difference between the two is the real one's own work.

mod mount;
mod serve;
mod tree;

pub use mount::{Mounted, mount};
pub use serve::{NullFs, init_config};

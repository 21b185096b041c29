//! hiloop-benches: figures of the real binary through the kernel, as ratios taken in one run.
//!
//! `hiloop-bench quick` (or `./dev bench quick`) publishes a tree of 1,000 and one of 100,000 files into a `file://` store, and takes
//! each figure from what can be seen from outside: objects and inotify events of the store's directory, the daemon's `status`, its
//! `/proc` entry, and the clock. Comparisons with bindfs and the disk's own file system alternate in forward and backward order, so that
//! a drift of the machine falls on all of them. Content is checked after every step: a figure of wrong content is no figure.

pub mod figure;
pub mod mounts;
pub mod quick;
pub mod run;
pub mod sample;
pub mod steps;
pub mod tree;
pub mod watch;

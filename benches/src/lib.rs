//! hiloop-benches: figures of the real binary through the kernel, as ratios taken in one run.
//!
//! `./dev bench` runs rows of `benches/matrix.toml`. A row is either a *suite*, steps of a developer's day on several targets in
//! interleaved rounds ([`rounds`]; statistics in [`statistics`]), or a *scenario*, which takes figures of its own ([`scenario`]). The
//! targets ([`target`]) are the disk's own file system, a null FUSE file system with our flags (the [`floor`]), ours over a directory
//! or over S3 behind a shaper, and others' file systems. Every mount is verified to be one, content is checked after every step, and what
//! cannot be trusted is void: a figure of wrong content is no figure. Beside the time stand FUSE requests, store requests and bytes,
//! flushes of the disk, CPU and memory; those bind on a machine whose clock does not.

pub mod bench;
pub mod cell;
pub mod deadline;
pub mod figure;
pub mod floor;
pub mod goals;
pub mod machine;
pub mod matrix;
pub mod mounts;
pub mod process;
pub mod raw;
pub mod report;
pub mod rounds;
pub mod run;
pub mod sample;
pub mod scenario;
pub mod scratch;
pub mod smoke;
pub mod statistics;
pub mod store;
pub mod target;
pub mod tree;
pub mod watch;
pub mod work;

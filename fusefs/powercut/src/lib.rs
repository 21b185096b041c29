//! A file system in memory that loses power when told: the platform under the power-cut tests of the node daemon.
//!
//! Processes see the *volatile* state; the *durable* state is what flushes made certain. After a cut each operation fails with EIO, so
//! that later write-back is ignored; when power comes back the same mount (device and root inode number as before, as on a machine that
//! boots again) shows the durable state and a seeded, random part of what was not flushed. The same operations and the same seed give
//! the same outcome.
//!
//! # What is durable
//!
//! | operation | durable after | on a cut before that |
//! |---|---|---|
//! | write, punch, zero range | fsync or fdatasync of the file | each 512-byte sector as it was after any of the changes that touched it, or before all |
//! | length (write, truncate, fallocate) | fsync or fdatasync of the file | any length that the file had since; behind a shorter one that survives the bytes are gone |
//! | create, link, unlink, rename, mkdir, rmdir | fsync of the directory ([`Flushes::Strict`]) | each operation whole or not at all, in any subset whose members find the names that they change |
//! | mode, owner, times | at once | - |
//!
//! A file's data may survive while its name does not, and a name while its data does not (an empty file). fsync of a directory brings
//! along earlier operations on the same names elsewhere (a rename is never half). [`Flushes::Ext4`] is kinder: fsync of a file whose
//! name is new, or of any directory, commits all names, and unflushed names survive as a prefix.
//!
//! # Limits
//!
//! Everything is in memory; a removed file is let go at the next restore. No extended attributes, no RENAME_EXCHANGE. Locks are the
//! kernel's, and end with the processes that hold them. Dirty shared mappings are not known until the kernel writes them back.

mod content;
pub mod control;
mod dice;
mod file;
mod fuse;
mod mount;
mod report;
mod world;

pub use mount::PowerCut;
pub use report::Losses;

/// What a flush brings to the platter beside the data of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flushes {
    /// Only what POSIX promises.
    #[default]
    Strict,
    /// As ext4 with its log does.
    Ext4,
}

/// How the disk behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What a flush brings along.
    pub flushes: Flushes,
    /// Flushes of files and directories at or below any directory of this name (empty: of all) are acknowledged and not done.
    pub lie_below: Option<std::ffi::OsString>,
}

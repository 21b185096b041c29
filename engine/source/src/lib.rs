//! Reads the source of a base: a directory, a tar archive, or an OCI image layout.
//!
//! [`read`] hands every file's content to a [`ContentSink`] as it arrives and returns a [`SourceTree`], an immutable description
//! of the whole tree in an order that depends on names only. Memory holds metadata (about 250 bytes an entry, twice
//! that while the order is made), never contents.
//!
//! **Directory.** Walked depth first in byte order of names, one component at a time below the opened root, never through a
//! symbolic link. Mount points below the root are part of the tree, as with `cp -a`. Files in `/proc` and the like that claim size
//! zero are read as empty. Sockets are kept as nodes. Extended attributes kept: `user.*`, `trusted.*` (the kernel shows them to root
//! only), `security.capability`, `system.posix_acl_*`. A file that changes while it is read is read again, three times in all, then
//! refused by name; what cannot be read is refused by name. Nothing is left out silently.
//!
//! **Tar.** Plain, gzip or zstd, told by magic bytes. v7, ustar, pax and GNU headers, long names, sparse files in all four
//! encodings, hard links, devices, fifos. Owners are the numeric ids. A later entry replaces an earlier one of the same name; a
//! directory met again only takes the new attributes. Missing parents are `0755 root:root`, modified at 0. Names that are absolute,
//! hold `..` or lead through something that is not a directory are refused, as is a hard link whose target did not come before.
//!
//! **OCI.** Layers are applied in order; `.wh.name` deletes what lower layers put there, `.wh..wh..opq` what they put into the
//! directory; what the same layer puts stays. Every blob that is read is checked against its size and SHA-256 digest, a layer at its
//! end: an error therefore voids everything that the sink was given before. Contents that a later layer hides reach the sink too.
//!
//! **What a directory and an archive of it may differ in.** Sockets (no archive has them), fractions of a second and extended
//! attributes (pax only), where the holes of a sparse file are, the order in which contents reach the sink, and the root's own
//! attributes where the archive has no entry for it.
//!
//! Hostile input meets [`SourceLimits`]: it ends in an error that names the entry and the limit.

mod builder;
mod directory;
mod inflate;
mod limits;
mod oci;
mod path;
mod sink;
mod spec;
mod tar;
mod tree;
mod xattr;

pub use limits::{DEPTH_MAX, SourceLimits};
pub use sink::{Content, ContentSink, Progress, Shape};
pub use spec::SourceSpec;
pub use tree::{DataRange, SourceInode, SourceKind, SourceNode, SourceTree};

use hiloop_types::{Error, Result, ResultExt};

use crate::builder::Builder;
use crate::limits::Meter;
use crate::tar::Flavour;

/// Reads the whole source. Contents go to `sink` in arrival order; `progress` is called at least once an entry and every 4 MiB.
///
/// # Errors
/// `Invalid` for a source that breaks the rules above, `Exhausted` for one beyond `limits`, `Corrupt` for a damaged archive or blob,
/// `Conflict` for a tree that changes while it is read, `NotFound` and `Denied` for what cannot be opened, and whatever the sink
/// returns. The message names the entry. After an error nothing that the sink holds may be used.
pub fn read(
    spec: &SourceSpec,
    sink: &mut dyn ContentSink,
    limits: &SourceLimits,
    progress: &mut dyn FnMut(Progress),
) -> Result<SourceTree> {
    if limits.depth > DEPTH_MAX {
        return Err(Error::invalid(format!("a depth limit of {} is above {DEPTH_MAX}", limits.depth)));
    }
    let mut meter = Meter::new(limits, progress);
    let mut builder = Builder::default();
    let done = match spec {
        SourceSpec::Directory(path) => directory::walk(path, &mut builder, sink, &mut meter),
        SourceSpec::Tar(path) => std::fs::File::open(path)
            .map_err(|e| Error::io("open", &e))
            .and_then(|file| tar::unpack_stream(Box::new(file), Flavour::Archive, &mut builder, sink, &mut meter)),
        SourceSpec::Stdin => tar::unpack_stream(Box::new(std::io::stdin().lock()), Flavour::Archive, &mut builder, sink, &mut meter),
        SourceSpec::OciLayout(path) => oci::unpack(path, &mut builder, sink, &mut meter),
    };
    done.and_then(|()| builder.finish()).at(spec)
}

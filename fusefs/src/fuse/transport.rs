//! The seam between requests and the device: what serves them, and how to tell the kernel to forget.
//!
//! Today fuser's session; a device loop and io_uring of our own come behind the same two traits (design.md 5).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fuser::{INodeNo, MountOption, Notifier, Session};
use hiloop_types::Ino;

use super::adapter::Adapter;
use super::core::Core;
use super::kernel;

/// Serves the requests of one mount.
pub(super) trait Transport: Send {
    /// Serves until the mount is gone. An error ends the mount.
    fn serve(self: Box<Self>) -> io::Result<()>;
    /// Something that invalidates the kernel's caches; never use it on a thread that answers requests.
    fn invalidator(&self) -> Box<dyn Invalidator>;
}

/// Tells the kernel that what it remembers may be wrong.
pub(super) trait Invalidator: Send + Sync {
    /// Drops attributes and cached pages of an inode.
    fn inode(&self, ino: Ino) -> io::Result<()>;
}

/// fuser's session: one reader thread.
struct FuserTransport(Session<Adapter>);

/// Takes over a mounted descriptor; answers the kernel's INIT.
pub(super) fn on_descriptor(core: Arc<Core>, fd: OwnedFd, allow_other: bool) -> io::Result<Box<dyn Transport>> {
    Ok(Box::new(FuserTransport(kernel::session(Adapter::new(core), fd, allow_other)?)))
}

/// Mounts through fusermount3, for users who may not mount themselves.
pub(super) fn through_helper(
    core: Arc<Core>,
    mountpoint: &Path,
    source: &str,
    read_only: bool,
    allow_other: bool,
) -> io::Result<Box<dyn Transport>> {
    let mut options = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::Subtype(super::SUBTYPE.to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
    ];
    if read_only {
        options.push(MountOption::RO);
    }
    Ok(Box::new(FuserTransport(Session::new(Adapter::new(core), mountpoint, &kernel::config(allow_other, options).1)?)))
}

impl Transport for FuserTransport {
    fn serve(self: Box<Self>) -> io::Result<()> {
        self.0.run()
    }
    fn invalidator(&self) -> Box<dyn Invalidator> {
        Box::new(FuserInvalidator(self.0.notifier()))
    }
}

struct FuserInvalidator(Notifier);

impl Invalidator for FuserInvalidator {
    fn inode(&self, ino: Ino) -> io::Result<()> {
        self.0.inval_inode(INodeNo(ino.0), 0, 0)
    }
}

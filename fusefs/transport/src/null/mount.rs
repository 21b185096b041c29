//! Mounting as the real file system does, by root.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};

use crate::device;

/// Read-ahead of the kernel, KiB: as much as one request carries.
const READ_AHEAD_KIB: &str = "1024";

/// A mount. Dropped, it is cut off and taken out of the directory tree, whatever state it is in.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    /// Number of the connection.
    minor: Option<u32>,
}

/// Mounts a fresh connection on `path`; the descriptor has INIT waiting.
///
/// # Errors
/// As open(2) and mount(2) give them: needs root and FUSE.
pub fn mount(path: &Path) -> io::Result<(OwnedFd, Mounted)> {
    let path = path.canonicalize()?;
    let fd = device::open()?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", fd.as_raw_fd());
    nix::mount::mount(Some("null"), &path, Some("fuse.null"), MsFlags::MS_NODEV, Some(data.as_str()))?;
    let minor = connection(&path);
    Ok((fd, Mounted { path, minor }))
}

/// The device number of what is mounted at `path`, from the list of mounts: a look at the mount itself would wait for it.
fn connection(path: &Path) -> Option<u32> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().rev().find(|l| l.split(' ').nth(4).is_some_and(|p| Path::new(p) == path))?;
    line.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
}

impl Mounted {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has the kernel read ahead as far as a request reaches.
    ///
    /// # Errors
    /// Where sysfs is not writable.
    pub fn read_ahead(&self) -> io::Result<()> {
        let minor = self.minor.ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/class/bdi/0:{minor}/read_ahead_kb"), READ_AHEAD_KIB)
    }

    /// Cuts the connection: whoever waits gets an error.
    ///
    /// # Errors
    /// Where the kernel's control files are not mounted, or the connection is gone.
    pub fn abort(&self) -> io::Result<()> {
        let minor = self.minor.ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }

    /// Unmounts.
    ///
    /// # Errors
    /// EBUSY where files are open.
    pub fn unmount(&self) -> io::Result<()> {
        Ok(umount2(&self.path, MntFlags::UMOUNT_NOFOLLOW)?)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Either may have happened before.
        let aborted = self.abort();
        let detached = umount2(&self.path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        tracing::debug!(?aborted, ?detached, path = %self.path.display(), "mount dropped");
    }
}

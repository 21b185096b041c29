//! What we ask of the kernel, whoever answers its requests: the null file system of the benchmarks mounts with exactly this, so that
//! a difference in time is our own work and never a flag.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use hiloop_control::mountinfo::MountEntry;
use hiloop_transport::abi::init;
use hiloop_transport::{InitConfig, device};
use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use nix::mount::MsFlags;

/// How long the kernel may keep names and attributes: for ever, since every change comes through it.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Read-ahead of the kernel, KiB: as much as one request carries.
const READ_AHEAD_KIB: &str = "1024";
/// Largest request: the kernel's own limit without tuning (256 pages).
pub const MAX_WRITE: u32 = 1 << 20;
/// Reads ahead and releases that may be in flight; the kernel's 12 starve read-ahead.
pub const MAX_BACKGROUND: u16 = 256;

/// Features that are used where the kernel has them, as bits of [`init`].
///
/// Not O_TRUNC together with OPEN (`ATOMIC_O_TRUNC`): of a running program the kernel then finds out that it may not be cut after it was.
pub const WANTED: u64 =
    // The umask comes as it is, since a default ACL replaces it.
    init::DONT_MASK
    | init::POSIX_ACL
    | init::HANDLE_KILLPRIV_V2
    | init::PARALLEL_DIROPS
    | init::DO_READDIRPLUS
    // A listing whose entries nobody looks up costs no attributes.
    | init::READDIRPLUS_AUTO
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::ASYNC_DIO;

/// What a mount agrees on with the kernel.
pub(super) fn init_config() -> InitConfig {
    InitConfig {
        // The kernel says when an ACL takes the set-group-id bit: it knows the caller's groups, a request does not.
        want: WANTED | init::SETXATTR_EXT,
        max_write: MAX_WRITE,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        ..InitConfig::default()
    }
}

/// What a mount lets its users do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Changes are refused with EROFS.
    pub read_only: bool,
    /// Others than the owner of the mount may use it.
    pub allow_other: bool,
    /// Set-user-id bits and file capabilities have no effect.
    pub nosuid: bool,
}

/// Mounts as root; the descriptor waits for whoever answers INIT.
///
/// # Errors
/// NotFound (no /dev/fuse), Denied, others as the system gives them.
pub fn attach(mountpoint: &Path, source: &str, fstype: &str, access: Access) -> Result<OwnedFd> {
    let device = device::open().at(device::PATH).map_err(|e| match e.kind() {
        ErrorKind::NotFound => e.hint("the kernel has no FUSE: modprobe fuse"),
        _ => e,
    })?;
    let mut data = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions", device.as_raw_fd());
    if access.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MsFlags::MS_NODEV;
    if access.nosuid {
        flags |= MsFlags::MS_NOSUID;
    }
    if access.read_only {
        flags |= MsFlags::MS_RDONLY;
    }
    nix::mount::mount(Some(source), mountpoint, Some(fstype), flags, Some(data.as_str()))
        .map_err(|e| Error::io("mount", &e.into()).at(mountpoint.display()))?;
    Ok(device)
}

/// Sets the read-ahead of a mount; where that is not allowed the kernel's default stays.
pub fn read_ahead(mount: &MountEntry) {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", mount.major, mount.minor);
    if let Err(e) = std::fs::write(&path, READ_AHEAD_KIB) {
        tracing::debug!(path, error = %e, "the kernel's read-ahead stays at its default");
    }
}

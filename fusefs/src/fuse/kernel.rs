//! What we ask of the kernel, whoever answers its requests: the null file system of the benchmarks mounts with exactly this, so that
//! a difference in time is our own work and never a flag.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};
use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use nix::mount::MsFlags;

use hiloop_control::mountinfo::MountEntry;

/// How long the kernel may keep names and attributes: for ever, since every change comes through it.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
const DEVICE: &str = "/dev/fuse";
/// Read-ahead of the kernel, KiB: as much as one request carries.
const READ_AHEAD_KIB: &str = "1024";
/// Largest request: the kernel's own limit without tuning (256 pages).
const MAX_WRITE: u32 = 1 << 20;
/// Reads ahead and releases that may be in flight; the kernel's 12 starve read-ahead.
const MAX_BACKGROUND: u16 = 256;

// Not O_TRUNC together with OPEN (FUSE_ATOMIC_O_TRUNC): of a running program the kernel then finds out that it may not be cut after it was.
const WANTED: &[InitFlags] = &[
    // The umask comes as it is, since a default ACL replaces it.
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    // A listing whose entries nobody looks up costs no attributes.
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_ASYNC_DIO,
];

/// The answer to INIT.
///
/// # Errors
/// Where the kernel takes smaller requests only.
pub fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    for flag in WANTED {
        if config.add_capabilities(*flag).is_err() {
            tracing::warn!(?flag, "this kernel's FUSE lacks a feature");
        }
    }
    let refused = |what: &str, near| io::Error::other(format!("the kernel refuses {what}; it would take {near}"));
    config.set_max_write(MAX_WRITE).map_err(|n| refused("max_write", n))?;
    config.set_max_background(MAX_BACKGROUND).map_err(|n| refused("max_background", n.into()))?;
    config.set_congestion_threshold(MAX_BACKGROUND / 4 * 3).map_err(|n| refused("congestion_threshold", n.into()))?;
    Ok(())
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
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).at(DEVICE).map_err(|e| match e.kind() {
        ErrorKind::NotFound => e.hint("the kernel has no FUSE: modprobe fuse"),
        _ => e,
    })?;
    let device = OwnedFd::from(device);
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

/// fuser's session on a mounted descriptor: one reader thread. Answers INIT.
///
/// # Errors
/// Where the handshake fails.
pub fn session<F: Filesystem>(fs: F, device: OwnedFd, allow_other: bool) -> io::Result<Session<F>> {
    let (acl, config) = config(allow_other, Vec::new());
    Session::from_fd(fs, device, acl, config)
}

pub(super) fn config(allow_other: bool, mount_options: Vec<MountOption>) -> (SessionACL, Config) {
    let acl = || if allow_other { SessionACL::All } else { SessionACL::Owner };
    let mut config = Config::default();
    config.mount_options = mount_options;
    config.acl = acl();
    config.n_threads = Some(1);
    config.clone_fd = false;
    (acl(), config)
}

/// Sets the read-ahead of a mount; where that is not allowed the kernel's default stays.
pub fn read_ahead(mount: &MountEntry) {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", mount.major, mount.minor);
    if let Err(e) = std::fs::write(&path, READ_AHEAD_KIB) {
        tracing::debug!(path, error = %e, "the kernel's read-ahead stays at its default");
    }
}

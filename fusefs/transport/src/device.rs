//! `/dev/fuse` and what can be asked of it besides reading and writing.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Where the device is.
pub const PATH: &str = "/dev/fuse";

/// `struct fuse_backing_map`.
#[repr(C)]
pub struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

mod ioctls {
    nix::ioctl_read!(clone, 229, 0, u32);
    nix::ioctl_write_ptr!(backing_open, 229, 1, super::BackingMap);
    nix::ioctl_write_ptr!(backing_close, 229, 2, u32);
}

/// Opens the device, for mount(2) or to become a clone.
///
/// # Errors
/// NotFound where the kernel has no FUSE, PermissionDenied.
pub fn open() -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).write(true).open(PATH)?.into())
}

/// Another descriptor of the same connection, with a queue of its own for what it has read: the answer must go where the request
/// came from, and what is in it is lost with its last copy.
///
/// # Errors
/// Where `device` belongs to no mount.
pub fn clone(device: impl AsFd) -> io::Result<OwnedFd> {
    let new = open()?;
    let mut old = device.as_fd().as_raw_fd() as u32;
    // SAFETY: the argument is a number that the kernel reads (the direction in the ioctl's name is a slip of the protocol), and both
    // descriptors are open.
    unsafe { ioctls::clone(new.as_raw_fd(), &mut old) }?;
    Ok(new)
}

/// Makes `file` a backing file: an open that is answered with its number reads and writes it without us. The number must outlive
/// every open file that has it; it survives this process where the connection does. Needs CAP_SYS_ADMIN and
/// [`crate::abi::init::PASSTHROUGH`].
///
/// # Errors
/// As the kernel gives them: EPERM without the feature, EINVAL for what is no regular file, ELOOP for too deep a stack.
pub fn backing_open(device: impl AsFd, file: impl AsFd) -> io::Result<i32> {
    let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the argument lives through the call, which reads it; both descriptors are open.
    Ok(unsafe { ioctls::backing_open(device.as_fd().as_raw_fd(), &map) }?)
}

/// Ends what [`backing_open`] began, for later opens; files that are open keep it.
///
/// # Errors
/// ENOENT where the number is not in use.
pub fn backing_close(device: impl AsFd, id: i32) -> io::Result<()> {
    let id = id as u32;
    // SAFETY: as in `backing_open`.
    unsafe { ioctls::backing_close(device.as_fd().as_raw_fd(), &id) }?;
    Ok(())
}

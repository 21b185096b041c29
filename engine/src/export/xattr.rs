//! Setting extended attributes: the only unsafe code of the export, two system calls that no safe wrapper in the workspace offers.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an attribute of an open file or directory.
pub(super) fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the descriptor is borrowed, so open; `name` ends in a zero byte; `value` is readable for the length given.
    let done = unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an attribute of what a name in an open directory is, without following it.
pub(super) fn set_named(dir: BorrowedFd<'_>, file: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(file);
    let (path, name) = (CString::new(path)?, CString::new(name)?);
    // SAFETY: `path` and `name` end in a zero byte and `value` is readable for the length given; all outlive the call.
    let done = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

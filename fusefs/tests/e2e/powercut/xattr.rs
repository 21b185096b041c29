//! Extended attributes of a path: four system calls that no safe wrapper in the workspace offers.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Larger than all names, or any value, that the tests set.
const ROOM: usize = 4096;

fn path_of(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn filled(buffer: Vec<u8>, len: isize) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok(buffer[..len].to_vec())
}

pub fn set(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (path_of(path)?, CString::new(name)?);
    // SAFETY: both strings end in a zero byte and `value` is readable for its length; all outlive the call.
    let done = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub fn remove(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (path_of(path)?, CString::new(name)?);
    // SAFETY: both strings end in a zero byte and outlive the call.
    let done = unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The attributes in the user's name space.
pub fn user(path: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let path = path_of(path)?;
    let mut list = vec![0u8; ROOM];
    // SAFETY: the path ends in a zero byte and `list` is writable for its length; both outlive the call.
    let len = unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    let list = filled(list, len)?;
    let names = list.split_inclusive(|b| *b == 0).filter(|n| n.starts_with(b"user."));
    names
        .map(|name| {
            let name = CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
            let mut value = vec![0u8; ROOM];
            // SAFETY: both strings end in a zero byte and `value` is writable for its length; all outlive the call.
            let len = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
            Ok((name.to_string_lossy().into_owned(), filled(value, len)?))
        })
        .collect()
}

//! Extended attributes: which are kept, and reading them from an open file or a name in an open directory.
//!
//! The only unsafe code of the crate: four system calls that no safe wrapper in the workspace offers.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use hiloop_types::limits::{XATTR_LIST_MAX, XATTR_VALUE_MAX};
use hiloop_types::{Error, Result};

use crate::limits::XATTR_NAME_MAX;

/// Attributes that belong to a tree; the rest (labels, hashes of a security module) belong to the machine that it stood on.
pub(crate) fn kept(name: &[u8]) -> bool {
    name == b"security.capability" || [&b"user."[..], b"trusted.", b"system.posix_acl_"].iter().any(|prefix| name.starts_with(prefix))
}

/// The bounds of the kernel on one inode's attributes.
pub(crate) fn check(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
    let mut list = 0;
    for (name, value) in xattrs {
        list += name.len() + 1;
        if name.len() > XATTR_NAME_MAX || name.contains(&0) {
            return Err(Error::invalid("the name of an extended attribute is too long or holds a zero byte"));
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::exhausted(format!("an extended attribute of {} bytes, {XATTR_VALUE_MAX} are allowed", value.len())));
        }
    }
    if list > XATTR_LIST_MAX {
        return Err(Error::exhausted(format!("{list} bytes of extended attribute names, {XATTR_LIST_MAX} are allowed")));
    }
    Ok(())
}

/// What the attributes are read from.
pub(crate) enum Holder<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A path whose last component is not followed.
    Path(CString),
}

impl<'a> Holder<'a> {
    /// A name in an open directory, for what cannot or must not be opened (a link, a device, a fifo, a socket). The magic link leads to
    /// the directory that is open, whatever its name is by now.
    pub(crate) fn named(dir: BorrowedFd<'a>, name: &CStr) -> io::Result<Self> {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        Ok(Self::Path(CString::new(path)?))
    }

    /// The attributes that are kept. A file system without attributes has none.
    pub(crate) fn read(&self) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let list = match sized(|buf| self.list(buf)) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(BTreeMap::new()),
            other => other?,
        };
        let mut xattrs = BTreeMap::new();
        for name in list.split(|b| *b == 0).filter(|name| kept(name)) {
            let key = CString::new(name)?;
            match sized(|buf| self.value(&key, buf)) {
                Ok(value) => _ = xattrs.insert(name.to_vec(), value),
                // Removed in between; the file's changed ctime has it read again.
                Err(e) if e.raw_os_error() == Some(libc::ENODATA) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(xattrs)
    }

    fn list(&self, buf: &mut [u8]) -> io::Result<usize> {
        let length = match self {
            Self::Open(fd) => {
                // SAFETY: the descriptor is borrowed, so open, and `buf` is writable for the length given.
                unsafe { libc::flistxattr(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) }
            }
            Self::Path(path) => {
                // SAFETY: `path` ends in a zero byte and `buf` is writable for the length given; both outlive the call.
                unsafe { libc::llistxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
            }
        };
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    }

    fn value(&self, name: &CStr, buf: &mut [u8]) -> io::Result<usize> {
        let length = match self {
            Self::Open(fd) => {
                // SAFETY: the descriptor is borrowed, so open, `name` ends in a zero byte and `buf` is writable for the length given.
                unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
            }
            Self::Path(path) => {
                // SAFETY: `path` and `name` end in a zero byte and `buf` is writable for the length given; all outlive the call.
                unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
            }
        };
        usize::try_from(length).map_err(|_| io::Error::last_os_error())
    }
}

/// Calls with a small buffer, then with the largest that the kernel ever needs.
fn sized(mut call: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut small = [0_u8; 512];
    match call(&mut small) {
        Ok(length) => Ok(small[..length].to_vec()),
        Err(e) if e.raw_os_error() == Some(libc::ERANGE) => {
            let mut large = vec![0; XATTR_VALUE_MAX.max(XATTR_LIST_MAX)];
            let length = call(&mut large)?;
            large.truncate(length);
            Ok(large)
        }
        Err(e) => Err(e),
    }
}

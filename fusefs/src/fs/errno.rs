//! How a failure is shown to the caller of a system call: the one place that turns error kinds into errno.

use hiloop_engine::stop::Stop;
use hiloop_types::{Error, ErrorKind};

/// Why an operation did not finish.
#[derive(Debug)]
pub enum FsError {
    /// The answer: a positive errno.
    Errno(i32),
    /// Not in memory (fetch and run again), or the engine failed (see [`errno`]).
    Stop(Stop),
}

/// Result of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

impl From<Stop> for FsError {
    fn from(s: Stop) -> Self {
        Self::Stop(s)
    }
}

impl From<Error> for FsError {
    fn from(e: Error) -> Self {
        Self::Stop(Stop::Error(e))
    }
}

/// The errno for an engine failure.
///
/// An object missing in the store is an I/O error: ENOENT would be cached by the kernel as "there is no such file". A fenced or
/// closed workspace gives EIO too, since EROFS would promise that nothing was accepted before; mounts that were read-only from
/// the start never get here with a change.
pub fn errno(e: &Error) -> i32 {
    match e.kind() {
        ErrorKind::Exhausted => libc::ENOSPC,
        ErrorKind::NotFound
        | ErrorKind::Invalid
        | ErrorKind::Conflict
        | ErrorKind::Fenced
        | ErrorKind::Unavailable
        | ErrorKind::Corrupt
        | ErrorKind::Closed
        | ErrorKind::Denied
        | ErrorKind::Internal => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_or_quota_is_not_an_io_error() {
        assert_eq!(errno(&Error::exhausted("node disk")), libc::ENOSPC);
        for kind in [ErrorKind::NotFound, ErrorKind::Unavailable, ErrorKind::Corrupt, ErrorKind::Fenced, ErrorKind::Closed] {
            assert_eq!(errno(&Error::new(kind, "x")), libc::EIO, "{kind:?}");
        }
    }
}

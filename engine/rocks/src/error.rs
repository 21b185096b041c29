//! RocksDB's messages as the engine's error kinds.

use hiloop_types::{Error, ErrorKind};

pub(crate) fn translate(err: rocksdb::Error) -> Error {
    let kind = err.kind();
    classify(kind, err.into_string())
}

fn classify(kind: rocksdb::ErrorKind, message: String) -> Error {
    use rocksdb::ErrorKind as K;
    let full = message.contains("No space left on device") || message.contains("Disk quota exceeded");
    match kind {
        _ if full => Error::new(ErrorKind::Exhausted, message).hint("free space on the file system of the cache directory"),
        K::IOError if message.contains("lock") && message.contains("LOCK") => {
            Error::new(ErrorKind::Conflict, message).hint("another process has this cache directory open")
        }
        K::IOError if message.contains("Permission denied") => Error::new(ErrorKind::Denied, message),
        K::NotFound => Error::new(ErrorKind::NotFound, message),
        K::Corruption => Error::new(ErrorKind::Corrupt, message),
        K::InvalidArgument | K::NotSupported => Error::new(ErrorKind::Invalid, message),
        K::Busy | K::TryAgain | K::TimedOut => Error::new(ErrorKind::Unavailable, message),
        K::ShutdownInProgress | K::Aborted => Error::new(ErrorKind::Closed, message),
        K::IOError | K::MergeInProgress | K::Incomplete | K::Expired | K::CompactionTooLarge | K::ColumnFamilyDropped | K::Unknown => {
            Error::new(ErrorKind::Internal, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_tell_what_to_do() {
        use rocksdb::ErrorKind as K;
        let kind = |k, m: &str| classify(k, m.to_owned()).kind();
        assert_eq!(kind(K::IOError, "IO error: No space left on device: While appending to file: /x/000012.sst"), ErrorKind::Exhausted);
        assert_eq!(kind(K::IOError, "IO error: While lock file: /x/LOCK: Resource temporarily unavailable"), ErrorKind::Conflict);
        assert_eq!(
            kind(K::IOError, "IO error: lock hold by current process, acquire time 1 acquiring thread 2: /x/LOCK: No locks available"),
            ErrorKind::Conflict
        );
        assert_eq!(kind(K::IOError, "IO error: While open a file for random read: /x/1.sst: Input/output error"), ErrorKind::Internal);
        assert_eq!(kind(K::Corruption, "Corruption: block checksum mismatch"), ErrorKind::Corrupt);
        assert_eq!(kind(K::ShutdownInProgress, "Shutdown in progress: "), ErrorKind::Closed);
    }
}

//! The seam to the node disk: the few operations that the journal needs, with their durability spelt out, so that
//! [`crate::SimDisk`] can lose exactly what a real disk may lose.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A file system. Creation and removal of names are durable only after [`Disk::sync_dir`] of the parent.
pub trait Disk: Send + Sync {
    /// Creates a directory unless it exists; the parent must exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a new empty file; fails if the name exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Names of the files in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// An open file. Writes are visible to later reads at once and durable only after [`DiskFile::sync_data`].
pub trait DiskFile: Send + Sync {
    /// Reads up to `out.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;
    /// As [`DiskFile::read_at`], but answers `None` when it would wait for the device.
    fn read_at_nowait(&self, out: &mut [u8], offset: u64) -> io::Result<Option<usize>>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Reserves space so that the file is `len` bytes long and reads as zeros where nothing was written.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes data and length durable. After an error the state of the pages is unknown.
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match std::fs::create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).create_new(true).open(path)?)))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if let (true, Ok(name)) = (entry.file_type()?.is_file(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.0.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
    fn read_at_nowait(&self, out: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let vec = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        // SAFETY: the vector names `out`, which is exclusively borrowed for the call, and the descriptor is open while `self` lives.
        let n = unsafe { libc::preadv2(self.0.as_raw_fd(), &raw const vec, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
        if n >= 0 {
            return Ok(Some(n as usize));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // A file system without RWF_NOWAIT cannot promise not to wait.
            Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINTR) => Ok(None),
            _ => Err(error),
        }
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        match nix::fcntl::fallocate(&self.0, nix::fcntl::FallocateFlags::empty(), 0, len as libc::off_t) {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::EOPNOTSUPP) => self.0.set_len(len),
            Err(e) => Err(e.into()),
        }
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

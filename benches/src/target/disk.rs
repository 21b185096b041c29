//! The disk's own file system, that all others are compared with.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};
use nix::unistd::syncfs;

use super::Target;
use crate::tree::make_directory;

/// A plain directory.
pub struct Disk {
    root: PathBuf,
    device: u64,
    handle: File,
}

impl Disk {
    /// A new directory below `scratch`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(scratch: &Path) -> Result<Self> {
        let root = scratch.join("disk");
        make_directory(&root)?;
        let handle = File::open(&root).map_err(|e| Error::io(root.display(), &e))?;
        let device = handle.metadata().map_err(|e| Error::io(root.display(), &e))?.dev();
        Ok(Self { root, device, handle })
    }
}

impl Target for Disk {
    fn id(&self) -> &str {
        "ext4"
    }
    fn root(&self) -> &Path {
        &self.root
    }
    fn pids(&self) -> Vec<i32> {
        Vec::new()
    }
    fn check(&self) -> Result<()> {
        let now = std::fs::metadata(&self.root).map_err(|e| Error::io(self.root.display(), &e))?.dev();
        if now == self.device { Ok(()) } else { Err(Error::internal("something was mounted over it").at(self.root.display())) }
    }
    /// Writes back what the disk's file system holds, for everybody: all targets keep their data on it.
    fn drain(&mut self) -> Result<Option<f64>> {
        syncfs(self.handle.as_fd()).map_err(|e| Error::io(self.root.display(), &e.into()))?;
        Ok(None)
    }
    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

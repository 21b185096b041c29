//! The directory that everything of a run is made in.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};

use crate::mounts::{detach, mounted_below};
use crate::tree::make_directory;

/// A directory that is removed with its value.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(path: PathBuf) -> Result<Self> {
        make_directory(&path)?;
        path.canonicalize().map(Self).map_err(|e| Error::io(path.display(), &e))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is still mounted would be emptied, not removed.
        mounted_below(&self.0).iter().rev().for_each(|at| detach(at));
        if let Err(e) = fs::remove_dir_all(&self.0) {
            let _ = writeln!(std::io::stderr(), "warning: {} stays behind: {e}", self.0.display());
        }
    }
}

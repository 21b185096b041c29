//! The null file system (see [`crate::floor`]) as a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hiloop_types::{Error, Result};

use super::{Requests, Target};
use crate::mounts::{check_fuse, detach};
use crate::tree::make_directory;

/// The floor.
pub struct Floor {
    root: PathBuf,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Floor {
    /// Mounts it below `scratch`.
    ///
    /// # Errors
    /// Where it cannot be started or mounted.
    pub fn new(scratch: &Path) -> Result<Self> {
        let root = scratch.join("floor.mnt");
        make_directory(&root)?;
        let me = std::env::current_exe().map_err(|e| Error::io("this program", &e))?;
        let mut command = Command::new(me);
        command.arg("floor").arg(&root).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::io("the floor", &e))?;
        let to = child.stdin.take();
        let Some(from) = child.stdout.take() else { return Err(Error::internal("no pipe from the floor")) };
        let mut this = Self { root, child, to, from: BufReader::new(from) };
        this.line()?;
        check_fuse(&this.root)?;
        Ok(this)
    }

    fn line(&mut self) -> Result<Requests> {
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|e| Error::io("the floor", &e))?;
        serde_json::from_str(&line).map_err(|e| Error::internal(format!("the floor said {line:?}: {e}")))
    }
}

impl Target for Floor {
    fn id(&self) -> &str {
        "floor"
    }
    fn root(&self) -> &Path {
        &self.root
    }
    fn pids(&self) -> Vec<i32> {
        vec![self.child.id() as i32]
    }
    fn requests(&mut self) -> Result<Option<Requests>> {
        if let Some(to) = &mut self.to {
            to.write_all(b"\n").map_err(|e| Error::io("the floor", &e))?;
        }
        self.line().map(Some)
    }
    fn end(mut self: Box<Self>) -> Result<()> {
        self.to = None;
        let status = self.child.wait().map_err(|e| Error::io("the floor", &e))?;
        if status.success() { Ok(()) } else { Err(Error::internal(format!("the floor ended with {status}"))) }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        if self.to.take().is_some() {
            detach(&self.root);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

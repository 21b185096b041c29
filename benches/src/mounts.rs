//! Mounts that go away with their values, also when a step fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_types::{Error, Result};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{Tool, number, run};
use crate::tree::make_directory;

/// How long a daemon is waited for after its last mount went, before it is killed.
const DAEMON_LEAVES: u32 = 150;

/// The file system type mounted on exactly `at`, if one is.
///
/// # Errors
/// What the operating system says.
pub fn mounted_type(at: &Path) -> Result<Option<String>> {
    let path = "/proc/self/mountinfo";
    let text = fs::read_to_string(path).map_err(|e| Error::io(path, &e))?;
    let of = |line: &str| {
        let (mount, fs) = line.split_once(" - ")?;
        (mount.split(' ').nth(4)? == at.to_str()?).then(|| fs.split(' ').next().unwrap_or_default().to_owned())
    };
    Ok(text.lines().filter_map(of).next_back())
}

/// # Errors
/// `Internal` where no FUSE file system is mounted on `at`: figures of the directory below would look splendid.
fn check_fuse(at: &Path) -> Result<()> {
    match mounted_type(at)? {
        Some(kind) if kind.starts_with("fuse") => Ok(()),
        other => Err(Error::internal(format!("not a FUSE mount but {other:?}")).at(at.display())),
    }
}

fn detach(at: &Path) {
    // Root's way, then everybody's; what is not mounted any more needs neither.
    if umount2(at, MntFlags::MNT_DETACH).is_err() {
        let _ = run(Path::new("fusermount3"), &["-uz".as_ref(), at.as_os_str()], Path::new("/"), &[], None);
    }
}

/// A mounted workspace with a daemon of its own.
pub struct Mounted {
    tool: Tool,
    /// Name of the workspace.
    pub workspace: String,
    /// Where it is mounted.
    pub at: PathBuf,
    /// The node's directory.
    pub cache: PathBuf,
    /// The daemon.
    pub pid: i32,
}

impl Mounted {
    /// Mounts `workspace` with a fresh cache directory.
    ///
    /// # Errors
    /// As the command; `Internal` where nothing is mounted afterwards.
    pub fn fresh(tool: &Tool, workspace: &str) -> Result<Self> {
        let (at, cache) = (tool.dir.join(format!("{workspace}.mnt")), tool.dir.join(format!("{workspace}.node")));
        make_directory(&at)?;
        let args =
            ["mount".as_ref(), "--workspace".as_ref(), workspace.as_ref(), "--cache-dir".as_ref(), cache.as_os_str(), at.as_os_str()];
        let answer = tool.json(&args)?;
        let pid = number(&answer, "/pid")? as i32;
        let this = Self { tool: tool.clone(), workspace: workspace.to_owned(), at, cache, pid };
        check_fuse(&this.at)?;
        Ok(this)
    }

    fn ask(&self, command: &str) -> Result<Value> {
        self.tool.json(&[command.as_ref(), "--cache-dir".as_ref(), self.cache.as_os_str(), self.workspace.as_ref()])
    }
    /// Its status.
    ///
    /// # Errors
    /// As the command.
    pub fn status(&self) -> Result<Value> {
        self.ask("status")
    }
    /// Publishes everything.
    ///
    /// # Errors
    /// As the command.
    pub fn flush(&self) -> Result<Value> {
        self.ask("flush")
    }
    /// Unmounts and waits for the daemon to end.
    ///
    /// # Errors
    /// As the command; `Internal` where something is mounted afterwards or the daemon stays.
    pub fn unmount(self) -> Result<()> {
        self.ask("unmount")?;
        if let Some(kind) = mounted_type(&self.at)? {
            return Err(Error::internal(format!("still mounted ({kind})")).at(self.at.display()));
        }
        end(self.pid).then_some(()).ok_or_else(|| Error::internal(format!("daemon {} does not end", self.pid)))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(mounted_type(&self.at), Ok(Some(_))) {
            detach(&self.at);
        }
        if !end(self.pid) && is_ours(self.pid, &self.cache) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

/// Whether `pid` still is the daemon of this cache directory: numbers are used again.
fn is_ours(pid: i32, cache: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).any(|arg| arg == cache.as_os_str().as_encoded_bytes())
}

/// Waits for a daemon that has nothing mounted any more; says whether it ended.
fn end(pid: i32) -> bool {
    for _ in 0..DAEMON_LEAVES {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// A directory seen through bindfs.
pub struct Bindfs {
    /// Where it is mounted.
    pub at: PathBuf,
}

impl Bindfs {
    /// Mounts `below` on `at` with bindfs's own defaults.
    ///
    /// # Errors
    /// As the command; `Internal` where nothing is mounted afterwards.
    pub fn new(below: &Path, at: &Path) -> Result<Self> {
        make_directory(below)?;
        make_directory(at)?;
        run(Path::new("bindfs"), &[below, at], Path::new("/"), &[], None)?;
        let this = Self { at: at.to_owned() };
        check_fuse(at)?;
        Ok(this)
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        detach(&self.at);
    }
}

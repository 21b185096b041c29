//! Mounts that go away with their values, also when a step fails.

use std::ffi::OsStr;
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

/// The mount that a path lies in.
pub struct MountOf {
    /// Device number as MAJOR:MINOR.
    pub device: String,
    /// File system type.
    pub kind: String,
    /// Device or other source.
    pub source: String,
}

/// Finds the mount with the longest path that holds `path`; none where `/proc` says nothing.
pub fn mount_of(path: &Path) -> Option<MountOf> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let of = |line: &str| {
        let (mount, fs) = line.split_once(" - ")?;
        let (mut mount, mut fs) = (mount.split(' ').skip(2), fs.split(' '));
        let (device, at) = (mount.next()?, mount.nth(1)?);
        let found = MountOf { device: device.to_owned(), kind: fs.next()?.to_owned(), source: fs.next()?.to_owned() };
        path.starts_with(at).then_some((at.len(), found))
    };
    // Of several on one path the last is the visible one, and `max_by_key` returns the last.
    text.lines().filter_map(of).max_by_key(|(length, _)| *length).map(|(_, found)| found)
}

/// Mount points below a directory, in the order in which they were mounted.
pub fn mounted_below(dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|at| at.starts_with(dir) && at != dir).collect()
}

/// # Errors
/// `Internal` where no FUSE file system is mounted on `at`: figures of the directory below would look splendid.
pub fn check_fuse(at: &Path) -> Result<()> {
    match mounted_type(at)? {
        Some(kind) if kind.starts_with("fuse") => Ok(()),
        other => Err(Error::internal(format!("not a FUSE mount but {other:?}")).at(at.display())),
    }
}

/// Takes a mount away, also one whose server hangs.
pub fn detach(at: &Path) {
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
        let cache = tool.dir.join(format!("{workspace}.node"));
        Self::with(tool, workspace, cache, &[])
    }

    /// Mounts `workspace` below the run's directory with a cache directory that may have a daemon already, and with further flags.
    ///
    /// # Errors
    /// As [`Mounted::fresh`].
    pub fn with(tool: &Tool, workspace: &str, cache: PathBuf, flags: &[&str]) -> Result<Self> {
        let at = tool.dir.join(format!("{workspace}.mnt"));
        make_directory(&at)?;
        let fixed = ["mount", "--workspace", workspace, "--cache-dir"].map(OsStr::new);
        let last = [cache.as_os_str(), at.as_os_str()];
        let args: Vec<&OsStr> = fixed.into_iter().chain(last).chain(flags.iter().map(OsStr::new)).collect();
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
    /// Unmounts one of several workspaces of a daemon, which lives on.
    ///
    /// # Errors
    /// As the command; `Internal` where something is mounted afterwards.
    pub fn leave(mut self) -> Result<()> {
        self.take_away()?;
        // Nothing is left to do when this value goes.
        self.pid = 0;
        Ok(())
    }
    fn take_away(&self) -> Result<()> {
        self.ask("unmount")?;
        match mounted_type(&self.at)? {
            Some(kind) => Err(Error::internal(format!("still mounted ({kind})")).at(self.at.display())),
            None => Ok(()),
        }
    }
    /// Unmounts and waits for the daemon to end.
    ///
    /// # Errors
    /// As the command; `Internal` where something is mounted afterwards or the daemon stays.
    pub fn unmount(self) -> Result<()> {
        self.take_away()?;
        end(self.pid).then_some(()).ok_or_else(|| Error::internal(format!("daemon {} does not end", self.pid)))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(mounted_type(&self.at), Ok(Some(_))) {
            detach(&self.at);
        }
        if self.pid != 0 && !end(self.pid) && is_ours(self.pid, &self.cache) {
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

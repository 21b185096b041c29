//! Others who mount an object store, each with its own defaults over files of the same disk; and bindfs.

use std::path::{Path, PathBuf};
use std::process::Command;

use hiloop_types::{Error, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Target, missing};
use crate::mounts::{check_fuse, detach, mounted_type};
use crate::process::family;
use crate::run::run;
use crate::store::{Service, await_that, free_port};
use crate::tree::make_directory;

/// Where the peers' programs are: a directory that holds `juicefs`, `weed` and `rclone`.
#[derive(Clone, Debug)]
pub struct Peers(pub PathBuf);

impl Peers {
    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        if path.is_file() { Ok(path) } else { Err(missing(name, "./dev bench full installs it")) }
    }
}

/// A mount that programs serve in the foreground, and its end.
struct Served {
    root: PathBuf,
    services: Vec<Service>,
}

impl Served {
    fn wait(root: PathBuf, mut services: Vec<Service>) -> Result<Self> {
        await_that(&format!("the mount on {}", root.display()), || {
            services.iter_mut().any(Service::ended) || matches!(mounted_type(&root), Ok(Some(kind)) if kind.starts_with("fuse"))
        })?;
        let this = Self { root, services };
        check_fuse(&this.root)?;
        Ok(this)
    }
    fn pids(&self) -> Vec<i32> {
        self.services.iter().flat_map(|s| family(s.pid()).unwrap_or_default()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Those that they started go too: recorded before their parents end.
        let pids = self.pids();
        detach(&self.root);
        self.services.clear();
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

macro_rules! target {
    ($type:ty, $id:expr) => {
        impl Target for $type {
            fn id(&self) -> &str {
                $id(self)
            }
            fn root(&self) -> &Path {
                &self.0.root
            }
            fn pids(&self) -> Vec<i32> {
                self.0.pids()
            }
            // Each has rules of its own for the times of files: content, names and modes are compared.
            fn keeps_times(&self) -> bool {
                false
            }
            fn end(self: Box<Self>) -> Result<()> {
                Ok(())
            }
        }
    };
}

/// A directory of the disk through bindfs.
pub struct Bindfs(Served);

impl Bindfs {
    /// Mounts it below `scratch` with bindfs's own defaults.
    ///
    /// # Errors
    /// Where it is not installed or does not mount.
    pub fn new(scratch: &Path) -> Result<Self> {
        let (below, root) = (scratch.join("bindfs.below"), scratch.join("bindfs.mnt"));
        make_directory(&below)?;
        make_directory(&root)?;
        let mut command = Command::new("bindfs");
        command.arg("-f").arg(&below).arg(&root);
        let service = Service::start(&mut command, &scratch.join("bindfs.log")).map_err(|e| e.hint("./dev bench installs bindfs"))?;
        Served::wait(root, vec![service]).map(Self)
    }
}

target!(Bindfs, |_| "bindfs");

/// JuiceFS over SQLite and files.
pub struct Juicefs(Served, bool);

impl Juicefs {
    /// Formats and mounts it below `scratch`; with `writeback` data are uploaded after close.
    ///
    /// # Errors
    /// Where it is not installed, cannot be formatted or does not mount.
    pub fn new(peers: &Peers, scratch: &Path, writeback: bool) -> Result<Self> {
        let program = peers.program("juicefs")?;
        let dir = scratch.join(if writeback { "juicefs-writeback" } else { "juicefs" });
        let (root, cache) = (dir.join("mnt"), dir.join("cache"));
        make_directory(&root)?;
        let meta = format!("sqlite3://{}", dir.join("meta.db").display());
        let bucket = format!("{}/", dir.join("objects").display());
        let format = ["format", "--no-update", "--storage", "file", "--bucket", &bucket, "--trash-days", "0", &meta, "bench"];
        run(&program, &format, &dir, &[], None)?;
        let mut command = Command::new(&program);
        command.args(["mount", "--no-usage-report", "--no-syslog", "--cache-dir"]).arg(&cache);
        if writeback {
            command.arg("--writeback");
        }
        command.arg(&meta).arg(&root);
        let service = Service::start(&mut command, &dir.join("mount.log"))?;
        Ok(Self(Served::wait(root, vec![service])?, writeback))
    }
}

target!(Juicefs, |this: &Juicefs| if this.1 { "juicefs-writeback" } else { "juicefs" });

/// SeaweedFS: master, volume server and filer in one process, and its mount.
pub struct Seaweedfs(Served);

impl Seaweedfs {
    /// Starts and mounts it below `scratch`.
    ///
    /// # Errors
    /// Where it is not installed or does not mount.
    pub fn new(peers: &Peers, scratch: &Path) -> Result<Self> {
        let program = peers.program("weed")?;
        let dir = scratch.join("seaweedfs");
        let (root, data) = (dir.join("mnt"), dir.join("data"));
        make_directory(&root)?;
        make_directory(&data)?;
        let ports: Vec<u16> = (0..6).map(|_| free_port()).collect::<Result<_>>()?;
        let flag = |name: &str, port: u16| format!("-{name}={port}");
        let mut command = Command::new(&program);
        command.args(["server", "-filer", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=100", "-master.volumeSizeLimitMB=256"]);
        command.arg(format!("-dir={}", data.display()));
        command.args([flag("master.port", ports[0]), flag("volume.port", ports[1]), flag("filer.port", ports[2])]);
        command.args([flag("master.port.grpc", ports[3]), flag("volume.port.grpc", ports[4]), flag("filer.port.grpc", ports[5])]);
        // Its filer keeps its database where it runs.
        command.current_dir(&dir);
        let mut server = Service::start(&mut command, &dir.join("server.log"))?;
        let filer = format!("127.0.0.1:{}", ports[2]);
        await_that("the filer", || server.ended() || std::net::TcpStream::connect(&filer).is_ok())?;
        let mut command = Command::new(&program);
        command.arg("mount").arg(format!("-filer={filer}.{}", ports[5])).arg(format!("-dir={}", root.display()));
        command.arg(format!("-cacheDir={}", dir.join("cache").display())).current_dir(&dir);
        let mount = Service::start(&mut command, &dir.join("mount.log"))?;
        Served::wait(root, vec![mount, server]).map(Self)
    }
}

target!(Seaweedfs, |_| "seaweedfs");

/// rclone over a directory, with its cache for reads and writes.
pub struct Rclone(Served);

impl Rclone {
    /// Mounts it below `scratch`.
    ///
    /// # Errors
    /// Where it is not installed or does not mount.
    pub fn new(peers: &Peers, scratch: &Path) -> Result<Self> {
        let program = peers.program("rclone")?;
        let dir = scratch.join("rclone");
        let (root, objects) = (dir.join("mnt"), dir.join("objects"));
        make_directory(&root)?;
        make_directory(&objects)?;
        let mut command = Command::new(&program);
        command.arg("mount").arg(format!(":local:{}", objects.display())).arg(&root);
        command.args(["--vfs-cache-mode", "full", "--config", "/dev/null", "--cache-dir"]).arg(dir.join("cache"));
        let service = Service::start(&mut command, &dir.join("mount.log"))?;
        Served::wait(root, vec![service]).map(Self)
    }
}

target!(Rclone, |_| "rclone");

/// Says which version of a peer is there.
///
/// # Errors
/// Where it is not installed.
pub fn version(peers: &Peers, name: &str) -> Result<String> {
    let program = peers.program(name)?;
    let said = run(&program, &["version"], Path::new("/"), &[], None)?;
    said.lines().next().map(str::to_owned).ok_or_else(|| Error::internal(format!("{name} names no version")))
}

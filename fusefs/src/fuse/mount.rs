//! Mounting and unmounting.
//!
//! Root mounts by itself and hands the descriptor over; others go through fusermount3. The state of a mount is read from
//! mountinfo and from the serving thread, never by looking into the mount: that would block where it hangs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hiloop_control::mountinfo;
use hiloop_engine::workspace::Workspace;
use hiloop_env::Env;
use hiloop_transport::{Config, Ended, InitState, Session, Spinners};
use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use parking_lot::{Condvar, Mutex};

use super::adapter::Adapter;
use super::core::Core;
use super::keep::{Keep, Left};
use super::kernel::{self, Access};
use super::stats::FuseStats;
use super::workers::Workers;
use super::{FSTYPE, helper};
use crate::fs::FsError;
use crate::fs::orphan::References;

/// How requests reach the data (design.md 5). Profiles with opens that need no request and with passthrough come later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Every open is a request; pages stay cached across opens; writes go through.
    #[default]
    Standard,
}

/// Where and how to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// An empty directory, as [`check_mountpoint`] returns it.
    pub mountpoint: PathBuf,
    /// Refuse changes with EROFS. Always so for a workspace that is attached read-only.
    pub read_only: bool,
    /// Let other users in; root's mounts should, ordinary users need `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// Set-user-id bits have no effect (a root mount only; fusermount3 always mounts so).
    pub nosuid: bool,
    /// Data path.
    pub profile: Profile,
    /// Clock.
    pub env: Env,
    /// Threads for requests that cannot be answered at once.
    pub workers: Arc<Workers>,
    /// Which reader polls on which CPU; the same for all mounts of a process.
    pub spinners: Spinners,
    /// Who keeps the mount when the daemon ends.
    pub keep: Option<Keep>,
}

/// Readers of a mount, which run where the scheduler puts them: woken by a caller that then waits, beside it. One for each CPU and bound to
/// it answers sooner on an idle machine, and waits for its CPU on a busy one (docs/decisions/0008).
const READERS: usize = 1;
/// Bytes of a reader's buffer that take up memory before a request needs more: what most requests are. There is one for each reader of
/// each mount, and most mounts are idle.
const RESIDENT: usize = 16 << 10;

/// How an unmount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is gone.
    Done,
    /// It is out of the directory tree, but processes still have files open in it; it is served until they close them.
    Detached,
}

/// A mounted workspace. Dropping the handle leaves the mount as it is; the end of the process ends it.
#[derive(Clone)]
pub struct Mount(Arc<Inner>);

struct Inner {
    mountpoint: PathBuf,
    core: Arc<Core>,
    /// Number of the FUSE connection.
    connection: Option<u32>,
    served: Mutex<Served>,
    ended: Condvar,
    /// Holds the descriptors of the mount, so it goes when serving ends: the kernel must see that nobody answers any more.
    session: Mutex<Option<Arc<Session>>>,
    keep: Option<Keep>,
}

enum Served {
    Running,
    Ended(Result<()>),
}

/// Checks that `path` can be mounted on and returns it absolute, without symbolic links.
///
/// # Errors
/// Conflict (one of our mounts is there), NotFound, Invalid (no directory, or not empty). Nothing is changed.
pub fn check_mountpoint(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).at(path.display())?;
    refuse_mounted(&absolute)?;
    let resolved = absolute.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::not_found("the mount point does not exist").at(path.display()).hint(format!("create it: mkdir -p {}", path.display()))
        }
        _ => Error::io(path.display(), &e),
    })?;
    refuse_mounted(&resolved)?;
    let mut entries = match std::fs::read_dir(&resolved) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::invalid("the mount point is not a directory").at(path.display()));
        }
        other => other.at(path.display())?,
    };
    if entries.next().is_some() {
        return Err(Error::invalid("the mount point is not empty")
            .at(path.display())
            .hint("what is in it would be hidden; mount on an empty directory"));
    }
    Ok(resolved)
}

fn refuse_mounted(path: &Path) -> Result<()> {
    match mountinfo::find(path)? {
        Some(m) if m.is_ours() => Err(Error::conflict(format!("{} is mounted here already", m.source))
            .at(path.display())
            .hint(format!("unmount it first: sandbox-workspace unmount {0} (or, if its daemon is dead: umount -l {0})", path.display()))),
        _ => Ok(()),
    }
}

/// Mounts `ws` and serves it from threads of its own. On return the kernel has the answer to its first request.
///
/// # Errors
/// Denied (may not mount; no fusermount3), NotFound (no /dev/fuse), Conflict (mounted already), others as the system gives them.
pub fn mount(ws: Workspace, options: MountOptions) -> Result<Mount> {
    let (mountpoint, access) = (&options.mountpoint, options.access(&ws));
    refuse_mounted(mountpoint)?;
    let source = format!("hiloop:{}", ws.name());
    let device = if nix::unistd::geteuid().is_root() {
        kernel::attach(mountpoint, &source, FSTYPE, access)?
    } else {
        helper::mount(mountpoint, &source, access.read_only, access.allow_other).map_err(|e| {
            Error::io("mount through fusermount3", &e)
                .at(mountpoint.display())
                .hint("ordinary users need the package fuse3 and read and write access to /dev/fuse (mode 666); or mount as root")
        })?
    };
    let entry = mountinfo::find(mountpoint)?.filter(mountinfo::MountEntry::is_ours);
    let connection = entry.as_ref().map(|m| m.minor);
    let core = Core::new(ws, options.env.clone(), options.workers.clone(), access.read_only, References::default());
    let record = |init: &InitState, devices: &[OwnedFd]| match &options.keep {
        Some(keep) => keep.hold(connection, mountpoint, &core.ws, init, devices),
        None => Ok(()),
    };
    let session = Session::start(vec![device], Arc::new(Adapter::new(core.clone())), options.config(), record).map_err(|e| {
        if let Err(left) = detach(mountpoint) {
            tracing::warn!(error = %left, "a mount that does not work is left behind");
        }
        Error::io("FUSE handshake", &e).at(mountpoint.display())
    })?;
    if let Some(m) = &entry {
        kernel::read_ahead(m);
    }
    Mount::begin(options, core, connection, session)
}

/// Goes on serving a mount whose daemon is gone. What it had in hand comes again.
///
/// # Errors
/// Conflict where `ws` is another opening than the one that made the mount; Unavailable where the mount is gone.
pub fn take_over(ws: Workspace, left: Left, options: MountOptions) -> Result<Mount> {
    let at = options.mountpoint.display().to_string();
    if !left.is_of(&ws) {
        return Err(Error::conflict(format!("workspace {} was opened anew since it was mounted", ws.name())).at(at));
    }
    let read_only = options.access(&ws).read_only;
    let next = ws.update(|tx| tx.new_ino().map_err(FsError::Stop)).map_err(|e| Error::internal(format!("no inode number: {e:?}")))?.0;
    let core = Core::new(ws, options.env.clone(), options.workers.clone(), read_only, References::of_a_mount_before(next));
    let connection = left.connection;
    let session = Session::resume(left.devices, left.init, Arc::new(Adapter::new(core.clone())), options.config())
        .map_err(|e| Error::io("take over a FUSE connection", &e).at(at))?;
    Mount::begin(options, core, Some(connection), session)
}

impl MountOptions {
    fn access(&self, ws: &Workspace) -> Access {
        Access { read_only: self.read_only || ws.is_read_only(), allow_other: self.allow_other, nosuid: self.nosuid }
    }

    fn config(&self) -> Config {
        // A request whose reader dies while the kernel copies it to memory that is not there is lost to every successor.
        let resident = if self.keep.is_some() { usize::MAX } else { RESIDENT };
        let (init, spinners) = (kernel::init_config(), self.spinners.clone());
        Config { init, readers: READERS, pin: false, resident, spinners, ..Config::new(self.env.clone()) }
    }
}

/// Takes whatever is mounted at `path` out of the directory tree, also a mount whose daemon is dead.
///
/// # Errors
/// Invalid where nothing is mounted, Denied.
pub fn detach(path: &Path) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        let e = match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::EINVAL) => Error::invalid("nothing is mounted here"),
            Err(e) => Error::io("umount", &e.into()),
        };
        return Err(e.at(path.display()));
    }
    fusermount(path, true)
}

fn fusermount(path: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    let output = command.output().at("fusermount3")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if said.contains("busy") { ErrorKind::Conflict } else { ErrorKind::Denied };
    Err(Error::new(kind, said).at(path.display()))
}

impl Mount {
    fn begin(options: MountOptions, core: Arc<Core>, connection: Option<u32>, session: Session) -> Result<Self> {
        let MountOptions { mountpoint, keep, .. } = options;
        let session = Arc::new(session);
        let served = Mutex::new(Served::Running);
        let inner = Inner { mountpoint, core, connection, served, ended: Condvar::new(), session: Mutex::new(Some(session.clone())), keep };
        let mount = Self(Arc::new(inner));
        mount.forget_when_fenced();
        mount.watch(session)?;
        Ok(mount)
    }

    /// True where it outlives the daemon.
    pub fn is_kept(&self) -> bool {
        self.0.keep.is_some()
    }

    /// Stops reading requests, and waits until what was taken is answered, at most `patience`. The mount stays, for a successor.
    pub fn stop(&self, patience: Duration) {
        let Some(session) = self.0.session.lock().clone() else { return };
        session.stop();
        let until = self.0.core.env.monotonic() + patience;
        // What waits for something else than this moment waits on: it comes again to whoever takes over.
        while session.in_hand() as u64 > self.0.core.waiting() && self.0.core.env.monotonic() < until {
            std::thread::yield_now();
        }
    }

    /// Has a thread wait for the end of the session.
    fn watch(&self, session: Arc<Session>) -> Result<()> {
        let mount = self.clone();
        let watch = move || {
            let ended = session.wait();
            drop(session);
            let mountpoint = mount.0.mountpoint.display();
            tracing::info!(%mountpoint, ?ended, "mount ended");
            if let (Some(keep), false) = (&mount.0.keep, ended == Ended::Stopped) {
                keep.release(mount.0.connection);
            }
            let result = match ended {
                Ended::Unmounted => Ok(()),
                // The process ends; parked requests must not be answered any more.
                Ended::Stopped => return,
                Ended::Aborted => Err(Error::closed("the connection of the mount was cut").at(mountpoint)),
                Ended::Failed(why) => {
                    // Whoever waits gets an error now, not when the last parked reply lets go of the descriptor.
                    if let Err(e) = mount.abort() {
                        tracing::warn!(error = %e, "the connection could not be cut");
                    }
                    Err(Error::internal(why).at(mountpoint))
                }
            };
            *mount.0.session.lock() = None;
            mount.0.core.reap_all();
            *mount.0.served.lock() = Served::Ended(result);
            mount.0.ended.notify_all();
        };
        std::thread::Builder::new().name("fuse-watch".into()).spawn(watch).at("thread fuse-watch")?;
        Ok(())
    }

    /// Once another session owns the workspace, what the kernel remembers is dropped; the engine calls from a thread of its own.
    fn forget_when_fenced(&self) {
        let mount = Arc::downgrade(&self.0);
        self.0.core.ws.on_fenced(move || {
            let Some(mount) = mount.upgrade() else { return };
            // Not under the lock: the kernel may hold a notification up until a request is answered.
            let Some(notifier) = mount.session.lock().as_ref().map(|s| s.notifier()) else { return };
            if mount.core.references.are_partial()
                && let Err(e) = notifier.inc_epoch()
            {
                tracing::debug!(error = %e, "the kernel keeps names that it had before the takeover");
            }
            for ino in mount.core.references.inodes() {
                if let Err(e) = notifier.inval_inode(ino.0, 0, 0) {
                    tracing::debug!(inode = ino.0, error = %e, "the kernel keeps its cache of an inode");
                }
            }
        });
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.0.mountpoint
    }

    /// Number of its connection, which is the minor device number of the mount.
    pub fn connection(&self) -> Option<u32> {
        self.0.connection
    }

    /// The workspace it shows.
    pub fn workspace(&self) -> &Workspace {
        &self.0.core.ws
    }

    /// What it has done so far.
    pub fn stats(&self) -> FuseStats {
        let core = &self.0.core;
        core.counters.snapshot(core.references.len(), core.references.orphans())
    }

    /// True while requests are answered, also after a lazy unmount that left files open.
    pub fn is_alive(&self) -> bool {
        matches!(*self.0.served.lock(), Served::Running)
    }

    /// Takes the mount out of the directory tree; with `lazy` also a busy one. Requests are answered meanwhile, so call it from
    /// any thread but theirs; [`Mount::wait`] for the end before the workspace is detached.
    ///
    /// # Errors
    /// Conflict (busy, without `lazy`), Denied.
    pub fn unmount(&self, lazy: bool) -> Result<Unmounted> {
        let path = &self.0.mountpoint;
        if !mountinfo::find(path)?.is_some_and(|m| m.is_ours() && self.0.connection.is_none_or(|c| c == m.minor)) {
            return Ok(if self.is_alive() { Unmounted::Detached } else { Unmounted::Done });
        }
        let plain = if nix::unistd::geteuid().is_root() {
            umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(|e| match e {
                Errno::EBUSY => Error::conflict("files in the mount are open").at(path.display()),
                e => Error::io("umount", &e.into()).at(path.display()),
            })
        } else {
            fusermount(path, false)
        };
        match plain {
            Ok(()) => Ok(Unmounted::Done),
            Err(e) if lazy && e.kind() == ErrorKind::Conflict => detach(path).map(|()| Unmounted::Detached),
            Err(e) => Err(e.hint(format!("see who uses it: fuser -vm {}", path.display()))),
        }
    }

    /// Waits until no request can come any more, at most `timeout`. False where time ran out.
    ///
    /// # Errors
    /// Why the mount ended, where it was not unmounted.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let mut served = self.0.served.lock();
        loop {
            if let Served::Ended(result) = &*served {
                return result.clone().map(|()| true);
            }
            match timeout {
                None => self.0.ended.wait(&mut served),
                Some(t) => {
                    // Woken once, when it ended: a second wait would only follow a spurious wake-up, which parking_lot has not.
                    if self.0.ended.wait_for(&mut served, t).timed_out() {
                        return Ok(matches!(*served, Served::Ended(_)));
                    }
                }
            }
        }
    }

    /// Cuts the connection: every waiting and later request fails with ECONNABORTED or ENOTCONN. The last resort for a detached
    /// mount whose users do not let go.
    ///
    /// # Errors
    /// Where the kernel's control files cannot be written (only root may).
    pub fn abort(&self) -> Result<()> {
        let connection = self.0.connection.ok_or_else(|| Error::internal("the connection of the mount is not known"))?;
        let path = format!("/sys/fs/fuse/connections/{connection}/abort");
        std::fs::write(&path, "1").at(path)
    }
}

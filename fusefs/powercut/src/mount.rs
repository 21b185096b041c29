//! Mounting, and the switch.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fuser::{Config, Session, SessionACL};
use hiloop_env::Env;
use nix::mount::{MntFlags, MsFlags, umount2};
use parking_lot::Mutex;

use crate::fuse::Adapter;
use crate::world::{Kind, World};
use crate::{Losses, Options};

const DEVICE: &str = "/dev/fuse";
const SOURCE: &str = "powercut";
const FSTYPE: &str = "fuse.powercut";
const THREADS: usize = 2;

/// A mounted file system and the switch of its power. Dropping it unmounts.
///
/// The process that holds it serves the mount: it should not open files in it itself.
pub struct PowerCut {
    world: Arc<Mutex<World>>,
    mountpoint: PathBuf,
    served: Option<JoinHandle<io::Result<()>>>,
}

impl PowerCut {
    /// Mounts an empty file system, in the mount namespace of the calling thread. Needs root.
    ///
    /// # Errors
    /// As the system answers.
    pub fn mount(mountpoint: &Path, options: Options, env: Env) -> io::Result<Self> {
        let device: File = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        nix::mount::mount(Some(SOURCE), mountpoint, Some(FSTYPE), flags, Some(data.as_str()))?;
        let world = Arc::new(Mutex::new(World::new(options, env.wall())));
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        let adapter = Adapter { world: world.clone(), env };
        let mut mounted = Self { world, mountpoint: mountpoint.to_owned(), served: None };
        let session = Session::from_fd(adapter, OwnedFd::from(device), SessionACL::All, config)?;
        mounted.served = Some(std::thread::Builder::new().name("powercut".into()).spawn(move || session.run())?);
        Ok(mounted)
    }
    /// Calls `hook` at the moment of each cut, before any operation learns of it: the place to kill what loses power too. The hook must
    /// not call the switch.
    pub fn on_cut(&self, hook: impl Fn() + Send + 'static) {
        self.world.lock().on_cut(Box::new(hook));
    }
    /// Cuts the power now. A second cut before [`PowerCut::restore`] changes nothing.
    pub fn cut(&self, seed: u64) {
        self.world.lock().cut(seed);
    }
    /// Cuts the power once `after` more operations that change or flush were done. Replaces an earlier alarm.
    pub fn arm(&self, after: u64, seed: u64) {
        self.world.lock().arm(after, seed);
    }
    /// Takes the alarm back.
    pub fn disarm(&self) {
        self.world.lock().disarm();
    }
    /// True between a cut and [`PowerCut::restore`].
    pub fn is_cut(&self) -> bool {
        self.world.lock().is_dead()
    }
    /// Operations that changed or flushed since the mount.
    pub fn steps(&self) -> u64 {
        self.world.lock().steps()
    }
    /// Brings power back and says what the cut took; without a cut nothing happens. Processes that used the mount before must be gone:
    /// their handles fail for ever.
    pub fn restore(&self) -> Losses {
        self.world.lock().restore()
    }
    /// The content of a file as processes see it, or saw it when the power went; nothing for anything else.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        match &self.world.lock().resolve(path)?.kind {
            Kind::File(f) => Some(f.now().read(0, f.now().len() as usize)),
            _ => None,
        }
    }
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
    /// Waits until somebody has unmounted it.
    ///
    /// # Errors
    /// Why serving ended, where it was not unmounted.
    pub fn wait(mut self) -> io::Result<()> {
        self.served.take().map_or(Ok(()), |t| t.join().map_err(|_| io::Error::other("a server thread panicked"))?)
    }
}

impl Drop for PowerCut {
    fn drop(&mut self) {
        // Unmounted already is fine; the threads end once the last user is gone.
        let _ = umount2(&self.mountpoint, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
}

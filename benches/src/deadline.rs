//! A time box: work inside this process asks it, programs are started with what is left of it, and who hangs in the kernel loses
//! their mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Error, Result};
use nix::mount::{MntFlags, umount2};
use parking_lot::{Condvar, Mutex};

/// How long after its time box work that does not come back is left alone.
const GRACE: Duration = Duration::from_secs(15);

/// The end of a time box.
#[derive(Clone)]
pub struct Deadline {
    env: Env,
    until: Duration,
}

impl Deadline {
    /// Starts a time box.
    pub fn new(env: &Env, length: Duration) -> Self {
        Self { env: env.clone(), until: env.monotonic().saturating_add(length) }
    }
    /// What is left.
    pub fn left(&self) -> Duration {
        self.until.saturating_sub(self.env.monotonic())
    }
    /// Whether nothing is left.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }
    /// # Errors
    /// `Unavailable` once the time box is over.
    pub fn check(&self) -> Result<()> {
        if self.passed() { Err(Error::unavailable("the time box is over")) } else { Ok(()) }
    }
}

type Watched = Mutex<Option<(Deadline, PathBuf)>>;

/// Cuts the connection of a mount whose user hangs in it: every request then fails, and the harness goes on.
pub struct Watchdog {
    shared: Arc<(Watched, Condvar)>,
}

impl Watchdog {
    /// Starts its thread, which ends with the value's process.
    ///
    /// # Errors
    /// Where no thread can be made.
    pub fn start() -> Result<Self> {
        let shared: Arc<(Watched, Condvar)> = Arc::default();
        let mine = shared.clone();
        let watch = move || {
            let (watched, changed) = &*mine;
            let mut watched = watched.lock();
            loop {
                let wait = watched.as_ref().map_or(Duration::from_secs(3600), |(deadline, _)| deadline.left() + GRACE);
                if changed.wait_for(&mut watched, wait).timed_out()
                    && let Some((_, mount)) = watched.take_if(|(deadline, _)| deadline.passed())
                {
                    // MNT_FORCE aborts a FUSE connection; that the mount is busy then is no matter.
                    let _ = umount2(&mount, MntFlags::MNT_FORCE);
                    let _ = umount2(&mount, MntFlags::MNT_DETACH);
                }
            }
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(watch).map_err(|e| Error::io("thread", &e))?;
        Ok(Self { shared })
    }
    /// Watches over work on a mount until [`Watchdog::stop`].
    pub fn watch(&self, deadline: &Deadline, mount: PathBuf) {
        *self.shared.0.lock() = Some((deadline.clone(), mount));
        self.shared.1.notify_one();
    }
    /// The work came back.
    pub fn stop(&self) {
        *self.shared.0.lock() = None;
        self.shared.1.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_box_ends() {
        let (env, clock) = Env::simulated(1);
        let deadline = Deadline::new(&env, Duration::from_secs(2));
        deadline.check().unwrap();
        clock.advance(Duration::from_secs(1));
        assert_eq!(deadline.left(), Duration::from_secs(1));
        clock.advance(Duration::from_secs(1));
        assert!(deadline.check().is_err());
    }
}

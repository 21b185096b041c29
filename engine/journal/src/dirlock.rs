//! One daemon per node directory (`protocols.md` 2.8).
//!
//! `dir/lock` is held with `flock` for the daemon's life and says its pid. `dir/identity` says which directory this is and in which
//! boot it was last used, three lines `boot=`, `dev=`, `ino=` (decimal) after `hiloop-directory 1`; it is replaced by rename.
//! A session may go on after a restart only when the directory is the same one: a copy of it (a cloned disk) must not.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result, ResultExt};
use nix::fcntl::{Flock, FlockArg};

const FIRST_LINE: &str = "hiloop-directory 1";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whose directory this was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It was never used.
    New,
    /// Last used in this boot: the page cache still holds what was accepted.
    SameBoot,
    /// Last used before a reboot: what was not flushed may be gone.
    AfterReboot,
    /// The content belongs to another directory (a copy): no session in it may go on.
    Cloned {
        /// Device number that it records.
        dev: u64,
        /// Inode number that it records.
        ino: u64,
    },
}

/// The lock on a node directory, held until dropped.
#[derive(Debug)]
pub struct DirLock {
    dir: PathBuf,
    identity: Identity,
    _lock: Flock<File>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    boot: String,
    dev: u64,
    ino: u64,
}

impl Identity {
    fn encode(&self) -> String {
        format!("{FIRST_LINE}\nboot={}\ndev={}\nino={}\n", self.boot, self.dev, self.ino)
    }
    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let boot = lines.next()?.strip_prefix("boot=")?.to_owned();
        let dev = lines.next()?.strip_prefix("dev=")?.parse().ok()?;
        let ino = lines.next()?.strip_prefix("ino=")?.parse().ok()?;
        Some(Self { boot, dev, ino })
    }
}

impl DirLock {
    /// Takes the lock of an existing directory and says whose it was.
    ///
    /// The answer stays the same until [`DirLock::adopt`] records the directory as ours, so that a crash in between forgets nothing.
    ///
    /// # Errors
    /// `Conflict` with the holder's pid when another process has it; `Corrupt` when the identity file cannot be read.
    pub fn acquire(dir: &Path) -> Result<(Self, Ownership)> {
        let boot = fs::read_to_string(BOOT_ID).at(BOOT_ID)?;
        Self::acquire_in_boot(dir, boot.trim())
    }
    fn acquire_in_boot(dir: &Path, boot: &str) -> Result<(Self, Ownership)> {
        let path = dir.join("lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).at(path.display())?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                // An unreadable pid does not make the lock less held.
                let _ = file.read_to_string(&mut pid);
                return Err(Error::conflict(format!("the directory is in use by process {}", pid.trim()))
                    .at(dir.display())
                    .hint("one daemon per directory: join it, or stop it first"));
            }
            Err((_, errno)) => return Err(Error::io(path.display(), &errno.into())),
        };
        lock.set_len(0).at(path.display())?;
        lock.rewind().at(path.display())?;
        writeln!(lock, "{}", std::process::id()).at(path.display())?;
        let meta = fs::metadata(dir).at(dir.display())?;
        let identity = Identity { boot: boot.to_owned(), dev: meta.dev(), ino: meta.ino() };
        let ownership = read_identity(&dir.join("identity"))?.map_or(Ownership::New, |old| {
            if (old.dev, old.ino) != (identity.dev, identity.ino) {
                Ownership::Cloned { dev: old.dev, ino: old.ino }
            } else if old.boot == identity.boot {
                Ownership::SameBoot
            } else {
                Ownership::AfterReboot
            }
        });
        Ok((Self { dir: dir.to_owned(), identity, _lock: lock }, ownership))
    }
    /// Records this boot and directory durably. Call it once everything that the ownership demands (new sessions in a clone) is durable.
    ///
    /// # Errors
    /// Those of the disk; the old identity then stands.
    pub fn adopt(&self) -> Result<()> {
        let (path, new) = (self.dir.join("identity"), self.dir.join("identity.new"));
        let mut file = File::create(&new).at(new.display())?;
        file.write_all(self.identity.encode().as_bytes()).and_then(|()| file.sync_all()).at(new.display())?;
        fs::rename(&new, &path).at(path.display())?;
        File::open(&self.dir).and_then(|d| d.sync_all()).at(self.dir.display())?;
        sync_way_to(&self.dir)
    }
}

/// Makes the names that lead to `dir` durable, within its file system: the directory may have just been made, and with its name
/// everything in it would be lost. Directories that may not be read are not ours to have made.
fn sync_way_to(dir: &Path) -> Result<()> {
    let dir = dir.canonicalize().at(dir.display())?;
    let dev = fs::metadata(&dir).at(dir.display())?.dev();
    for parent in dir.ancestors().skip(1) {
        match File::open(parent).and_then(|d| if d.metadata()?.dev() == dev { d.sync_all().map(|()| true) } else { Ok(false) }) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(e) => return Err(e).at(parent.display()),
        }
    }
    Ok(())
}

fn read_identity(path: &Path) -> Result<Option<Identity>> {
    let text = match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.at(path.display())?,
    };
    match std::str::from_utf8(&text).ok().and_then(Identity::decode) {
        Some(identity) => Ok(Some(identity)),
        None => Err(Error::corrupt("not an identity of a node directory")
            .at(path.display())
            .hint("if the directory is known not to be a copy, remove the file: it is then opened as new")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::ErrorKind;

    #[test]
    fn a_held_lock_names_its_holder_and_is_free_after_drop() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, ownership) = DirLock::acquire(dir.path()).unwrap();
        assert_eq!(ownership, Ownership::New);
        let error = DirLock::acquire(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(lock);
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn ownership_stands_until_adopted_and_tells_boots_apart() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot: &str| DirLock::acquire_in_boot(dir.path(), boot).unwrap();
        let (lock, _) = open("a");
        drop(lock);
        let (lock, ownership) = open("a");
        assert_eq!(ownership, Ownership::New, "not adopted yet");
        lock.adopt().unwrap();
        drop(lock);
        assert_eq!(open("a").1, Ownership::SameBoot);
        assert_eq!(open("b").1, Ownership::AfterReboot);
        assert_eq!(open("b").1, Ownership::AfterReboot, "asking does not adopt");
        open("b").0.adopt().unwrap();
        assert_eq!(open("b").1, Ownership::SameBoot);
    }

    #[test]
    fn a_copy_is_told_from_the_original() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        DirLock::acquire_in_boot(dir.path(), "a").unwrap().0.adopt().unwrap();
        fs::copy(dir.path().join("identity"), copy.path().join("identity")).unwrap();
        let meta = fs::metadata(dir.path()).unwrap();
        let (lock, ownership) = DirLock::acquire_in_boot(copy.path(), "a").unwrap();
        assert_eq!(ownership, Ownership::Cloned { dev: meta.dev(), ino: meta.ino() });
        lock.adopt().unwrap();
        drop(lock);
        assert_eq!(DirLock::acquire_in_boot(copy.path(), "a").unwrap().1, Ownership::SameBoot);
    }

    #[test]
    fn the_identity_file_keeps_its_format_and_garbage_is_refused() {
        let text = "hiloop-directory 1\nboot=b0\ndev=66\nino=12\n";
        let identity = Identity { boot: "b0".into(), dev: 66, ino: 12 };
        assert_eq!(identity.encode(), text);
        assert_eq!(Identity::decode(text), Some(identity));
        let dir = tempfile::tempdir().unwrap();
        for bad in [&b"hiloop-directory 2\nboot=b\ndev=1\nino=1\n"[..], b"", b"\xff\xfe"] {
            fs::write(dir.path().join("identity"), bad).unwrap();
            assert_eq!(DirLock::acquire(dir.path()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

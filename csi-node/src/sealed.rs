//! Target directories that cannot become writable below a dead mount.
//!
//! A sandbox whose mount was lost must not go on writing to the node's disk, where nobody would ever look for it. Mode 000 keeps others than
//! root out; the immutable flag of the directory keeps root out, too. Nothing can remove a directory with that flag, so its path is recorded
//! first, outside of what the kubelet owns. The flag is taken away when the volume is unpublished, and by a sweep over the records when
//! the driver starts ([`Sealed::sweep`]), which `csi-node clean-targets` runs by itself before the driver is taken off a node.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind as K, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hiloop_control::mountinfo;
use hiloop_types::{Error, Result, ResultExt};
use nix::errno::Errno;
use nix::libc;
use parking_lot::Mutex;

/// `FS_IMMUTABLE_FL`.
const IMMUTABLE: libc::c_long = 0x10;

nix::ioctl_read!(get_flags, b'f', 1, libc::c_long);
nix::ioctl_write_ptr!(set_flags, b'f', 2, libc::c_long);

/// The records of sealed directories.
pub(crate) struct Sealed {
    dir: PathBuf,
    /// File systems that know no such flag are told of once.
    warned: Mutex<bool>,
}

/// What a sweep found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Directories that nothing is mounted on any more; they can be removed now.
    pub cleared: Vec<PathBuf>,
    /// Directories that something is mounted on: their flags stay.
    pub mounted: Vec<PathBuf>,
    /// Directories whose flag could not be taken away, and why.
    pub failed: Vec<(PathBuf, String)>,
}

impl Sealed {
    /// # Errors
    /// Those of making the directory.
    pub fn open(dir: &Path) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).at(dir.display())?;
        Ok(Self { dir: dir.to_owned(), warned: Mutex::new(false) })
    }

    fn record(&self, target: &Path) -> PathBuf {
        self.dir.join(blake3::hash(target.as_os_str().as_bytes()).to_hex().as_str())
    }

    /// Seals an empty directory that nothing is mounted on. A file system without the flag is no error.
    ///
    /// # Errors
    /// Where the record cannot be kept, or the flag not be set for another reason.
    pub fn seal(&self, target: &Path) -> Result<()> {
        let record = self.record(target);
        let written = record.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&written).at(written.display())?;
        file.write_all(target.as_os_str().as_bytes()).and_then(|()| file.sync_all()).at(written.display())?;
        fs::rename(&written, &record).at(record.display())?;
        File::open(&self.dir).and_then(|d| d.sync_all()).at(self.dir.display())?;
        match change(target, |flags| flags | IMMUTABLE) {
            Ok(()) => Ok(()),
            Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EPERM | Errno::ENOSYS) => {
                if !std::mem::replace(&mut *self.warned.lock(), true) {
                    tracing::warn!(
                        target = %target.display(),
                        "targets cannot be made immutable here: root could write below a mount that was lost"
                    );
                }
                self.forget(target)
            }
            Err(e) => Err(Error::io("the immutable flag", &e.into()).at(target.display())),
        }
    }

    /// Takes the flag away, where the directory has it, and forgets it. Nothing may be mounted on it. What is gone is done.
    ///
    /// # Errors
    /// Where the flag cannot be taken away.
    pub fn unseal(&self, target: &Path) -> Result<()> {
        match change(target, |flags| flags & !IMMUTABLE) {
            // Neither ours nor sealed, or of a file system that knows no flags.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS) => {}
            Err(e) => return Err(Error::io("the immutable flag", &e.into()).at(target.display())),
        }
        self.forget(target)
    }

    fn forget(&self, target: &Path) -> Result<()> {
        let record = self.record(target);
        match fs::remove_file(&record) {
            Err(e) if e.kind() != K::NotFound => Err(Error::io(record.display(), &e)),
            _ => Ok(()),
        }
    }

    /// Unseals what is recorded and has no mount any more: the driver or the node ended before the volume was unpublished.
    ///
    /// # Errors
    /// Where the records or the mount table cannot be read.
    pub fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        for entry in fs::read_dir(&self.dir).at(self.dir.display())? {
            let path = entry.at(self.dir.display())?.path();
            if path.extension().is_some() {
                // Never took effect.
                fs::remove_file(&path).at(path.display())?;
                continue;
            }
            let target = PathBuf::from(OsString::from_vec(fs::read(&path).at(path.display())?));
            if mountinfo::find(&target)?.is_some() {
                swept.mounted.push(target);
                continue;
            }
            match self.unseal(&target) {
                Ok(()) => swept.cleared.push(target),
                Err(e) => swept.failed.push((target, e.to_string())),
            }
        }
        Ok(swept)
    }
}

/// Changes the flags of a directory, never of what a link leads to.
fn change(dir: &Path, to: impl FnOnce(libc::c_long) -> libc::c_long) -> std::result::Result<(), Errno> {
    let options = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(options).open(dir);
    let dir = opened.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    let mut flags: libc::c_long = 0;
    // SAFETY: the descriptor is open, and the kernel writes an int into the long that it is given.
    unsafe { get_flags(dir.as_raw_fd(), &mut flags) }?;
    let wanted = to(flags);
    if wanted == flags {
        return Ok(());
    }
    // SAFETY: as above; the kernel only reads.
    unsafe { set_flags(dir.as_raw_fd(), &wanted) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system of its own kind, where the tests run as root.
    fn place() -> (tempfile::TempDir, Sealed) {
        let temp = tempfile::tempdir_in("/var/tmp").unwrap();
        let sealed = Sealed::open(&temp.path().join("state/targets")).unwrap();
        (temp, sealed)
    }

    #[test]
    fn a_sealed_directory_takes_no_file_until_it_is_unsealed() {
        let (temp, sealed) = place();
        let target = temp.path().join("target");
        fs::create_dir(&target).unwrap();
        sealed.seal(&target).unwrap();
        sealed.seal(&target).expect("again");
        assert_eq!(fs::write(target.join("f"), "x").unwrap_err().kind(), K::PermissionDenied, "though root asks");
        assert!(fs::remove_dir(&target).is_err());
        sealed.unseal(&target).unwrap();
        sealed.unseal(&target).expect("again");
        fs::remove_dir(&target).unwrap();
        sealed.unseal(&target).expect("gone is done");
        assert_eq!(fs::read_dir(&sealed.dir).unwrap().count(), 0, "nothing is remembered");
    }

    #[test]
    fn a_sweep_clears_what_has_no_mount() {
        let (temp, sealed) = place();
        let target = temp.path().join("target");
        fs::create_dir(&target).unwrap();
        sealed.seal(&target).unwrap();
        fs::write(sealed.record(Path::new("/proc")), "/proc").unwrap();
        fs::write(sealed.record(Path::new("/gone")), "/gone").unwrap();
        fs::write(sealed.dir.join("0123.new"), "half").unwrap();
        let again = Sealed::open(&sealed.dir).unwrap();
        let mut swept = again.sweep().unwrap();
        swept.cleared.sort();
        let wanted = Swept { cleared: vec!["/gone".into(), target.clone()], mounted: vec!["/proc".into()], failed: Vec::new() };
        assert_eq!(swept, wanted);
        fs::write(target.join("f"), "x").unwrap();
        assert_eq!(again.sweep().unwrap(), Swept { mounted: vec!["/proc".into()], ..Swept::default() });
    }

    #[test]
    fn links_and_files_are_left_as_they_are() {
        let (temp, sealed) = place();
        let (file, link, dir) = (temp.path().join("file"), temp.path().join("link"), temp.path().join("dir"));
        fs::write(&file, "x").unwrap();
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        for odd in [&file, &link] {
            assert!(sealed.seal(odd).is_err(), "{}", odd.display());
            sealed.unseal(odd).unwrap();
        }
        fs::write(dir.join("f"), "x").unwrap();
    }
}

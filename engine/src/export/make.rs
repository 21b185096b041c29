//! Making files below one directory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

use hiloop_manifest::schema::{Attr, FileKind, Timestamp};
use hiloop_types::{Error, Result, ResultExt};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, futimens, mkdirat, mknodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};

use super::xattr;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

pub(super) fn as_path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

fn os(call: &str, e: Errno) -> Error {
    Error::io(call, &io::Error::from(e))
}

/// The directory that is written into.
pub(super) struct Target {
    root: OwnedFd,
    /// Owners can be given away and devices made.
    privileged: bool,
}

impl Target {
    /// Opens `directory`, making it where it is absent.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        match std::fs::create_dir(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).at(directory.display()),
            _ => {}
        }
        // The operator's own path may lead through links; nothing below it may.
        let root = nix::fcntl::open(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| os("open", e).at(directory.display()))?;
        let again =
            openat(&root, ".", DIRECTORY, Mode::empty()).and_then(Dir::from_fd).map_err(|e| os("list", e).at(directory.display()))?;
        for entry in again {
            let entry = entry.map_err(|e| os("list", e).at(directory.display()))?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Err(Error::conflict("the directory is not empty").at(directory.display()).hint("name one that is empty or absent"));
            }
        }
        Ok(Self { root, privileged: Uid::effective().is_root() })
    }

    /// Opens a directory that was made below.
    pub(super) fn enter(&self, path: &Path) -> Result<Directory> {
        let mut fd = openat(&self.root, ".", DIRECTORY, Mode::empty()).map_err(|e| os("open", e))?;
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(Error::internal("a path of the tree is not plain").at(path.display())) };
            fd = openat(&fd, name, DIRECTORY, Mode::empty()).map_err(|e| os("open", e).at(path.display()))?;
        }
        Ok(Directory { fd, privileged: self.privileged })
    }
}

/// A directory below the target.
pub(super) struct Directory {
    fd: OwnedFd,
    privileged: bool,
}

/// A regular file that is being written.
pub(super) struct File {
    file: std::fs::File,
    privileged: bool,
}

type Xattrs = [(Vec<u8>, Vec<u8>)];

impl Directory {
    pub(super) fn make_directory(&self, name: &[u8]) -> Result<()> {
        mkdirat(&self.fd, as_path(name), Mode::S_IRWXU).map_err(|e| os("mkdir", e))
    }

    pub(super) fn make_file(&self, name: &[u8]) -> Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, as_path(name), flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| os("create", e))?;
        Ok(File { file: fd.into(), privileged: self.privileged })
    }

    /// A further name of something that was made in this directory.
    pub(super) fn link(&self, from: &[u8], to: &Self, name: &[u8]) -> Result<()> {
        linkat(&self.fd, as_path(from), &to.fd, as_path(name), AtFlags::empty()).map_err(|e| os("link", e))
    }

    /// Makes what is neither file nor directory; the reason where this user may not.
    pub(super) fn make_node(&self, name: &[u8], attr: &Attr) -> Result<Option<String>> {
        let path = as_path(name);
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let made = match attr.kind {
            FileKind::Symlink => symlinkat(as_path(&attr.target), &self.fd, path),
            FileKind::Fifo => mknodat(&self.fd, path, SFlag::S_IFIFO, private, 0),
            FileKind::Socket => mknodat(&self.fd, path, SFlag::S_IFSOCK, private, 0),
            FileKind::CharDevice => mknodat(&self.fd, path, SFlag::S_IFCHR, private, attr.rdev.into()),
            FileKind::BlockDevice => mknodat(&self.fd, path, SFlag::S_IFBLK, private, attr.rdev.into()),
            FileKind::File | FileKind::Directory => return Err(Error::internal("files and directories are made elsewhere")),
        };
        match made {
            Ok(()) => Ok(None),
            Err(Errno::EPERM) if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) => {
                Ok(Some("device left out: this user may not make one".into()))
            }
            Err(e) => Err(os("make", e)),
        }
    }

    /// Gives a link, fifo, socket or device its attributes. Answers what was refused.
    pub(super) fn finish_node(&self, name: &[u8], attr: &Attr, xattrs: &Xattrs) -> Result<Vec<String>> {
        let path = as_path(name);
        if self.privileged {
            fchownat(&self.fd, path, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)), AtFlags::AT_SYMLINK_NOFOLLOW)
                .map_err(|e| os("chown", e))?;
        }
        if attr.kind != FileKind::Symlink {
            // A name can be exchanged for a link; an open inode cannot, and its magic link leads to it alone.
            let node =
                openat(&self.fd, path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map_err(|e| os("open", e))?;
            let magic = format!("/proc/self/fd/{}", node.as_raw_fd());
            fchmodat(AT_FDCWD, magic.as_str(), mode(attr), FchmodatFlags::FollowSymlink).map_err(|e| os("chmod", e))?;
        }
        let refused = set_all(xattrs, |n, v| xattr::set_named(self.fd.as_fd(), name, n, v))?;
        utimensat(&self.fd, path, &time(attr.atime), &time(attr.mtime), UtimensatFlags::NoFollowSymlink).map_err(|e| os("utimens", e))?;
        Ok(refused)
    }

    /// Gives the directory its own attributes.
    pub(super) fn finish(&self, attr: &Attr, xattrs: &Xattrs) -> Result<Vec<String>> {
        finish(&self.fd, self.privileged, attr, xattrs)
    }
}

impl File {
    pub(super) fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).at("truncate")
    }
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).at("write")
    }
    /// Allocates a range that reads as zeros. A file system that cannot has a hole there, which reads the same.
    pub(super) fn reserve(&self, at: u64, len: u64) -> Result<()> {
        let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len)) else { return Err(Error::corrupt("a range is beyond any file")) };
        match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, at, len) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(e) => Err(os("fallocate", e)),
        }
    }
    /// Gives the file its attributes. Answers what was refused.
    pub(super) fn finish(self, attr: &Attr, xattrs: &Xattrs) -> Result<Vec<String>> {
        // A write beyond the size that the tree says is allocation behind the end, not content.
        self.set_len(attr.size)?;
        finish(&self.file, self.privileged, attr, xattrs)
    }
}

/// Owner before mode, which changing the owner would strip of set-id bits; both before capabilities, which they would remove.
fn finish<Fd: AsFd>(fd: &Fd, privileged: bool, attr: &Attr, xattrs: &Xattrs) -> Result<Vec<String>> {
    if privileged {
        fchown(fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid))).map_err(|e| os("chown", e))?;
    }
    fchmod(fd, mode(attr)).map_err(|e| os("chmod", e))?;
    let refused = set_all(xattrs, |n, v| xattr::set(fd.as_fd(), n, v))?;
    futimens(fd, &time(attr.atime), &time(attr.mtime)).map_err(|e| os("utimens", e))?;
    Ok(refused)
}

fn set_all(xattrs: &Xattrs, set: impl Fn(&[u8], &[u8]) -> io::Result<()>) -> Result<Vec<String>> {
    let mut refused = Vec::new();
    for (name, value) in xattrs {
        match set(name, value) {
            Ok(()) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::EACCES)) => {
                refused.push(format!("attribute {} left out: {e}", String::from_utf8_lossy(name)));
            }
            Err(e) => return Err(Error::io(format!("set attribute {}", String::from_utf8_lossy(name)), &e)),
        }
    }
    Ok(refused)
}

fn mode(attr: &Attr) -> Mode {
    Mode::from_bits_truncate(attr.mode & 0o7777)
}

fn time(t: Timestamp) -> TimeSpec {
    TimeSpec::new(t.secs, i64::from(t.nanos))
}

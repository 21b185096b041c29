//! A directory tree as the source.
//!
//! The walk holds descriptors of directories, never paths: each component is opened below the one before it, without following links,
//! so nobody who moves things about in the tree can lead it outside. Only the deepest [`OPEN_LEVELS`] directories are held open; on
//! the way up an older one is opened again as `..` and must be the same inode.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::vec::IntoIter;

use hiloop_types::limits::{FILE_MAX, SYMLINK_MAX};
use hiloop_types::{Error, Result};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Whence, lseek};

use crate::builder::{Builder, ROOT};
use crate::limits::{Meter, RANGES_MAX, beyond};
use crate::path::{check_name, shown};
use crate::sink::{ContentSink, Delivery, Shape, deliver};
use crate::tree::{DataRange, SourceInode, SourceKind};
use crate::xattr::Holder;

/// Directories held open at once: well below the usual limit of 1024 descriptors, above the depth of usual trees.
const OPEN_LEVELS: usize = 64;
/// How often a thing that changes is looked at before the walk gives up.
const ATTEMPTS: usize = 3;

/// A directory that the walk is in.
struct Level {
    /// `None` while it is too far up to be held open.
    dir: Option<OwnedFd>,
    identity: (u64, u64),
    names: IntoIter<CString>,
    node: usize,
    /// Length of its path.
    path: usize,
}

struct Walk<'a, 'm> {
    builder: &'a mut Builder,
    sink: &'a mut dyn ContentSink,
    meter: &'a mut Meter<'m>,
    levels: Vec<Level>,
    /// Path of what is looked at.
    path: Vec<u8>,
    /// Inodes with several names, by device and number.
    linked: HashMap<(u64, u64), usize>,
}

/// Walks the tree at `root`, which may itself be named through a link.
pub(crate) fn walk(root: &Path, builder: &mut Builder, sink: &mut dyn ContentSink, meter: &mut Meter<'_>) -> Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let dir = nix::fcntl::open(root, flags, Mode::empty()).map_err(|e| os("open", e))?;
    let mut walk = Walk { builder, sink, meter, levels: Vec::new(), path: Vec::new(), linked: HashMap::new() };
    walk.enter(dir, |walk, inode| walk.builder.set_root(inode, walk.meter).map(|()| ROOT))?;
    while let Some(top) = walk.levels.last_mut() {
        walk.path.truncate(top.path);
        match top.names.next() {
            Some(name) => walk.visit(&name)?,
            None => walk.leave()?,
        }
    }
    Ok(())
}

impl Walk<'_, '_> {
    /// Lists an open directory and goes into it; `place` puts its inode into the tree.
    fn enter(&mut self, dir: OwnedFd, place: impl FnOnce(&mut Self, SourceInode) -> Result<usize>) -> Result<()> {
        let mut found = None;
        for _ in 0..ATTEMPTS {
            let before = fstat(&dir).map_err(|e| self.refused("stat", e))?;
            let names = self.list(&dir)?;
            let xattrs = Holder::Open(dir.as_fd()).read().map_err(|e| Error::io(shown(&self.path), &e))?;
            if unchanged(&before, &fstat(&dir).map_err(|e| self.refused("stat", e))?) {
                let mut inode = describe(&before, SourceKind::Directory).map_err(|e| e.at(shown(&self.path)))?;
                inode.xattrs = xattrs;
                found = Some((before, names, inode));
                break;
            }
        }
        let (stat, names, inode) = found.ok_or_else(|| self.restless())?;
        let node = place(self, inode)?;
        let open = self.levels.len();
        if open >= OPEN_LEVELS {
            self.levels[open - OPEN_LEVELS].dir = None;
        }
        let path = self.path.len();
        self.levels.push(Level { dir: Some(dir), identity: identity(&stat), names: names.into_iter(), node, path });
        Ok(())
    }

    /// Names in a directory, sorted.
    fn list(&self, dir: &OwnedFd) -> Result<Vec<CString>> {
        // A descriptor of its own, so that the position of a listing starts at zero each time.
        let again = openat(dir, c".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let mut stream = again.and_then(Dir::from_fd).map_err(|e| self.refused("list", e))?;
        let mut names = Vec::new();
        for entry in stream.iter() {
            let entry = entry.map_err(|e| self.refused("list", e))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            check_name(name.to_bytes()).map_err(|e| e.at(shown(&self.path)))?;
            if names.len() as u64 >= self.meter.limits.entries {
                return Err(beyond("entries", self.meter.limits.entries, "entries").at(shown(&self.path)));
            }
            names.push(name.to_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Goes back to the directory above.
    fn leave(&mut self) -> Result<()> {
        let Some(left) = self.levels.pop() else { return Ok(()) };
        let Some(above) = self.levels.last_mut() else { return Ok(()) };
        if above.dir.is_some() {
            return Ok(());
        }
        let below = left.dir.ok_or_else(|| Error::internal("the directory that the walk leaves is not open"))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let reopened = openat(&below, c"..", flags, Mode::empty()).and_then(|dir| fstat(&dir).map(|stat| (dir, stat)));
        match reopened {
            Ok((dir, stat)) if identity(&stat) == above.identity => above.dir = Some(dir),
            Ok(_) => return Err(Error::conflict("the directory was moved while it was read").at(shown(&self.path))),
            Err(e) => return Err(self.refused("open", e)),
        }
        Ok(())
    }

    fn visit(&mut self, name: &CString) -> Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let parent = level.node;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        if self.levels.len() > self.meter.limits.depth {
            return Err(beyond("depth", self.meter.limits.depth as u64, "components").at(shown(&self.path)));
        }
        let stat = fstatat(self.top()?, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|e| self.refused("stat", e))?;
        let kind = kind(&stat).ok_or_else(|| Error::invalid("an inode of an unknown type").at(shown(&self.path)))?;
        if kind == SourceKind::Directory {
            let dir = self.open(name, OFlag::O_DIRECTORY)?;
            return self.enter(dir, |walk, inode| walk.builder.put(parent, name.to_bytes(), &walk.path, inode, walk.meter));
        }
        if let Some(&inode) = self.linked.get(&identity(&stat)) {
            return self.builder.link(parent, name.to_bytes(), &self.path, inode, self.meter);
        }
        let (inode, stat) = match kind {
            SourceKind::File => self.file(name)?,
            _ => (self.special(name, &stat, kind)?, stat),
        };
        let node = self.builder.put(parent, name.to_bytes(), &self.path, inode, self.meter)?;
        if stat.st_nlink > 1 {
            self.linked.insert(identity(&stat), self.builder.inode_of(node));
        }
        Ok(())
    }

    fn top(&self) -> Result<&OwnedFd> {
        let top = self.levels.last().and_then(|level| level.dir.as_ref());
        top.ok_or_else(|| Error::internal("the directory that the walk is in is not open"))
    }

    /// Opens what must not be a link. Without O_NOATIME for those who may not ask for it.
    fn open(&self, name: &CString, extra: OFlag) -> Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | extra;
        let dir = self.top()?;
        match openat(dir, name.as_c_str(), flags | OFlag::O_NOATIME, Mode::empty()) {
            Err(Errno::EPERM) => openat(dir, name.as_c_str(), flags, Mode::empty()),
            other => other,
        }
        .map_err(|e| match e {
            Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO => self.restless(),
            e => self.refused("open", e),
        })
    }

    /// Reads a file until it holds still. Also gives what the open file was: another may stand there by now.
    fn file(&mut self, name: &CString) -> Result<(SourceInode, FileStat)> {
        for _ in 0..ATTEMPTS {
            let file = File::from(self.open(name, OFlag::empty())?);
            let before = fstat(&file).map_err(|e| self.refused("stat", e))?;
            if kind(&before) != Some(SourceKind::File) {
                continue;
            }
            let mut inode = describe(&before, SourceKind::File).map_err(|e| e.at(shown(&self.path)))?;
            inode.xattrs = Holder::Open(file.as_fd()).read().map_err(|e| Error::io(shown(&self.path), &e))?;
            inode.data = data_ranges(&file, &before).map_err(|e| e.at(shown(&self.path)))?;
            let whole = [DataRange { offset: 0, length: inode.size }];
            let mut reader = RangeReader { file: &file, ranges: inode.data.as_deref().unwrap_or(&whole), done: 0 };
            let shape = Shape { size: inode.size, data: inode.data.as_deref() };
            let delivery = deliver(self.sink, self.meter, &self.path, shape, &mut reader)?;
            let after = fstat(&file).map_err(|e| self.refused("stat", e))?;
            if let Delivery::Whole(content) = delivery
                && unchanged(&before, &after)
            {
                inode.content = Some(content);
                return Ok((inode, before));
            }
        }
        Err(self.restless())
    }

    fn special(&self, name: &CString, stat: &FileStat, kind: SourceKind) -> Result<SourceInode> {
        let mut inode = describe(stat, kind).map_err(|e| e.at(shown(&self.path)))?;
        let dir = self.top()?;
        if kind == SourceKind::Symlink {
            inode.target = readlinkat(dir, name.as_c_str()).map_err(|e| self.refused("read link", e))?.into_vec();
            if inode.target.is_empty() || inode.target.len() > SYMLINK_MAX {
                return Err(Error::invalid(format!("a link target of {} bytes", inode.target.len())).at(shown(&self.path)));
            }
            inode.size = inode.target.len() as u64;
        }
        let xattrs = Holder::named(dir.as_fd(), name).and_then(|holder| holder.read());
        inode.xattrs = xattrs.map_err(|e| Error::io(shown(&self.path), &e).hint("/proc must be mounted to read attributes of links"))?;
        Ok(inode)
    }

    fn refused(&self, what: &str, e: Errno) -> Error {
        let error = os(what, e).at(shown(&self.path));
        match e {
            Errno::EACCES | Errno::EPERM => error.hint("run as a user who may read the whole tree"),
            Errno::ENOENT => error.hint("it vanished while the tree was read"),
            _ => error,
        }
    }

    fn restless(&self) -> Error {
        Error::conflict(format!("it changes while it is read; tried {ATTEMPTS} times"))
            .at(shown(&self.path))
            .hint("stop what writes to the tree, or publish a copy of it")
    }
}

/// The data ranges of a file, one after another.
struct RangeReader<'a> {
    file: &'a File,
    ranges: &'a [DataRange],
    /// Bytes read of the first range.
    done: u64,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some((first, rest)) = self.ranges.split_first() {
            if self.done == first.length {
                (self.ranges, self.done) = (rest, 0);
                continue;
            }
            let want = buf.len().min(usize::try_from(first.length - self.done).unwrap_or(usize::MAX));
            let got = self.file.read_at(&mut buf[..want], first.offset + self.done)?;
            self.done += got as u64;
            return Ok(got);
        }
        Ok(0)
    }
}

/// Where a file has data; `None` if it has no holes or its file system does not tell.
fn data_ranges(file: &File, stat: &FileStat) -> Result<Option<Vec<DataRange>>> {
    let size = stat.st_size;
    if stat.st_blocks.saturating_mul(512) >= size {
        return Ok(None);
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match lseek(file, at, Whence::SeekData) {
            Ok(start) => start,
            Err(Errno::ENXIO) => break,
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(None),
            Err(e) => return Err(os("seek", e)),
        };
        let end = lseek(file, start, Whence::SeekHole).map_err(|e| os("seek", e))?.min(size);
        // A file that is cut while it is looked at; the check after reading has it read again.
        if end <= start {
            break;
        }
        if ranges.len() == RANGES_MAX {
            return Err(beyond("data ranges of a file", RANGES_MAX as u64, "ranges"));
        }
        ranges.push(DataRange { offset: start as u64, length: (end - start) as u64 });
        at = end;
    }
    let whole = matches!(ranges[..], [DataRange { offset: 0, length }] if length == size as u64);
    Ok((!whole).then_some(ranges))
}

fn kind(stat: &FileStat) -> Option<SourceKind> {
    Some(match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => SourceKind::File,
        SFlag::S_IFDIR => SourceKind::Directory,
        SFlag::S_IFLNK => SourceKind::Symlink,
        SFlag::S_IFIFO => SourceKind::Fifo,
        SFlag::S_IFSOCK => SourceKind::Socket,
        SFlag::S_IFCHR => SourceKind::CharDevice,
        SFlag::S_IFBLK => SourceKind::BlockDevice,
        _ => return None,
    })
}

fn describe(stat: &FileStat, kind: SourceKind) -> Result<SourceInode> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > FILE_MAX {
        return Err(Error::exhausted(format!("a file of {size} bytes, {FILE_MAX} are allowed")));
    }
    let device = matches!(kind, SourceKind::CharDevice | SourceKind::BlockDevice);
    Ok(SourceInode {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        rdev: if device { stat.st_rdev } else { 0 },
        size: if kind == SourceKind::File { size } else { 0 },
        ..SourceInode::implied_directory()
    })
}

fn identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Whether two looks at one open file show the same contents and attributes.
fn unchanged(a: &FileStat, b: &FileStat) -> bool {
    let look = |s: &FileStat| (s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
    look(a) == look(b)
}

fn os(what: &str, e: Errno) -> Error {
    Error::io(what, &io::Error::from(e))
}

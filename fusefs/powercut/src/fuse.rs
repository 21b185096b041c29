//! The kernel's requests.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use hiloop_env::Env;
use parking_lot::Mutex;

use crate::content::PAGE;
use crate::file::{File, SECTOR};
use crate::world::{Answer, Inode, Kind, ROOT, World};

/// Nothing is cached: after a cut the kernel must ask again.
const TTL: Duration = Duration::ZERO;
/// Bytes of one write request; the kernel's default limit for pages.
const MAX_WRITE: u32 = 1 << 20;
/// Size that the file system claims, bytes.
const SIZE: u64 = 64 << 30;

pub(crate) struct Adapter {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) env: Env,
}

/// Answers with an error, or goes on with the value.
macro_rules! answer {
    ($reply:ident, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(errno) => return $reply.error(Errno::from_i32(errno)),
        }
    };
}

fn attributes(ino: u64, inode: &Inode) -> FileAttr {
    let (size, stored) = match &inode.kind {
        Kind::File(f) => (f.now().len(), f.now().stored()),
        Kind::Link(target) => (target.as_os_str().len() as u64, 0),
        Kind::Directory(_) | Kind::Node(_) => (0, 0),
    };
    let modified = UNIX_EPOCH + inode.modified;
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: stored / SECTOR,
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: file_type(inode),
        perm: (inode.mode & 0o7777) as u16,
        nlink: inode.links,
        uid: inode.owner.0,
        gid: inode.owner.1,
        rdev: if let Kind::Node(rdev) = inode.kind { rdev } else { 0 },
        blksize: PAGE as u32,
        flags: 0,
    }
}

fn file_type(inode: &Inode) -> FileType {
    match inode.mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

impl Adapter {
    /// A handle that dies with the power.
    fn handle(world: &World) -> FileHandle {
        FileHandle(world.boot)
    }
    fn check(world: &World, fh: FileHandle) -> Answer<()> {
        if fh == Self::handle(world) { Ok(()) } else { Err(libc::EIO) }
    }
    fn entry(world: &World, ino: u64, reply: ReplyEntry) {
        let inode = answer!(reply, world.inode(ino));
        reply.entry(&TTL, &attributes(ino, inode), Generation(0));
    }
    fn make(&self, req: &Request, parent: INodeNo, name: &OsStr, kind: Kind, mode: u32, reply: ReplyEntry) {
        let mut world = self.world.lock();
        let ino = answer!(reply, world.make(parent.0, name, kind, mode, (req.uid(), req.gid()), self.env.wall()));
        Self::entry(&world, ino, reply);
    }
    fn wall_of(&self, time: TimeOrNow) -> Duration {
        match time {
            TimeOrNow::SpecificTime(t) => t.duration_since(UNIX_EPOCH).unwrap_or_default(),
            TimeOrNow::Now => self.env.wall(),
        }
    }
}

fn done(reply: ReplyEmpty, result: Answer<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        config.set_max_write(MAX_WRITE).map_err(|_| std::io::Error::other("max_write"))?;
        Ok(())
    }
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let world = self.world.lock();
        let ino = answer!(reply, world.lookup(parent.0, name));
        Self::entry(&world, ino, reply);
    }
    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let world = self.world.lock();
        let inode = answer!(reply, world.inode(ino.0));
        reply.attr(&TTL, &attributes(ino.0, inode));
    }
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut world = self.world.lock();
        if let Some(size) = size {
            answer!(reply, world.set_len(ino.0, size, self.env.wall()));
        }
        answer!(reply, world.set_attributes(ino.0, mode, uid, gid, mtime.map(|t| self.wall_of(t))));
        let inode = answer!(reply, world.inode(ino.0));
        reply.attr(&TTL, &attributes(ino.0, inode));
    }
    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let world = self.world.lock();
        match &answer!(reply, world.inode(ino.0)).kind {
            Kind::Link(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            _ => reply.error(Errno::EINVAL),
        }
    }
    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, rdev: u32, reply: ReplyEntry) {
        let kind = if mode & libc::S_IFMT == libc::S_IFREG { Kind::File(File::default()) } else { Kind::Node(rdev) };
        self.make(req, parent, name, kind, mode, reply);
    }
    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.make(req, parent, name, Kind::Directory(Default::default()), libc::S_IFDIR | (mode & 0o7777), reply);
    }
    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.world.lock().remove(parent.0, name, false));
    }
    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.world.lock().remove(parent.0, name, true));
    }
    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.make(req, parent, name, Kind::Link(target.to_owned()), libc::S_IFLNK | 0o777, reply);
    }
    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let replace = match flags {
            f if f.is_empty() => true,
            RenameFlags::RENAME_NOREPLACE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        done(reply, self.world.lock().rename((parent.0, name), (new_parent.0, new_name), replace));
    }
    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut world = self.world.lock();
        answer!(reply, world.link(ino.0, parent.0, name));
        Self::entry(&world, ino.0, reply);
    }
    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let world = self.world.lock();
        answer!(reply, world.inode(ino.0));
        // No FOPEN_KEEP_CACHE: pages of before the cut are dropped.
        reply.opened(Self::handle(&world), FopenFlags::empty());
    }
    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        let mut world = self.world.lock();
        let mode = libc::S_IFREG | (mode & 0o7777);
        let made = world.make(parent.0, name, Kind::File(File::default()), mode, (req.uid(), req.gid()), self.env.wall());
        let ino = answer!(reply, made);
        let inode = answer!(reply, world.inode(ino));
        reply.created(&TTL, &attributes(ino, inode), Generation(0), Self::handle(&world), FopenFlags::empty());
    }
    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        let data = answer!(reply, world.file(ino.0)).now().read(offset, size as usize);
        drop(world);
        reply.data(&data);
    }
    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        answer!(reply, world.write(ino.0, offset, data, self.env.wall()));
        reply.written(data.len() as u32);
    }
    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let mut world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        done(reply, world.sync_file(ino.0));
    }
    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let world = self.world.lock();
        answer!(reply, world.entries(ino.0));
        reply.opened(Self::handle(&world), FopenFlags::empty());
    }
    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        let entries = answer!(reply, world.entries(ino.0));
        // Cookies of entries lie above those of the two that every directory has.
        let mut rows: Vec<(u64, u64, &OsStr)> = entries.iter().map(|(name, e)| (e.cookie + 2, e.ino, name.as_os_str())).collect();
        rows.extend([(1, ino.0, OsStr::new(".")), (2, ROOT, OsStr::new(".."))]);
        rows.sort_unstable();
        for (cookie, child, name) in rows.into_iter().filter(|r| r.0 > offset) {
            let Ok(inode) = world.inode(child) else { continue };
            if reply.add(INodeNo(child), cookie, file_type(inode), name) {
                break;
            }
        }
        reply.ok();
    }
    fn fsyncdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let mut world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        done(reply, world.sync_directory(ino.0));
    }
    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let world = self.world.lock();
        answer!(reply, world.alive());
        let (blocks, free) = (SIZE / PAGE as u64, SIZE.saturating_sub(world.stored()) / PAGE as u64);
        reply.statfs(blocks, free, free, u64::from(u32::MAX), u64::from(u32::MAX), PAGE as u32, 255, PAGE as u32);
    }
    fn fallocate(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let mut world = self.world.lock();
        answer!(reply, Self::check(&world, fh));
        done(reply, world.allocate(ino.0, offset, length, mode));
    }
}

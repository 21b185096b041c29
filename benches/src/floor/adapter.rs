//! The kernel's requests: the same answers, handles and cache flags as ours gives, with nothing behind them.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hiloop_env::Env;
use hiloop_fusefs::fuse::Requests;
use hiloop_fusefs::fuse::kernel::FOREVER;
use hiloop_transport::abi::Opcode;
use parking_lot::{Mutex, MutexGuard};

use super::content::Content;
use super::tree::{Answer, Directory, Kind, New, Tree};

const GENERATION: Generation = Generation(0);

pub(super) struct Adapter {
    requests: Arc<Requests>,
    tree: Mutex<Tree>,
    env: Env,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    pub(super) fn new(requests: Arc<Requests>, env: Env) -> Self {
        let now = SystemTime::UNIX_EPOCH + env.wall();
        Self { requests, tree: Mutex::new(Tree::new(now)), env }
    }
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.env.wall()
    }
    fn begin(&self, op: Opcode) -> MutexGuard<'_, Tree> {
        self.requests.count(op);
        self.tree.lock()
    }
    fn make(&self, op: Opcode, req: &Request, place: (INodeNo, &OsStr), kind: Kind, mode: u32) -> Answer<FileAttr> {
        let new = New { kind, perm: (mode & 0o7777) as u16, owner: (req.uid(), req.gid()) };
        self.begin(op).make(place.0.0, place.1.as_bytes(), new, self.now())
    }
}

fn empty(reply: ReplyEmpty, result: Answer<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(Errno::from_i32(e)),
    }
}

fn entry(reply: ReplyEntry, result: Answer<FileAttr>) {
    match result {
        Ok(attr) => reply.entry(&FOREVER, &attr, GENERATION),
        Err(e) => reply.error(Errno::from_i32(e)),
    }
}

fn attributes(reply: ReplyAttr, result: Answer<FileAttr>) {
    match result {
        Ok(attr) => reply.attr(&FOREVER, &attr),
        Err(e) => reply.error(Errno::from_i32(e)),
    }
}

/// "No such name, and remember that."
fn negative() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The permission bits of an access list of three entries (acl(5): version 2, then tag, permissions and id of each).
fn mode_of_acl(value: &[u8]) -> Option<u16> {
    let entries = value.strip_prefix(&2u32.to_le_bytes())?;
    let mut mode = 0;
    for entry in entries.chunks(8) {
        let [tag_low, tag_high, low, high, ..] = *entry else { return None };
        let shift = match u16::from_le_bytes([tag_low, tag_high]) {
            0x01 => 6,
            0x04 => 3,
            0x20 => 0,
            _ => return None,
        };
        mode |= (u16::from_le_bytes([low, high]) & 7) << shift;
    }
    Some(mode)
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        super::negotiate(config)
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.begin(Opcode::LOOKUP).lookup(parent.0, name.as_bytes());
        entry(reply, found.map(|attr| attr.unwrap_or_else(negative)));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.begin(Opcode::FORGET).forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.begin(Opcode::GETATTR).node(ino.0).map(|n| n.attr());
        attributes(reply, found);
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = self.now();
        let time = |t: TimeOrNow| match t {
            TimeOrNow::SpecificTime(t) => t,
            TimeOrNow::Now => now,
        };
        let set = || -> Answer<FileAttr> {
            let mut tree = self.begin(Opcode::SETATTR);
            let node = tree.node(ino.0)?;
            if let Some(size) = size {
                node.file()?.truncate(size);
                node.attr.mtime = now;
            }
            let attr = &mut node.attr;
            attr.perm = mode.map_or(attr.perm, |m| (m & 0o7777) as u16);
            attr.uid = uid.unwrap_or(attr.uid);
            attr.gid = gid.unwrap_or(attr.gid);
            attr.atime = atime.map_or(attr.atime, time);
            attr.mtime = mtime.map_or(attr.mtime, time);
            attr.ctime = now;
            Ok(node.attr())
        };
        attributes(reply, set());
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.begin(Opcode::READLINK).node(ino.0).map(|n| &n.kind) {
            Ok(Kind::Link(target)) => reply.data(target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _rdev: u32, reply: ReplyEntry) {
        let made = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => self.make(Opcode::MKNOD, req, (parent, name), Kind::File(Content::default()), mode & !umask),
            // Nothing that is measured makes a device, a fifo or a socket.
            _ => Err(libc::EPERM),
        };
        entry(reply, made);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(reply, self.make(Opcode::MKDIR, req, (parent, name), Kind::Directory(Directory::default()), mode & !umask));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        entry(reply, self.make(Opcode::SYMLINK, req, (parent, link_name), Kind::Link(target), 0o777));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.begin(Opcode::UNLINK).remove(parent.0, name.as_bytes(), false, self.now());
        empty(reply, removed);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.begin(Opcode::RMDIR).remove(parent.0, name.as_bytes(), true, self.now());
        empty(reply, removed);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let keep = match flags.bits() {
            0 => Some(false),
            libc::RENAME_NOREPLACE => Some(true),
            _ => None,
        };
        let mut tree = self.begin(Opcode::RENAME);
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        let renamed = keep.ok_or(libc::EINVAL).and_then(|keep| tree.rename(from, to, keep, self.now()));
        drop(tree);
        empty(reply, renamed);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let linked = self.begin(Opcode::LINK).link(ino.0, newparent.0, newname.as_bytes(), self.now());
        entry(reply, linked);
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.begin(Opcode::OPEN).node(ino.0) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _flags: i32, reply: ReplyCreate) {
        match self.make(Opcode::CREATE, req, (parent, name), Kind::File(Content::default()), mode & !umask) {
            Ok(attr) => reply.created(&FOREVER, &attr, GENERATION, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = BUFFER.take();
        buffer.clear();
        let read = self.begin(Opcode::READ).node(ino.0).and_then(|n| n.file().map(|c| c.read(offset, size as usize, &mut buffer)));
        match read {
            Ok(()) => reply.data(&buffer),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
        BUFFER.replace(buffer);
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let now = self.now();
        let written = || -> Answer<()> {
            let mut tree = self.begin(Opcode::WRITE);
            let node = tree.node(ino.0)?;
            node.file()?.write(offset, data);
            (node.attr.mtime, node.attr.ctime) = (now, now);
            Ok(())
        };
        match written() {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.requests.count(Opcode::FLUSH);
        reply.error(Errno::ENOSYS);
    }

    fn release(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, _: Option<LockOwner>, _flush: bool, reply: ReplyEmpty) {
        self.requests.count(Opcode::RELEASE);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.requests.count(Opcode::FSYNC);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.requests.count(Opcode::FSYNCDIR);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.requests.count(Opcode::OPENDIR);
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed =
            self.begin(Opcode::READDIR).list(ino.0, offset, |at, name, attr| !reply.add(attr.ino, at, attr.kind, OsStr::from_bytes(name)));
        match listed {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut tree = self.begin(Opcode::READDIRPLUS);
        let listed =
            tree.list(ino.0, offset, |at, name, attr| !reply.add(attr.ino, at, OsStr::from_bytes(name), &FOREVER, &attr, GENERATION));
        // Each entry that was listed is a reference of the kernel's, once the reply is sent.
        let counted = listed.and_then(|inodes| inodes.into_iter().try_for_each(|i| tree.referred(i).map(drop)));
        drop(tree);
        match counted {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(Errno::from_i32(e)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.requests.count(Opcode::RELEASEDIR);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.requests.count(Opcode::STATFS);
        reply.statfs(1 << 24, 1 << 23, 1 << 23, 1 << 24, 1 << 23, 4096, 255, 4096);
    }

    /// `cp -a` sets the mode by an access list that says no more than a mode.
    fn setxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], _flags: i32, _position: u32, reply: ReplyEmpty) {
        let mut tree = self.begin(Opcode::SETXATTR);
        let mode = if name == "system.posix_acl_access" { mode_of_acl(value) } else { None };
        let set = mode.ok_or(libc::EOPNOTSUPP).and_then(|mode| {
            let attr = &mut tree.node(ino.0)?.attr;
            attr.perm = attr.perm & 0o7000 | mode;
            Ok(())
        });
        drop(tree);
        empty(reply, set);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.requests.count(Opcode::REMOVEXATTR);
        reply.error(Errno::ENODATA);
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        self.requests.count(Opcode::GETXATTR);
        reply.error(Errno::ENODATA);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.requests.count(Opcode::LISTXATTR);
        if size == 0 { reply.size(0) } else { reply.data(&[]) }
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.requests.count(Opcode::ACCESS);
        reply.error(Errno::ENOSYS);
    }
}

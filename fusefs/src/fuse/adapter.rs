//! fuser's trait: each request is converted, counted, run and answered.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hiloop_engine::stop::{Miss, Stop};
use hiloop_engine::workspace::{Cost, Read, Txn};
use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, limits};

use super::convert::{GENERATION, file_attr, file_type, kind_of_mode, negative, set_time, timestamp, unknown};
use super::core::Core;
use super::kernel::{self, FOREVER};
use super::park::Answer;
use super::stats::Opcode;
use super::write::Write;
use crate::fs::attr::{SetAttr, getattr, setattr};
use crate::fs::create::{New, create, make};
use crate::fs::data::{WriteMode, copy_range, read, seek};
use crate::fs::rename::Place;
use crate::fs::{Caller, FsError, FsResult, Node, dir, link, lookup, rename, space, xattr};

/// What a change of names or attributes counts in the backlog, bytes, beside its operation.
const METADATA_COST: u64 = 512;
thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves one mount.
pub(super) struct Adapter {
    core: Arc<Core>,
}

impl Adapter {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    fn begin(&self, op: Opcode) -> &Arc<Core> {
        self.core.counters.count(op);
        &self.core
    }

    fn make(&self, op: Opcode, req: &Request, reply: ReplyEntry, new: OwnedNew) {
        let caller = caller(req);
        self.begin(op).modify(
            metadata(),
            reply,
            move |c, _| {
                let change = |tx: &mut Txn<'_>| make(tx, caller, &new.borrow());
                c.update_and(change, |node, touch| [new.dir, node.ino].into_iter().for_each(touch))
            },
            answer_entry,
        );
    }

    fn remove(&self, op: Opcode, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (dir, name) = (ino(parent), own(name));
        self.begin(op).modify(
            exempt(),
            reply,
            move |c, _| {
                c.update_and(
                    |tx| if op == Opcode::RmDir { link::rmdir(tx, dir, &name) } else { link::unlink(tx, dir, &name) },
                    |removed, touch| [dir, removed.ino].into_iter().for_each(touch),
                )
            },
            |c, reply, result| {
                answer_empty(reply, result.map(|removed| after_removal(c, Some(removed))));
            },
        );
    }

    fn sync(&self, op: Opcode, ino: Ino, reply: ReplyEmpty) {
        let core = self.begin(op).clone();
        let seqno = core.touched.last(ino);
        if seqno.0 == 0 {
            return reply.ok();
        }
        self.core.ws.sync(seqno, Box::new(move |result| answer_empty(reply, core.flatten(result.map_err(FsError::from)))));
    }
}

/// Arguments of a creation that outlive the request's buffer.
struct OwnedNew {
    dir: Ino,
    name: Vec<u8>,
    kind: FileKind,
    mode: u32,
    umask: u32,
    rdev: u32,
    target: Vec<u8>,
}

impl OwnedNew {
    fn new(kind: FileKind, parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> Self {
        Self { dir: ino(parent), name: own(name), kind, mode, umask, rdev: 0, target: Vec::new() }
    }
    fn borrow(&self) -> New<'_> {
        New { dir: self.dir, name: &self.name, kind: self.kind, mode: self.mode, umask: self.umask, rdev: self.rdev, target: &self.target }
    }
}

fn ino(i: INodeNo) -> Ino {
    Ino(i.0)
}

fn own(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

fn metadata() -> Cost {
    Cost { bytes: METADATA_COST, exempt: false }
}

fn exempt() -> Cost {
    Cost { bytes: METADATA_COST, exempt: true }
}

fn code(errno: i32) -> Errno {
    Errno::from_i32(errno)
}

fn answer_empty(reply: ReplyEmpty, result: Answer<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(code(e)),
    }
}

/// Answers with a node and counts the reference that the kernel gets.
fn answer_entry(core: &Arc<Core>, reply: ReplyEntry, result: Answer<Node>) {
    match result {
        Ok(node) => {
            core.references.add(node.ino);
            reply.entry(&FOREVER, &file_attr(node.ino, &node.attr), GENERATION);
        }
        Err(e) => reply.error(code(e)),
    }
}

fn answer_attr(reply: ReplyAttr, result: Answer<FileAttr>) {
    match result {
        Ok(attr) => reply.attr(&FOREVER, &attr),
        Err(e) => reply.error(code(e)),
    }
}

/// Lets go of an inode whose last name went, if the kernel does not hold it.
fn after_removal(core: &Arc<Core>, removed: Option<link::Removed>) {
    if let Some(r) = removed
        && r.orphaned
        && core.references.orphaned(r.ino)
    {
        core.reap(r.ino);
    }
}

/// Supplementary groups of the caller, which a request does not carry. Asked only for an ACL on a set-group-id file.
fn is_member(pid: u32, group: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("Groups:")).is_some_and(|l| l.split_ascii_whitespace().any(|g| g.parse() == Ok(group)))
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        kernel::negotiate(config)
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (dir, name) = (ino(parent), own(name));
        self.begin(Opcode::Lookup).run(
            reply,
            move |c, _| lookup::lookup(&c.ws.view(), dir, &name),
            |c, reply, result| match result {
                Ok(None) => reply.entry(&FOREVER, &negative(), GENERATION),
                Ok(Some(node)) => answer_entry(c, reply, Ok(node)),
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn forget(&self, _req: &Request, i: INodeNo, nlookup: u64) {
        let core = self.begin(Opcode::Forget);
        if core.references.forget(ino(i), nlookup) {
            core.reap(ino(i));
        }
    }

    fn getattr(&self, _req: &Request, i: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let i = ino(i);
        self.begin(Opcode::GetAttr).run(
            reply,
            move |c, _| getattr(&c.ws.view(), i).map(|a| file_attr(i, &a)),
            |_, reply, result| answer_attr(reply, result),
        );
    }

    fn setattr(
        &self,
        req: &Request,
        i: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (i, caller) = (ino(i), caller(req));
        let set = SetAttr { mode, uid, gid, size, atime: atime.map(set_time), mtime: mtime.map(set_time), ctime: ctime.map(timestamp) };
        // A truncate frees space; where it grows a file it writes nothing.
        let cost = if size.is_some() { exempt() } else { metadata() };
        self.begin(Opcode::SetAttr).modify(
            cost,
            reply,
            move |c, _| c.update(&[i], |tx| setattr(tx, caller, i, &set)).map(|a| file_attr(i, &a)),
            |_, reply, result| answer_attr(reply, result),
        );
    }

    fn readlink(&self, _req: &Request, i: INodeNo, reply: ReplyData) {
        let i = ino(i);
        self.begin(Opcode::ReadLink).run(
            reply,
            move |c, _| lookup::readlink(&c.ws.view(), i),
            |_, reply, result| match result {
                Ok(target) => reply.data(&target),
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let Some(kind) = kind_of_mode(mode) else {
            self.begin(Opcode::MkNod);
            return reply.error(Errno::EINVAL);
        };
        self.make(Opcode::MkNod, req, reply, OwnedNew { rdev, ..OwnedNew::new(kind, parent, name, mode, umask) });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.make(Opcode::MkDir, req, reply, OwnedNew::new(FileKind::Directory, parent, name, mode, umask));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = own(target.as_os_str());
        self.make(Opcode::SymLink, req, reply, OwnedNew { target, ..OwnedNew::new(FileKind::Symlink, parent, link_name, 0o777, 0) });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(Opcode::Unlink, parent, name, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(Opcode::RmDir, parent, name, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, name, to, newname) = (ino(parent), own(name), ino(newparent), own(newname));
        let (caller, flags) = (caller(req), flags.bits());
        self.begin(Opcode::Rename).modify(
            metadata(),
            reply,
            move |c, _| {
                let places = (Place { dir: from, name: &name }, Place { dir: to, name: &newname });
                c.update_and(
                    |tx| rename::rename(tx, caller, places.0, places.1, flags),
                    |r, touch| [from, to, r.moved].into_iter().chain(r.other.map(|o| o.ino)).for_each(touch),
                )
            },
            |c, reply, result| answer_empty(reply, result.map(|renamed| after_removal(c, renamed.other))),
        );
    }

    fn link(&self, _req: &Request, i: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (i, dir, name) = (ino(i), ino(newparent), own(newname));
        self.begin(Opcode::Link).modify(
            metadata(),
            reply,
            move |c, _| c.update(&[i, dir], |tx| link::link(tx, i, dir, &name)),
            answer_entry,
        );
    }

    fn open(&self, _req: &Request, i: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let i = ino(i);
        let core = self.begin(Opcode::Open);
        let answer = |_: &Arc<Core>, reply: ReplyOpen, result: Answer<()>| match result {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(code(e)),
        };
        // ESTALE for an inode that is gone: the kernel then looks its name up again.
        core.run(reply, move |c, _| getattr(&c.ws.view(), i).map(drop), answer);
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let new = OwnedNew::new(FileKind::File, parent, name, mode, umask);
        let caller = caller(req);
        self.begin(Opcode::Create).modify(
            metadata(),
            reply,
            move |c, _| {
                c.update_and(|tx| create(tx, caller, &new.borrow(), flags), |node, touch| [new.dir, node.ino].into_iter().for_each(touch))
            },
            |c, reply, result| match result {
                Ok(node) => {
                    c.references.add(node.ino);
                    let attr = file_attr(node.ino, &node.attr);
                    reply.created(&FOREVER, &attr, GENERATION, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
                }
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn read(
        &self,
        _req: &Request,
        i: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (i, len) = (ino(i), u64::from(size));
        self.begin(Opcode::Read).run(
            reply,
            move |c, _| {
                let mut buffer = READ_BUFFER.take();
                let result = read(&c.ws.view(), i, offset, len, &mut buffer);
                if result.is_err() {
                    READ_BUFFER.replace(std::mem::take(&mut buffer));
                }
                result.map(|()| buffer)
            },
            |_, reply, result| match result {
                Ok(buffer) => {
                    reply.data(&buffer);
                    READ_BUFFER.replace(buffer);
                }
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn write(
        &self,
        _req: &Request,
        i: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let core = self.begin(Opcode::Write);
        if core.read_only {
            return reply.error(Errno::EROFS);
        }
        let mode = WriteMode {
            kill_suid_sgid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            whole: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
        };
        Write { ino: ino(i), offset, mode, durable: flags.0 & libc::O_DSYNC != 0 }.start(core, data, reply);
    }

    /// Every write is in the journal when it is answered, so a close has nothing to wait for; after ENOSYS the kernel asks no more.
    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.begin(Opcode::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.begin(Opcode::Release);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, i: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.sync(Opcode::FSync, ino(i), reply);
    }

    fn fsyncdir(&self, _req: &Request, i: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.sync(Opcode::FSyncDir, ino(i), reply);
    }

    fn opendir(&self, _req: &Request, i: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let i = ino(i);
        self.begin(Opcode::OpenDir).run(
            reply,
            move |c, _| dir::end(&c.ws.view(), i),
            |c, reply, result| match result {
                Ok(end) => {
                    let handle = FileHandle(c.listings.open(end));
                    reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
                }
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn readdir(&self, _req: &Request, i: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let i = ino(i);
        self.begin(Opcode::ReadDir).run(
            reply,
            move |c, reply: &mut ReplyDirectory| {
                let view = c.ws.view();
                let end = listing_end(c, &view, i, fh, offset)?;
                let mut added = false;
                let listed = dir::read(&view, i, offset, end, &mut |item| {
                    let full = reply.add(INodeNo(item.ino.0), item.cookie, file_type(item.kind), OsStr::from_bytes(item.name));
                    added |= !full;
                    !full
                });
                c.partial(listed, added)
            },
            |_, reply, result| match result {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn readdirplus(&self, _req: &Request, i: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let i = ino(i);
        let mut waited = Vec::new();
        self.begin(Opcode::ReadDirPlus).run(
            reply,
            move |c, reply: &mut ReplyDirectoryPlus| {
                let view = c.ws.view();
                let end = listing_end(c, &view, i, fh, offset)?;
                let mut added = false;
                let mut damaged = false;
                let listed = dir::read_plus(&view, i, offset, end, &waited, &mut |item, attr| {
                    let (attr, keep) = match attr {
                        Some(attr) => (file_attr(item.ino, attr), FOREVER),
                        // What stands for unknown attributes would take the pages of an inode that the kernel knows.
                        None if !item.is_dot() && c.references.holds(item.ino) => {
                            damaged = true;
                            return false;
                        }
                        None => (unknown(item.ino, item.kind), Duration::ZERO),
                    };
                    // Before the entry is in the reply: a FORGET may follow as soon as it is sent.
                    if !item.is_dot() {
                        c.references.add(item.ino);
                    }
                    let full = reply.add(INodeNo(item.ino.0), item.cookie, OsStr::from_bytes(item.name), &keep, &attr, GENERATION);
                    if full && !item.is_dot() {
                        // The inode is named, so that taking the count back cannot make an orphan to reap.
                        let _named = c.references.forget(item.ino, 1);
                    }
                    added |= !full;
                    !full
                });
                if let Err(FsError::Stop(Stop::Miss(Miss::Listing(nodes)))) = &listed {
                    waited.extend(nodes);
                }
                c.partial(if damaged { Err(FsError::Errno(libc::EIO)) } else { listed }, added)
            },
            |_, reply, result| match result {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.begin(Opcode::ReleaseDir).listings.close(fh.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let core = self.begin(Opcode::StatFs);
        let s = space::statfs(core.ws.quota(), &core.ws.totals());
        reply.statfs(s.blocks, s.free, s.free, s.files, s.files_free, s.fragment, s.name_max, s.fragment);
    }

    fn setxattr(&self, req: &Request, i: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let (i, name, value, caller, pid) = (ino(i), own(name), value.to_vec(), caller(req), req.pid());
        self.begin(Opcode::SetXattr).modify(
            Cost { bytes: METADATA_COST + value.len() as u64, exempt: false },
            reply,
            move |c, _| c.update(&[i], |tx| xattr::set(tx, caller, &|group| is_member(pid, group), i, &name, &value, flags)),
            |_, reply, result| answer_empty(reply, result),
        );
    }

    fn getxattr(&self, req: &Request, i: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (i, name, caller) = (ino(i), own(name), caller(req));
        self.begin(Opcode::GetXattr).run(
            reply,
            move |c, _| xattr::get(&c.ws.view(), caller, i, &name),
            move |_, reply, result| answer_xattr(reply, size, result.as_deref().map_err(|e| *e)),
        );
    }

    fn listxattr(&self, req: &Request, i: INodeNo, size: u32, reply: ReplyXattr) {
        let (i, caller) = (ino(i), caller(req));
        self.begin(Opcode::ListXattr).run(
            reply,
            move |c, _| xattr::list(&c.ws.view(), caller, i),
            move |_, reply, result| answer_xattr(reply, size, result.as_deref().map_err(|e| *e)),
        );
    }

    fn removexattr(&self, req: &Request, i: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (i, name, caller) = (ino(i), own(name), caller(req));
        self.begin(Opcode::RemoveXattr).modify(
            exempt(),
            reply,
            move |c, _| c.update(&[i], |tx| xattr::remove(tx, caller, i, &name)),
            |_, reply, result| answer_empty(reply, result),
        );
    }

    /// The kernel checks permissions itself; after ENOSYS it asks no more.
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.begin(Opcode::Access);
        reply.error(Errno::ENOSYS);
    }

    /// The kernel keeps locks itself, since none of the lock capabilities is requested.
    fn getlk(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, _: u64, _: u64, _: i32, _: u32, reply: ReplyLock) {
        self.begin(Opcode::Lock);
        reply.error(Errno::ENOSYS);
    }

    fn setlk(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, _: u64, _: u64, _: i32, _: u32, _: bool, reply: ReplyEmpty) {
        self.begin(Opcode::Lock);
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        self.begin(Opcode::BMap);
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(&self, _: &Request, _: INodeNo, _: FileHandle, _: IoctlFlags, _: u32, _: &[u8], _: u32, reply: ReplyIoctl) {
        self.begin(Opcode::IoCtl);
        reply.error(Errno::ENOTTY);
    }

    fn poll(&self, _: &Request, _: INodeNo, _: FileHandle, _: PollNotifier, _: PollEvents, _: PollFlags, reply: ReplyPoll) {
        self.begin(Opcode::Poll);
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(&self, req: &Request, i: INodeNo, _fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let (i, caller) = (ino(i), caller(req));
        let core = self.begin(Opcode::FAllocate).clone();
        let to = offset.saturating_add(length);
        let cost = if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 { exempt() } else { metadata() };
        let mut at = offset;
        let start = move |core: &Arc<Core>| {
            core.modify(
                cost,
                reply,
                move |c, _| {
                    loop {
                        at = c.update(&[i], |tx| space::fallocate(tx, caller, i, mode, at, to))?;
                        if at >= to {
                            return Ok(());
                        }
                    }
                },
                |_, reply, result| answer_empty(reply, result),
            );
        };
        if length > space::STEP {
            let workers = core.workers.clone();
            workers.submit(Box::new(move || start(&core)));
        } else {
            start(&core);
        }
    }

    fn lseek(&self, _req: &Request, i: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let i = ino(i);
        self.begin(Opcode::LSeek).run(
            reply,
            move |c, _| seek(&c.ws.view(), i, offset, whence),
            |_, reply, result| match result {
                Ok(at) => reply.offset(at),
                Err(e) => reply.error(code(e)),
            },
        );
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to, caller) = ((ino(ino_in), offset_in), (ino(ino_out), offset_out), caller(req));
        // A clone writes no data: it counts as an operation, by the blocks whose map it changes.
        let blocks = len.min(limits::GIB) / limits::BLOCK;
        self.begin(Opcode::CopyFileRange).modify(
            Cost { bytes: METADATA_COST + blocks * 64, exempt: false },
            reply,
            move |c, _| c.update(&[to.0], |tx| copy_range(tx, caller, from, to, len)),
            |_, reply, result| match result {
                Ok(n) => reply.written(n),
                Err(e) => reply.error(code(e)),
            },
        );
    }
}

/// Where a stream ends; a read from the start (open or rewinddir) sees what there is now.
fn listing_end(core: &Core, view: &impl Read, i: Ino, fh: FileHandle, offset: u64) -> FsResult<u64> {
    if offset > 0 {
        return Ok(core.listings.end(fh.0));
    }
    let end = dir::end(view, i)?;
    core.listings.rewind(fh.0, end);
    Ok(end)
}

/// Size 0 asks for the size.
fn answer_xattr(reply: ReplyXattr, size: u32, result: Answer<&[u8]>) {
    match result {
        Err(e) => reply.error(code(e)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value),
    }
}

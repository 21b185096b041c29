//! Requests of the kernel: each is counted, run and answered. Names are in [`super::names`], listings in [`super::listing`].

use std::cell::RefCell;
use std::sync::Arc;

use hiloop_engine::workspace::Cost;
use hiloop_transport::abi::{fopen, write};
use hiloop_transport::{FileSystem, Opened, Operation, Reply, Request};
use hiloop_types::{Ino, limits};

use super::convert::{file_attr, set_attr};
use super::core::Core;
use super::kernel::FOREVER;
use super::park::Answer;
use super::write::Write;
use crate::fs::attr::{SetAttr, getattr, setattr};
use crate::fs::data::{WriteMode, copy_range, read, seek};
use crate::fs::{Caller, FsError, again as done, lookup, space, xattr};

/// What a change of names or attributes counts in the backlog, bytes, beside its operation.
const METADATA_COST: u64 = 512;
thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves one mount. A handler answers at once, or hands its reply on; it never waits.
pub(super) struct Adapter {
    core: Arc<Core>,
}

impl Adapter {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

impl FileSystem for Adapter {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        use Operation as Op;
        let core = &self.core;
        core.counters.requests.count(request.opcode);
        let again = request.resent();
        let (ino, caller) = (Ino(request.nodeid), Caller { uid: request.uid, gid: request.gid });
        match request.op {
            Op::Lookup { name } => core.lookup(ino, name, reply),
            Op::GetAttr { .. } => core.getattr(ino, reply),
            Op::SetAttr(set) => core.setattr(caller, ino, set_attr(&set), reply),
            Op::ReadLink => core.readlink(ino, reply),
            Op::MkNod { name, mode, umask, rdev } => core.mknod(caller, (ino, name), (mode, umask), rdev, again, reply),
            Op::MkDir { name, mode, umask } => core.mkdir(caller, (ino, name), (mode, umask), again, reply),
            Op::SymLink { name, target } => core.symlink(caller, (ino, name), target, again, reply),
            Op::Unlink { name } => core.remove((ino, name), false, again, reply),
            Op::RmDir { name } => core.remove((ino, name), true, again, reply),
            Op::Rename { name, new_dir, new_name, flags } => {
                core.rename(caller, (ino, name), (Ino(new_dir), new_name), (flags, again), reply)
            }
            Op::Link { node, new_name } => core.link(Ino(node), (ino, new_name), again, reply),
            Op::Create { name, flags, mode, umask, .. } => core.create(caller, (ino, name), (mode, umask), flags, again, reply),
            Op::TmpFile { mode, umask, .. } => core.tmpfile(caller, ino, (mode, umask), reply),
            Op::Open { .. } => core.open(ino, reply),
            Op::Read { offset, size, .. } => core.read(ino, offset, size.into(), reply),
            Op::Write { offset, data, write_flags, flags, .. } => core.write(ino, offset, data, (write_flags, flags), reply),
            Op::FSync { .. } | Op::FSyncDir { .. } => core.sync(ino, reply),
            Op::Release { .. } => drop(reply.ok()),
            Op::OpenDir { .. } => core.opendir(ino, reply),
            Op::ReadDir { fh, offset, size, .. } => core.readdir(ino, fh, offset, size, reply),
            Op::ReadDirPlus { fh, offset, size, .. } => core.readdirplus(ino, fh, offset, size, reply),
            Op::ReleaseDir { fh, .. } => {
                core.listings.close(fh);
                reply.ok();
            }
            Op::StatFs => core.statfs(reply),
            Op::SetXattr { name, value, flags, acl_kill_sgid } => {
                core.setxattr(caller, ino, (name, value), (flags, acl_kill_sgid), again, reply)
            }
            Op::GetXattr { name, size } => core.getxattr(caller, ino, name, size, reply),
            Op::ListXattr { size } => core.listxattr(caller, ino, size, reply),
            Op::RemoveXattr { name } => core.removexattr(caller, ino, name, again, reply),
            Op::FAllocate { offset, length, mode, .. } => core.fallocate(caller, ino, (offset, length), mode, reply),
            Op::LSeek { offset, whence, .. } => core.lseek(ino, offset, whence, reply),
            Op::CopyFileRange { offset_in, node_out, offset_out, len, .. } => {
                core.copy_range(caller, (ino, offset_in), (Ino(node_out), offset_out), len, reply);
            }
            Op::IoCtl { .. } => drop(reply.error(libc::ENOTTY)),
            // Flush: every write is in the journal when it is answered, so that a close has nothing to wait for. Access and locks: the
            // kernel does them itself. StatX: only the time of birth comes that way, with a request more for each file that is looked at.
            // After ENOSYS the kernel asks no more. The transport keeps the others to itself.
            Op::Flush { .. }
            | Op::Access { .. }
            | Op::GetLk { .. }
            | Op::SetLk { .. }
            | Op::BMap { .. }
            | Op::Poll { .. }
            | Op::StatX { .. }
            | Op::SyncFs
            | Op::Forget { .. }
            | Op::BatchForget(_)
            | Op::Init(_)
            | Op::Interrupt { .. }
            | Op::Destroy
            | Op::NotifyReply { .. }
            | Op::Unknown => drop(reply.error(libc::ENOSYS)),
        }
    }

    fn forget(&self, nodeid: u64, nlookup: u64) {
        self.core.counters.requests.count(hiloop_transport::abi::Opcode::FORGET);
        if self.core.references.forget(Ino(nodeid), nlookup) {
            self.core.reap(Ino(nodeid));
        }
    }
}

/// Of a change of names or attributes.
pub(super) fn metadata() -> Cost {
    Cost { bytes: METADATA_COST, exempt: false }
}

/// Of a change that makes room.
pub(super) fn exempt() -> Cost {
    Cost { bytes: METADATA_COST, exempt: true }
}

pub(super) fn answer_empty(reply: Reply, result: Answer<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    };
}

/// An open file has no handle: requests carry its inode.
pub(super) fn open_file() -> Opened {
    Opened { fh: 0, flags: fopen::KEEP_CACHE, backing_id: 0 }
}

impl Core {
    fn getattr(self: &Arc<Self>, ino: Ino, reply: Reply) {
        self.run(reply, move |c| getattr(&c.ws.view(), ino).map(|a| file_attr(ino, &a)), |_, reply, result| answer_attr(reply, &result));
    }

    fn setattr(self: &Arc<Self>, caller: Caller, ino: Ino, set: SetAttr, reply: Reply) {
        // A truncate frees space; where it grows a file it writes nothing.
        let cost = if set.size.is_some() { exempt() } else { metadata() };
        self.modify(
            cost,
            reply,
            move |c| c.update(&[ino], |tx| setattr(tx, caller, ino, &set)).map(|a| file_attr(ino, &a)),
            |_, reply, result| answer_attr(reply, &result),
        );
    }

    fn readlink(self: &Arc<Self>, ino: Ino, reply: Reply) {
        self.run(
            reply,
            move |c| lookup::readlink(&c.ws.view(), ino),
            |_, reply, result| {
                match result {
                    Ok(target) => reply.data(&target),
                    Err(e) => reply.error(e),
                };
            },
        );
    }

    fn open(self: &Arc<Self>, ino: Ino, reply: Reply) {
        let answer = |_: &Arc<Core>, reply: Reply, result: Answer<()>| {
            match result {
                Ok(()) => reply.opened(open_file()),
                Err(e) => reply.error(e),
            };
        };
        // ESTALE for an inode that is gone: the kernel then looks its name up again.
        self.run(reply, move |c| getattr(&c.ws.view(), ino).map(drop), answer);
    }

    fn read(self: &Arc<Self>, ino: Ino, offset: u64, len: u64, reply: Reply) {
        self.run(
            reply,
            move |c| {
                let mut buffer = READ_BUFFER.take();
                let result = read(&c.ws.view(), ino, offset, len, &mut buffer);
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
                Err(e) => drop(reply.error(e)),
            },
        );
    }

    fn write(self: &Arc<Self>, ino: Ino, offset: u64, data: &[u8], (write_flags, flags): (u32, i32), reply: Reply) {
        if self.read_only {
            reply.error(libc::EROFS);
            return;
        }
        let mode = WriteMode { kill_suid_sgid: write_flags & write::KILL_SUIDGID != 0, whole: write_flags & write::CACHE != 0 };
        Write { ino, offset, mode, durable: flags & libc::O_DSYNC != 0 }.start(self, data, reply);
    }

    fn sync(self: &Arc<Self>, ino: Ino, reply: Reply) {
        let seqno = self.touched.last(ino);
        if seqno.0 == 0 {
            reply.ok();
            return;
        }
        let (core, parked) = (self.clone(), self.park_killably(reply, ()));
        let done = move |result: hiloop_types::Result<()>| {
            if let Some((reply, ())) = parked.take() {
                answer_empty(reply, core.flatten(result.map_err(FsError::from)));
            }
        };
        self.ws.sync(seqno, Box::new(done));
    }

    fn statfs(&self, reply: Reply) {
        let s = space::statfs(self.ws.quota(), &self.ws.totals());
        reply.statfs(&hiloop_transport::StatFs {
            blocks: s.blocks,
            bfree: s.free,
            bavail: s.free,
            files: s.files,
            ffree: s.files_free,
            bsize: s.fragment,
            namelen: s.name_max,
            frsize: s.fragment,
        });
    }

    fn setxattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        (flags, drop_sgid): (i32, bool),
        again: bool,
        reply: Reply,
    ) {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.modify(
            Cost { bytes: METADATA_COST + value.len() as u64, exempt: false },
            reply,
            move |c| {
                c.update(&[ino], |tx| match again && done::attribute_is(tx, ino, &name, Some(&value))? {
                    true => Ok(()),
                    false => xattr::set(tx, caller, drop_sgid, ino, &name, &value, flags),
                })
            },
            |_, reply, result| answer_empty(reply, result),
        );
    }

    fn getxattr(self: &Arc<Self>, caller: Caller, ino: Ino, name: &[u8], size: u32, reply: Reply) {
        let name = name.to_vec();
        self.run(
            reply,
            move |c| xattr::get(&c.ws.view(), caller, ino, &name),
            move |_, reply, result| answer_xattr(reply, size, result.as_deref().map_err(|e| *e)),
        );
    }

    fn listxattr(self: &Arc<Self>, caller: Caller, ino: Ino, size: u32, reply: Reply) {
        self.run(
            reply,
            move |c| xattr::list(&c.ws.view(), caller, ino),
            move |_, reply, result| answer_xattr(reply, size, result.as_deref().map_err(|e| *e)),
        );
    }

    fn removexattr(self: &Arc<Self>, caller: Caller, ino: Ino, name: &[u8], again: bool, reply: Reply) {
        let name = name.to_vec();
        self.modify(
            exempt(),
            reply,
            move |c| {
                c.update(&[ino], |tx| match again && done::attribute_is(tx, ino, &name, None)? {
                    true => Ok(()),
                    false => xattr::remove(tx, caller, ino, &name),
                })
            },
            |_, reply, result| answer_empty(reply, result),
        );
    }

    fn fallocate(self: &Arc<Self>, caller: Caller, ino: Ino, (offset, length): (u64, u64), mode: i32, reply: Reply) {
        let to = offset.saturating_add(length);
        let cost = if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 { exempt() } else { metadata() };
        let mut at = offset;
        let start = move |core: &Arc<Core>| {
            core.modify(
                cost,
                reply,
                move |c| {
                    loop {
                        at = c.update(&[ino], |tx| space::fallocate(tx, caller, ino, mode, at, to))?;
                        if at >= to {
                            return Ok(());
                        }
                    }
                },
                |_, reply, result| answer_empty(reply, result),
            );
        };
        if length > space::STEP {
            let core = self.clone();
            self.workers.submit(Box::new(move || start(&core)));
        } else {
            start(self);
        }
    }

    fn lseek(self: &Arc<Self>, ino: Ino, offset: i64, whence: i32, reply: Reply) {
        self.run(
            reply,
            move |c| seek(&c.ws.view(), ino, offset, whence),
            |_, reply, result| {
                match result {
                    Ok(at) => reply.offset(at as u64),
                    Err(e) => reply.error(e),
                };
            },
        );
    }

    fn copy_range(self: &Arc<Self>, caller: Caller, from: (Ino, u64), to: (Ino, u64), len: u64, reply: Reply) {
        // A clone writes no data: it counts as an operation, by the blocks whose map it changes.
        let blocks = len.min(limits::GIB) / limits::BLOCK;
        self.modify(
            Cost { bytes: METADATA_COST + blocks * 64, exempt: false },
            reply,
            move |c| c.update(&[to.0], |tx| copy_range(tx, caller, from, to, len)),
            |_, reply, result| {
                match result {
                    Ok(n) => reply.copied(n.into()),
                    Err(e) => reply.error(e),
                };
            },
        );
    }
}

fn answer_attr(reply: Reply, result: &Answer<hiloop_transport::Attr>) {
    match result {
        Ok(attr) => reply.attr(FOREVER, attr),
        Err(e) => reply.error(*e),
    };
}

fn answer_xattr(reply: Reply, size: u32, result: Answer<&[u8]>) {
    match result {
        Ok(value) => reply.xattr(size, value),
        Err(e) => reply.error(e),
    };
}

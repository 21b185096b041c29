//! Requests of [`NullFs`].

use std::time::Duration;

use hiloop_env::Env;
use parking_lot::{Mutex, MutexGuard};

use super::tree::{Answer, Content, Directory, Kind, New, Tree};
use crate::abi::{fopen, init, write};
use crate::answer::{Attr, Entry, Opened, StatFs};
use crate::dirbuf::{Dirent, Listing, ListingPlus};
use crate::init::InitConfig;
use crate::reply::Reply;
use crate::request::{Operation, Request, SetAttr, SetTime, Time};
use crate::session::FileSystem;

/// How long the kernel may keep names and attributes: as long as the real file system says.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// What is shown of free space, blocks of 4 KiB, and of free inodes.
const PLENTY: u64 = 1 << 28;
const SUID_SGID: u32 = libc::S_ISUID | libc::S_ISGID;

/// What the real file system agrees on with the kernel.
pub fn init_config() -> InitConfig {
    InitConfig {
        want: init::DONT_MASK
            | init::POSIX_ACL
            | init::HANDLE_KILLPRIV_V2
            | init::PARALLEL_DIROPS
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::CACHE_SYMLINKS
            | init::EXPLICIT_INVAL_DATA
            | init::ASYNC_DIO,
        ..InitConfig::default()
    }
}

/// A file system in memory.
pub struct NullFs {
    tree: Mutex<Tree>,
    env: Env,
}

impl NullFs {
    /// An empty one.
    pub fn new(env: Env) -> Self {
        let now = time(&env);
        Self { tree: Mutex::new(Tree::new(now)), env }
    }

    /// Nodes that exist, also those without a name that the kernel holds.
    pub fn nodes(&self) -> usize {
        self.tree.lock().len()
    }

    fn now(&self) -> Time {
        time(&self.env)
    }

    /// Answers with a node and counts the reference.
    fn entry(&self, mut tree: MutexGuard<'_, Tree>, reply: Reply, found: Answer<u64>) {
        let entry = match found.and_then(|ino| entry(&tree, ino)) {
            Ok(entry) => entry,
            Err(e) => {
                reply.error(e);
                return;
            }
        };
        tree.hold(entry.nodeid);
        drop(tree);
        if !reply.entry(&entry) {
            self.forget(entry.nodeid, 1);
        }
    }

    fn created(&self, mut tree: MutexGuard<'_, Tree>, reply: Reply, made: Answer<u64>) {
        let entry = match made.and_then(|ino| entry(&tree, ino)) {
            Ok(entry) => entry,
            Err(e) => {
                reply.error(e);
                return;
            }
        };
        tree.hold(entry.nodeid);
        drop(tree);
        if !reply.created(&entry, file_opened()) {
            self.forget(entry.nodeid, 1);
        }
    }

    fn new_node(&self, request: &Request<'_>, mode: u32, rdev: u32, kind: Kind) -> New {
        New { mode, uid: request.uid, gid: request.gid, rdev, kind, now: self.now() }
    }

    fn set(&self, node: u64, set: &SetAttr) -> Answer<Attr> {
        let now = self.now();
        let mut tree = self.tree.lock();
        let n = tree.get_mut(node)?;
        if let Some(size) = set.size {
            resize(n.content()?, size)?;
            n.touch(now);
        }
        let a = n.attr_mut();
        a.ctime = set.ctime.unwrap_or(now);
        if let Some(mode) = set.mode {
            a.mode = a.mode & libc::S_IFMT | mode & !libc::S_IFMT;
        }
        if set.kill_suidgid {
            a.mode &= !SUID_SGID;
        }
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        let at = |t| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        a.atime = set.atime.map_or(a.atime, at);
        a.mtime = set.mtime.map_or(a.mtime, at);
        Ok(n.attr())
    }

    fn content(&self, node: u64) -> Answer<Content> {
        self.tree.lock().get(node)?.content().cloned()
    }

    /// Changes a file's content.
    fn change<T>(&self, node: u64, change: impl FnOnce(&mut Vec<u8>) -> Answer<T>) -> Answer<T> {
        let now = self.now();
        let content = {
            let mut tree = self.tree.lock();
            let n = tree.get_mut(node)?;
            n.touch(now);
            n.content()?.clone()
        };
        change(&mut content.write())
    }

    fn read(&self, node: u64, offset: u64, size: u32, reply: Reply) {
        match self.content(node) {
            Ok(content) => reply.data(range(&content.read(), offset, u64::from(size))),
            Err(e) => reply.error(e),
        };
    }

    fn write(&self, node: u64, offset: u64, data: &[u8], flags: u32) -> Answer<u32> {
        if flags & write::KILL_SUIDGID != 0 {
            self.tree.lock().get_mut(node)?.attr_mut().mode &= !SUID_SGID;
        }
        let start = usize::try_from(offset).map_err(|_| libc::EFBIG)?;
        let end = start.checked_add(data.len()).ok_or(libc::EFBIG)?;
        self.change(node, |content| {
            if content.len() < end {
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(data);
            Ok(data.len() as u32)
        })
    }

    fn allocate(&self, node: u64, offset: u64, length: u64, mode: i32) -> Answer<()> {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let end = offset.checked_add(length).ok_or(libc::EFBIG)?;
        self.change(node, |content| {
            let old = content.len() as u64;
            match mode {
                0 if end > old => resize_vec(content, end),
                0 | libc::FALLOC_FL_KEEP_SIZE => Ok(()),
                m if m == punch => {
                    let (from, to) = (offset.min(old) as usize, end.min(old) as usize);
                    content[from..to].fill(0);
                    Ok(())
                }
                _ => Err(libc::EOPNOTSUPP),
            }
        })
    }

    fn copy(&self, from: (u64, u64), to: (u64, u64), len: u64) -> Answer<u64> {
        let data = range(&self.content(from.0)?.read(), from.1, len).to_vec();
        Ok(u64::from(self.write(to.0, to.1, &data, 0)?))
    }

    fn list(&self, dir: u64, offset: u64, size: u32, reply: Reply) {
        let tree = self.tree.lock();
        let mut listing = Listing::new(size);
        match each(&tree, dir, offset, &mut |d| listing.add(d)) {
            Ok(()) => reply.listing(&listing),
            Err(e) => reply.error(e),
        };
    }

    fn list_plus(&self, dir: u64, offset: u64, size: u32, reply: Reply) {
        let mut tree = self.tree.lock();
        let mut listing = ListingPlus::new(size);
        let mut held = Vec::new();
        let listed = each(&tree, dir, offset, &mut |d| {
            // The kernel counts no reference for these two.
            let node = if matches!(d.name, b"." | b"..") { None } else { entry(&tree, d.ino).ok() };
            let added = listing.add(d, node.as_ref());
            held.extend(node.filter(|_| added).map(|n| n.nodeid));
            added
        });
        if let Err(e) = listed {
            reply.error(e);
            return;
        }
        held.iter().for_each(|ino| tree.hold(*ino));
        drop(tree);
        if !reply.listing_plus(&listing) {
            held.iter().for_each(|ino| self.forget(*ino, 1));
        }
    }
}

fn time(env: &Env) -> Time {
    let wall = env.wall();
    Time { secs: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
}

fn entry(tree: &Tree, ino: u64) -> Answer<Entry> {
    Ok(Entry { nodeid: ino, generation: 0, entry_valid: FOREVER, attr_valid: FOREVER, attr: tree.get(ino)?.attr() })
}

fn file_opened() -> Opened {
    Opened { fh: 0, flags: fopen::KEEP_CACHE, backing_id: 0 }
}

fn range(content: &[u8], offset: u64, size: u64) -> &[u8] {
    let len = content.len() as u64;
    let (from, to) = (offset.min(len), offset.saturating_add(size).min(len));
    &content[from as usize..to as usize]
}

fn resize_vec(content: &mut Vec<u8>, size: u64) -> Answer<()> {
    let size = usize::try_from(size).map_err(|_| libc::EFBIG)?;
    content.try_reserve(size.saturating_sub(content.len())).map_err(|_| libc::EFBIG)?;
    content.resize(size, 0);
    Ok(())
}

fn resize(content: &Content, size: u64) -> Answer<()> {
    resize_vec(&mut content.write(), size)
}

/// Gives the entries behind `offset`, until one is not taken.
fn each(tree: &Tree, dir: u64, offset: u64, take: &mut dyn FnMut(&Dirent<'_>) -> bool) -> Answer<()> {
    let directory = tree.directory(dir)?;
    let dots = [(1, &b"."[..], dir), (2, b"..", tree.parent(dir))];
    let named = directory.order.range(offset.saturating_add(1)..).map(|(cookie, (name, ino))| (*cookie, &name[..], *ino));
    for (cookie, name, ino) in dots.into_iter().filter(|d| d.0 > offset).chain(named) {
        let kind = tree.get(ino).map_or(0, |n| n.attr().mode >> 12);
        if !take(&Dirent { ino, cookie, kind, name }) {
            break;
        }
    }
    Ok(())
}

fn empty(reply: Reply, result: Answer<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    };
}

impl FileSystem for NullFs {
    fn forget(&self, nodeid: u64, nlookup: u64) {
        self.tree.lock().forget(nodeid, nlookup);
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        use Operation as Op;
        let node = request.nodeid;
        match request.op {
            Op::Lookup { name } => {
                let tree = self.tree.lock();
                match tree.lookup(node, name) {
                    Err(libc::ENOENT) => {
                        reply.entry(&Entry::negative(FOREVER));
                    }
                    found => self.entry(tree, reply, found),
                }
            }
            Op::GetAttr { .. } => {
                let attr = self.tree.lock().get(node).map(|n| n.attr());
                match attr {
                    Ok(attr) => reply.attr(FOREVER, &attr),
                    Err(e) => reply.error(e),
                };
            }
            Op::StatX { .. } => {
                let attr = self.tree.lock().get(node).map(|n| n.attr());
                match attr {
                    Ok(attr) => reply.statx(FOREVER, &attr),
                    Err(e) => reply.error(e),
                };
            }
            Op::SetAttr(set) => {
                match self.set(node, &set) {
                    Ok(attr) => reply.attr(FOREVER, &attr),
                    Err(e) => reply.error(e),
                };
            }
            Op::ReadLink => {
                let tree = self.tree.lock();
                match tree.get(node).map(|n| &n.kind) {
                    Ok(Kind::Link(target)) => reply.data(target),
                    Ok(_) => reply.error(libc::EINVAL),
                    Err(e) => reply.error(e),
                };
            }
            Op::MkNod { name, mode, umask, rdev } => {
                let kind = match mode & libc::S_IFMT {
                    0 | libc::S_IFREG => Kind::File(Content::default()),
                    _ => Kind::Other,
                };
                let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
                let mut tree = self.tree.lock();
                let made = tree.make(node, name, self.new_node(&request, mode & !umask, rdev, kind));
                self.entry(tree, reply, made);
            }
            Op::MkDir { name, mode, umask } => {
                let mut tree = self.tree.lock();
                let new = self.new_node(&request, libc::S_IFDIR | mode & !umask, 0, Kind::Directory(Directory::default()));
                let made = tree.make(node, name, new);
                self.entry(tree, reply, made);
            }
            Op::SymLink { name, target } => {
                let mut tree = self.tree.lock();
                let made = tree.make(node, name, self.new_node(&request, libc::S_IFLNK | 0o777, 0, Kind::Link(target.to_vec())));
                self.entry(tree, reply, made);
            }
            Op::Link { node: target, new_name } => {
                let mut tree = self.tree.lock();
                let linked = tree.link(target, node, new_name, self.now()).map(|()| target);
                self.entry(tree, reply, linked);
            }
            Op::Unlink { name } => {
                let result = self.tree.lock().remove(node, name, false, self.now());
                empty(reply, result);
            }
            Op::RmDir { name } => {
                let result = self.tree.lock().remove(node, name, true, self.now());
                empty(reply, result);
            }
            Op::Rename { name, new_dir, new_name, flags } => {
                let result = self.tree.lock().rename((node, name), (new_dir, new_name), flags, self.now());
                empty(reply, result);
            }
            Op::Open { .. } => {
                let found = self.tree.lock().get(node).map(drop);
                match found {
                    Ok(()) => reply.opened(file_opened()),
                    Err(e) => reply.error(e),
                };
            }
            Op::Create { name, mode, umask, .. } => {
                let mut tree = self.tree.lock();
                let new = self.new_node(&request, libc::S_IFREG | mode & !umask & !libc::S_IFMT, 0, Kind::File(Content::default()));
                let made = tree.make(node, name, new);
                self.created(tree, reply, made);
            }
            Op::TmpFile { mode, umask, .. } => {
                let mut tree = self.tree.lock();
                let new = self.new_node(&request, libc::S_IFREG | mode & !umask & !libc::S_IFMT, 0, Kind::File(Content::default()));
                let made = tree.add(new, node);
                self.created(tree, reply, Ok(made));
            }
            Op::Read { offset, size, .. } => self.read(node, offset, size, reply),
            Op::Write { offset, data, write_flags, .. } => {
                match self.write(node, offset, data, write_flags) {
                    Ok(n) => reply.written(n),
                    Err(e) => reply.error(e),
                };
            }
            Op::FAllocate { offset, length, mode, .. } => empty(reply, self.allocate(node, offset, length, mode)),
            Op::CopyFileRange { offset_in, node_out, offset_out, len, .. } => {
                match self.copy((node, offset_in), (node_out, offset_out), len.min(u64::from(u32::MAX))) {
                    Ok(n) => reply.copied(n),
                    Err(e) => reply.error(e),
                };
            }
            Op::OpenDir { .. } => {
                reply.opened(Opened { fh: 0, flags: fopen::KEEP_CACHE | fopen::CACHE_DIR, backing_id: 0 });
            }
            Op::ReadDir { offset, size, .. } => self.list(node, offset, size, reply),
            Op::ReadDirPlus { offset, size, .. } => self.list_plus(node, offset, size, reply),
            Op::StatFs => {
                let files = self.nodes() as u64;
                reply.statfs(&StatFs {
                    blocks: PLENTY,
                    bfree: PLENTY,
                    bavail: PLENTY,
                    files: files + PLENTY,
                    ffree: PLENTY,
                    bsize: 4096,
                    namelen: 255,
                    frsize: 4096,
                });
            }
            Op::GetXattr { .. } | Op::RemoveXattr { .. } => {
                reply.error(libc::ENODATA);
            }
            Op::ListXattr { size } => {
                reply.xattr(size, b"");
            }
            Op::SetXattr { .. } => {
                reply.error(libc::EOPNOTSUPP);
            }
            Op::Release { .. } | Op::ReleaseDir { .. } | Op::FSync { .. } | Op::FSyncDir { .. } | Op::SyncFs => {
                reply.ok();
            }
            Op::IoCtl { .. } => {
                reply.error(libc::ENOTTY);
            }
            // The kernel does these by itself, or does without, and asks no more.
            _ => {
                reply.error(libc::ENOSYS);
            }
        }
    }
}

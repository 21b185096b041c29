//! What we tell the kernel unasked.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use crate::abi::{OUT_HEADER, notify};
use crate::encode::Body;
use crate::link::Link;

/// INVAL_ENTRY: the name expires, so that it is looked up again, and stays in the directory's cache.
const EXPIRE_ONLY: u32 = 1;
/// Most bytes in one STORE: what a request has room for without tuning.
const STORE_MAX: usize = 1 << 20;

/// Tells the kernel that what it remembers is wrong, and the like. Each call is one write to the device, which the kernel may hold
/// up while it has the node locked: never call it from the thread that answers a request for that node. Cheap to clone.
#[derive(Clone)]
pub struct Notifier(pub(crate) Arc<Link>);

impl Notifier {
    fn notify(&self, code: i32, args: &[&[u8]], body: Body<'_>, body_len: usize) -> io::Result<bool> {
        let mut head = vec![0; 8];
        head.extend(0u64.to_ne_bytes());
        args.iter().for_each(|a| head.extend_from_slice(a));
        let total = (head.len() + body_len) as u32;
        head[..4].copy_from_slice(&total.to_ne_bytes());
        head[4..8].copy_from_slice(&code.to_ne_bytes());
        debug_assert!(head.len() >= OUT_HEADER);
        match self.0.send(&head, body) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn plain(&self, code: i32, args: &[&[u8]]) -> io::Result<bool> {
        self.notify(code, args, Body::None, 0)
    }

    /// Drops attributes and pages of a node from `offset` on, `len` bytes; all of them where `len` is not positive, none where
    /// `offset` is negative. False where the kernel does not know the node.
    ///
    /// # Errors
    /// ENODEV after the mount has ended.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<bool> {
        self.plain(notify::INVAL_INODE, &[&node.to_ne_bytes(), &offset.to_ne_bytes(), &len.to_ne_bytes()])
    }

    /// Drops a name, or (`expire_only`) makes the kernel look it up again. False where the kernel does not know it.
    ///
    /// # Errors
    /// ENODEV after the mount has ended; ENAMETOOLONG.
    pub fn inval_entry(&self, parent: u64, name: &[u8], expire_only: bool) -> io::Result<bool> {
        let flags = if expire_only { EXPIRE_ONLY } else { 0 };
        let args: [&[u8]; 5] = [&parent.to_ne_bytes(), &(name.len() as u32).to_ne_bytes(), &flags.to_ne_bytes(), name, b"\0"];
        self.plain(notify::INVAL_ENTRY, &args)
    }

    /// Says that `name` was removed and was `child`: watchers hear of it. False where the kernel does not know it.
    ///
    /// # Errors
    /// ENODEV after the mount has ended; ENOTEMPTY, EBUSY as the kernel finds them.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<bool> {
        let len = (name.len() as u32).to_ne_bytes();
        self.plain(notify::DELETE, &[&parent.to_ne_bytes(), &child.to_ne_bytes(), &len, &[0; 4], name, b"\0"])
    }

    /// Puts content into the page cache. False where the kernel does not know the node.
    ///
    /// # Errors
    /// EINVAL for more than 1 MiB at once, ENODEV after the mount has ended.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> io::Result<bool> {
        if data.len() > STORE_MAX {
            return Err(Errno::EINVAL.into());
        }
        let len = (data.len() as u32).to_ne_bytes();
        self.notify(notify::STORE, &[&node.to_ne_bytes(), &offset.to_ne_bytes(), &len, &[0; 4]], Body::One(data), data.len())
    }

    /// Asks for content of the page cache; it comes to [`crate::FileSystem::retrieved`] with `id`. False where the kernel does not
    /// know the node.
    ///
    /// # Errors
    /// ENODEV after the mount has ended.
    pub fn retrieve(&self, id: u64, node: u64, offset: u64, len: u32) -> io::Result<bool> {
        self.plain(notify::RETRIEVE, &[&id.to_ne_bytes(), &node.to_ne_bytes(), &offset.to_ne_bytes(), &len.to_ne_bytes(), &[0; 4]])
    }

    /// Has everything that was read and not answered, by whomever, handed out again, marked ([`crate::Request::resent`]). Only before
    /// any reader runs: what a living reader has in hand would be done twice. [`crate::Session::resume`] does it.
    ///
    /// # Errors
    /// EINVAL where the kernel is older than 6.9.
    pub(crate) fn resend(&self) -> io::Result<()> {
        self.plain(notify::RESEND, &[]).map(drop)
    }

    /// Makes all names and listings that the kernel has expire.
    ///
    /// # Errors
    /// EINVAL where the kernel speaks less than 7.44.
    pub fn inc_epoch(&self) -> io::Result<()> {
        self.plain(notify::INC_EPOCH, &[]).map(drop)
    }

    /// Asks the kernel to let go of nodes that nobody uses; what it lets go comes back as FORGET.
    ///
    /// # Errors
    /// EINVAL where the kernel speaks less than 7.45.
    pub fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        let list: Vec<u8> = nodes.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.plain(notify::PRUNE, &[&(nodes.len() as u32).to_ne_bytes(), &[0; 12], &list]).map(drop)
    }
}

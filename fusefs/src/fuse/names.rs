//! Requests about names: look-ups, and what makes, moves and removes them.
//!
//! `again` marks a request that came back after a takeover: its effect may be there. While it is under way the kernel lets nobody else
//! touch its names, and no change comes from elsewhere, so what is there was done by the request itself ([`crate::fs::again`]).

use std::sync::Arc;

use hiloop_engine::workspace::Txn;
use hiloop_manifest::schema::FileKind;
use hiloop_transport::{Entry, Reply};
use hiloop_types::Ino;

use super::adapter::{answer_empty, exempt, metadata, open_file};
use super::convert::{kind_of_mode, node_entry};
use super::core::Core;
use super::kernel::FOREVER;
use super::park::Answer;
use crate::fs::create::{New, create, make, tmpfile};
use crate::fs::rename::Place;
use crate::fs::{Caller, FsResult, Node, again as done, link, lookup, rename};

/// A name in a directory.
type At<'a> = (Ino, &'a [u8]);
/// Permission bits and umask.
type Mode = (u32, u32);

/// Arguments of a creation that outlive the request's buffer.
struct OwnedNew {
    dir: Ino,
    name: Vec<u8>,
    kind: FileKind,
    mode: Mode,
    rdev: u32,
    target: Vec<u8>,
}

impl OwnedNew {
    fn new(kind: FileKind, (dir, name): At<'_>, mode: Mode) -> Self {
        Self { dir, name: name.to_vec(), kind, mode, rdev: 0, target: Vec::new() }
    }
    fn borrow(&self) -> New<'_> {
        let (mode, umask) = self.mode;
        New { dir: self.dir, name: &self.name, kind: self.kind, mode, umask, rdev: self.rdev, target: &self.target }
    }
}

impl Core {
    pub(super) fn lookup(self: &Arc<Self>, dir: Ino, name: &[u8], reply: Reply) {
        let name = name.to_vec();
        self.run(
            reply,
            move |c| lookup::lookup(&c.ws.view(), dir, &name),
            |c, reply, result| match result {
                Ok(None) => drop(reply.entry(&Entry::negative(FOREVER))),
                Ok(Some(node)) => c.answer_entry(reply, Ok(node)),
                Err(e) => drop(reply.error(e)),
            },
        );
    }

    pub(super) fn mknod(self: &Arc<Self>, caller: Caller, at: At<'_>, mode: Mode, rdev: u32, again: bool, reply: Reply) {
        match kind_of_mode(mode.0) {
            Some(kind) => self.make(caller, OwnedNew { rdev, ..OwnedNew::new(kind, at, mode) }, again, reply),
            None => drop(reply.error(libc::EINVAL)),
        }
    }

    pub(super) fn mkdir(self: &Arc<Self>, caller: Caller, at: At<'_>, mode: Mode, again: bool, reply: Reply) {
        self.make(caller, OwnedNew::new(FileKind::Directory, at, mode), again, reply);
    }

    pub(super) fn symlink(self: &Arc<Self>, caller: Caller, at: At<'_>, target: &[u8], again: bool, reply: Reply) {
        self.make(caller, OwnedNew { target: target.to_vec(), ..OwnedNew::new(FileKind::Symlink, at, (0o777, 0)) }, again, reply);
    }

    fn make(self: &Arc<Self>, caller: Caller, new: OwnedNew, again: bool, reply: Reply) {
        self.modify(
            metadata(),
            reply,
            move |c| c.make_with(&new, again, |tx, new| make(tx, caller, new)),
            |c, reply, result| {
                c.answer_entry(reply, result);
            },
        );
    }

    pub(super) fn create(self: &Arc<Self>, caller: Caller, at: At<'_>, mode: Mode, flags: i32, again: bool, reply: Reply) {
        let new = OwnedNew::new(FileKind::File, at, mode);
        self.modify(
            metadata(),
            reply,
            move |c| c.make_with(&new, again, |tx, new| create(tx, caller, new, flags)),
            |c, reply, result| {
                c.answer_created(reply, result);
            },
        );
    }

    pub(super) fn tmpfile(self: &Arc<Self>, caller: Caller, dir: Ino, mode: Mode, reply: Reply) {
        let new = OwnedNew::new(FileKind::File, (dir, b""), mode);
        self.modify(
            metadata(),
            reply,
            move |c| c.update_and(|tx| tmpfile(tx, caller, &new.borrow()), |node, touch| touch(node.ino)),
            |c, reply, result| {
                if let Ok(node) = &result {
                    // Before the answer counts the reference that the kernel gets: whoever lets go of that one removes the file.
                    c.references.nameless(node.ino);
                }
                c.answer_created(reply, result);
            },
        );
    }

    fn make_with(&self, new: &OwnedNew, again: bool, make: impl FnOnce(&mut Txn<'_>, &New<'_>) -> FsResult<Node>) -> FsResult<Node> {
        let change = |tx: &mut Txn<'_>| match if again { done::made(tx, &new.borrow())? } else { None } {
            Some(node) => Ok(node),
            None => make(tx, &new.borrow()),
        };
        self.update_and(change, |node, touch| [new.dir, node.ino].into_iter().for_each(touch))
    }

    pub(super) fn remove(self: &Arc<Self>, (dir, name): At<'_>, directory: bool, again: bool, reply: Reply) {
        let name = name.to_vec();
        self.modify(
            exempt(),
            reply,
            move |c| {
                let change = |tx: &mut Txn<'_>| {
                    if again && done::removed(tx, dir, &name)? {
                        return Ok(None);
                    }
                    if directory { link::rmdir(tx, dir, &name) } else { link::unlink(tx, dir, &name) }.map(Some)
                };
                c.update_and(change, |removed, touch| std::iter::once(dir).chain(removed.map(|r| r.ino)).for_each(touch))
            },
            |c, reply, result| answer_empty(reply, result.map(|removed| c.after_removal(removed))),
        );
    }

    pub(super) fn rename(self: &Arc<Self>, caller: Caller, from: At<'_>, to: At<'_>, (flags, again): (u32, bool), reply: Reply) {
        let ((from, name), (to, new_name)) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        self.modify(
            metadata(),
            reply,
            move |c| {
                let (a, b) = (Place { dir: from, name: &name }, Place { dir: to, name: &new_name });
                let change = |tx: &mut Txn<'_>| match if again { done::renamed(tx, a, b, flags)? } else { None } {
                    Some(renamed) => Ok(renamed),
                    None => rename::rename(tx, caller, a, b, flags),
                };
                c.update_and(change, |r, touch| [from, to, r.moved].into_iter().chain(r.other.map(|o| o.ino)).for_each(touch))
            },
            |c, reply, result| answer_empty(reply, result.map(|renamed| c.after_removal(renamed.other))),
        );
    }

    pub(super) fn link(self: &Arc<Self>, ino: Ino, (dir, name): At<'_>, again: bool, reply: Reply) {
        let name = name.to_vec();
        self.modify(
            metadata(),
            reply,
            move |c| {
                let change = |tx: &mut Txn<'_>| match if again { done::linked(tx, ino, dir, &name)? } else { None } {
                    Some(node) => Ok(node),
                    None => link::link(tx, ino, dir, &name),
                };
                c.update(&[ino, dir], change)
            },
            |c, reply, result| {
                if let Ok(node) = &result {
                    c.references.named(node.ino);
                }
                c.answer_entry(reply, result);
            },
        );
    }

    /// Answers with a node and counts the reference that the kernel gets: before it is sent, since a FORGET may follow at once.
    fn answer_entry(self: &Arc<Self>, reply: Reply, result: Answer<Node>) {
        self.answer_node(reply, result, |reply, entry| reply.entry(entry));
    }

    fn answer_created(self: &Arc<Self>, reply: Reply, result: Answer<Node>) {
        self.answer_node(reply, result, |reply, entry| reply.created(entry, open_file()));
    }

    fn answer_node(self: &Arc<Self>, reply: Reply, result: Answer<Node>, send: impl FnOnce(Reply, &Entry) -> bool) {
        match result {
            Ok(node) => {
                self.references.add(node.ino);
                if !send(reply, &node_entry(&node)) {
                    self.unreferenced(node.ino);
                }
            }
            Err(e) => drop(reply.error(e)),
        }
    }

    /// Lets go of an inode whose last name went, if the kernel does not hold it.
    fn after_removal(self: &Arc<Self>, removed: Option<link::Removed>) {
        if let Some(r) = removed
            && r.orphaned
            && self.references.orphaned(r.ino)
        {
            self.reap(r.ino);
        }
    }
}

//! A file system whose state outlives its process: a few files of one size, all in one file outside. Every request may be repeated.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use hiloop_transport::abi::{ROOT, fopen};
use hiloop_transport::{Attr, Entry, FileSystem, Opened, Operation, Reply, Request, StatFs};

/// Bytes in each file.
pub const SIZE: u64 = 1 << 20;
/// Files, `f0` and so on.
pub const FILES: u64 = 4;

pub struct Slate {
    pub state: File,
}

fn attr(node: u64) -> Option<Attr> {
    let (mode, size) = match node {
        ROOT => (libc::S_IFDIR | 0o755, 0),
        n if n <= ROOT + FILES => (libc::S_IFREG | 0o644, SIZE),
        _ => return None,
    };
    Some(Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Attr::default() })
}

impl Slate {
    fn region(node: u64) -> u64 {
        (node - ROOT - 1) * SIZE
    }
}

impl FileSystem for Slate {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let node = request.nodeid;
        let Some(attr_) = attr(node) else {
            reply.error(libc::ESTALE);
            return;
        };
        match request.op {
            Operation::Lookup { name } => {
                let number = std::str::from_utf8(name).ok().and_then(|n| n.strip_prefix('f')?.parse::<u64>().ok());
                match number.and_then(|n| attr(ROOT + 1 + n)) {
                    Some(attr) => reply.entry(&Entry { nodeid: attr.ino, attr, ..Entry::default() }),
                    None => reply.error(libc::ENOENT),
                };
            }
            Operation::GetAttr { .. } | Operation::SetAttr(_) => {
                reply.attr(Duration::ZERO, &attr_);
            }
            // Past the page cache, so that each read and write is a request.
            Operation::Open { .. } => {
                reply.opened(Opened { flags: fopen::DIRECT_IO, ..Opened::default() });
            }
            Operation::Read { offset, size, .. } => {
                let mut data = vec![0; u64::from(size).min(SIZE.saturating_sub(offset)) as usize];
                self.state.read_exact_at(&mut data, Self::region(node) + offset).unwrap();
                reply.data(&data);
            }
            Operation::Write { offset, data, .. } => {
                self.state.write_all_at(data, Self::region(node) + offset).unwrap();
                reply.written(data.len() as u32);
            }
            Operation::FSync { .. } | Operation::Release { .. } => {
                reply.ok();
            }
            Operation::StatFs => {
                reply.statfs(&StatFs::default());
            }
            _ => {
                reply.error(libc::ENOSYS);
            }
        }
    }

    fn forget(&self, _nodeid: u64, _nlookup: u64) {}
}

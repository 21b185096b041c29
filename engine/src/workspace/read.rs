//! Reading a workspace from memory.

use std::collections::HashMap;

use bytes::Bytes;
use hiloop_manifest::schema::{Attr, Block, ChunkRef, Entry, IndexEntry, Key, KeyKind, NameHasher, Prefix, Source, Value};
use hiloop_manifest::tree::{Access, KeyRange, NodeRef, Scan};
use hiloop_types::{Error, Ino, Result, limits};
use parking_lot::RwLockReadGuard;

use super::neighbours::CHUNKS;
use super::{Near, Shared, State, scan, state};
use crate::stop::{Miss, Stop};

/// First readahead window of a file that is read in sequence, bytes; doubles with each miss.
const READAHEAD_FIRST: u64 = 256 * limits::KIB;
/// Largest readahead window, bytes.
const READAHEAD_MAX: u64 = 8 * limits::MIB;
/// Manifest records that are looked through for the files behind one.
const RECORDS: usize = 4 * CHUNKS;
/// Files whose sequence is remembered.
const SEQUENTIAL_FILES: usize = 1024;

/// A consistent view of a workspace: holds its lock, so it must be short.
pub struct View<'a> {
    pub(super) shared: &'a Shared,
    pub(super) state: RwLockReadGuard<'a, State>,
}

fn wrong(key: &Key) -> Stop {
    Stop::Error(Error::internal(format!("{key:?} holds a value of another kind")))
}

/// Reading by what the keys mean. [`Stop::Miss`]: fetch and run the operation again.
pub trait Read {
    /// The value of a key.
    ///
    /// # Errors
    /// A miss, or a damaged value.
    fn value(&self, key: &Key) -> Result<Option<Value>, Stop>;
    /// Calls `f` for each key of `prefix` from `from` on, in order, until it returns false.
    ///
    /// # Errors
    /// As [`Self::value`]; `f` may have been called before.
    fn scan(&self, prefix: &Prefix, from: &[u8], f: &mut dyn FnMut(KeyKind<'_>, &Value) -> bool) -> Result<(), Stop>;
    /// The hash of entry names.
    fn hasher(&self) -> &NameHasher;
    /// Widens a miss of `stop` by what an operation that stands there needs next.
    fn near(&self, stop: Stop, _near: Near<'_>) -> Stop {
        stop
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn attr(&self, ino: Ino) -> Result<Option<Attr>, Stop> {
        let key = Key::attr(ino);
        match self.value(&key)? {
            None => Ok(None),
            Some(Value::Attr(a)) => Ok(Some(*a)),
            Some(_) => Err(wrong(&key)),
        }
    }
    /// A directory entry by name.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Entry>, Stop> {
        let key = self.hasher().entry(dir, name);
        match self.value(&key)? {
            None => Ok(None),
            Some(Value::Entry(e)) => Ok(Some(e)),
            Some(_) => Err(wrong(&key)),
        }
    }
    /// A directory entry by index.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn index_entry(&self, dir: Ino, index: u64) -> Result<Option<IndexEntry>, Stop> {
        let key = Key::index(dir, index);
        match self.value(&key)? {
            None => Ok(None),
            Some(Value::Index(e)) => Ok(Some(e)),
            Some(_) => Err(wrong(&key)),
        }
    }
    /// Entries of a directory in index order, from `index` on.
    ///
    /// # Errors
    /// As [`Self::scan`].
    fn entries_from(&self, dir: Ino, index: u64, f: &mut dyn FnMut(u64, &IndexEntry) -> bool) -> Result<(), Stop> {
        self.scan(&Prefix::index(dir), Key::index(dir, index).as_bytes(), &mut |k, v| match (k, v) {
            (KeyKind::Index(_, i), Value::Index(e)) => f(i, e),
            _ => true,
        })
    }
    /// One block of a file; `None` where it is a hole.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn block(&self, ino: Ino, n: u64) -> Result<Option<Block>, Stop> {
        let key = Key::block(ino, n);
        match self.value(&key)? {
            None => Ok(None),
            Some(Value::Block(b)) => Ok(Some(b)),
            Some(_) => Err(wrong(&key)),
        }
    }
    /// Blocks of a file that are not holes, from block `n` on.
    ///
    /// # Errors
    /// As [`Self::scan`].
    fn blocks_from(&self, ino: Ino, n: u64, f: &mut dyn FnMut(u64, &Block) -> bool) -> Result<(), Stop> {
        self.scan(&Prefix::blocks(ino), Key::block(ino, n).as_bytes(), &mut |k, v| match (k, v) {
            (KeyKind::Block(_, i), Value::Block(b)) => f(i, b),
            _ => true,
        })
    }
    /// An extended attribute.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Bytes>, Stop> {
        let key = Key::xattr(ino, name);
        match self.value(&key)? {
            None => Ok(None),
            Some(Value::Bytes(b)) => Ok(Some(b)),
            Some(_) => Err(wrong(&key)),
        }
    }
    /// Extended attributes of an inode in name order.
    ///
    /// # Errors
    /// As [`Self::scan`].
    fn xattrs(&self, ino: Ino, f: &mut dyn FnMut(&[u8], &Bytes) -> bool) -> Result<(), Stop> {
        self.scan(&Prefix::xattrs(ino), &[], &mut |k, v| match (k, v) {
            (KeyKind::Xattr(_, n), Value::Bytes(b)) => f(n, b),
            _ => true,
        })
    }
    /// Names of an inode as (directory, index).
    ///
    /// # Errors
    /// As [`Self::scan`].
    fn backrefs(&self, ino: Ino, f: &mut dyn FnMut(Ino, u64) -> bool) -> Result<(), Stop> {
        self.scan(&Prefix::backrefs(ino), &[], &mut |k, _| match k {
            KeyKind::BackRef { dir, index, .. } => f(dir, index),
            _ => true,
        })
    }
}

impl<'a> View<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared, state: shared.state.read() }
    }

    /// The nodes that reading the attributes of these inodes misses, as far as can be told now.
    ///
    /// # Errors
    /// Damage of an inner node.
    pub fn missing_attrs(&self, inodes: &[Ino]) -> Result<Vec<NodeRef>> {
        self.state.missing_attrs(&self.shared.hydrator, inodes)
    }

    /// Appends `len` bytes of a file from `offset` on to `out`; the caller has clipped the range to the file's size. Data that is in
    /// memory or in the page cache is answered now; otherwise the miss names all chunks of the range, and ahead those of a window behind
    /// it where the file, or many small files, are read in sequence.
    ///
    /// # Errors
    /// A miss (what was appended so far is then undefined), or damage.
    pub fn read(&self, ino: Ino, offset: u64, len: u64, out: &mut Vec<u8>) -> Result<(), Stop> {
        let end = offset + len;
        out.reserve(len as usize);
        let base = out.len();
        let mut missing = Vec::new();
        let mut failed = None;
        self.blocks_from(ino, offset / limits::BLOCK, &mut |n, block| {
            let start = n * limits::BLOCK;
            if start >= end {
                return false;
            }
            let (from, to) = (offset.max(start) - start, end.min(start + limits::BLOCK) - start);
            for p in block.pieces().iter().filter_map(|p| p.within(from as u32, to as u32)) {
                out.resize(base + (start + u64::from(p.start) - offset) as usize, 0);
                if let Err(stop) = self.piece(&p.source, p.len, out, &mut missing) {
                    failed = Some(stop);
                    return false;
                }
            }
            true
        })?;
        if let Some(stop) = failed {
            return Err(stop);
        }
        if !missing.is_empty() {
            let ahead = match missing.as_slice() {
                [only] if offset == 0 => self.neighbours(ino, only),
                _ => self.readahead(ino, offset, end),
            };
            return Err(Stop::Miss(Miss::Chunks { needed: missing, ahead }));
        }
        self.shared.sequential.lock().note(ino, end);
        out.resize(base + len as usize, 0);
        Ok(())
    }

    fn piece(&self, source: &Source, len: u32, out: &mut Vec<u8>, missing: &mut Vec<ChunkRef>) -> Result<(), Stop> {
        let at = out.len();
        match source {
            Source::Zero => out.resize(at + len as usize, 0),
            Source::Inline(b) => out.extend_from_slice(&b[..len as usize]),
            Source::Chunk { chunk, skip } => match self.shared.hydrator.chunk_in_memory(&chunk.id) {
                Some(b) => {
                    out.extend_from_slice(&b[*skip as usize..(*skip + len) as usize]);
                    self.shared.neighbours.lock().read(&chunk.id);
                }
                None => missing.push(*chunk),
            },
            Source::Staged { at: staged, skip } => {
                out.resize(at + len as usize, 0);
                let journal = &self.shared.node.journal;
                if !journal.read_staged_nowait(&state::staged_ref(staged), *skip, &mut out[at..])? {
                    return Err(Stop::Miss(Miss::Staged(*staged)));
                }
            }
        }
        Ok(())
    }

    /// The chunks behind a missed range where the file is read in sequence.
    fn readahead(&self, ino: Ino, offset: u64, end: u64) -> Vec<ChunkRef> {
        let mut ahead = Vec::new();
        let Some(window) = self.shared.sequential.lock().window(ino, offset) else { return ahead };
        let limit = end + window;
        // Manifest nodes that are not here end the window: readahead never waits.
        let _ = self.blocks_from(ino, end / limits::BLOCK, &mut |n, block| {
            if n * limits::BLOCK >= limit {
                return false;
            }
            for p in block.pieces() {
                if let Source::Chunk { chunk, .. } = &p.source
                    && self.shared.hydrator.chunk_in_memory(&chunk.id).is_none()
                {
                    ahead.push(*chunk);
                }
            }
            true
        });
        ahead.dedup_by_key(|c| c.id);
        ahead
    }

    /// The chunks of the files behind this one, where files are read in the order of their pack.
    fn neighbours(&self, ino: Ino, missed: &ChunkRef) -> Vec<ChunkRef> {
        let mut neighbours = self.shared.neighbours.lock();
        let window = neighbours.window(&missed.at);
        let (Some(root), true) = (&self.state.root, window > 0) else { return Vec::new() };
        let from = Key::block(ino, 1);
        let range = KeyRange::between(from.as_bytes(), Prefix::entries(Ino(0)).start());
        let ahead = behind(Scan::new(&self.shared.hydrator, root, range), missed, window, |c| {
            self.shared.hydrator.chunk_in_memory(&c.id).is_none()
        });
        neighbours.fetching(&ahead);
        ahead
    }
}

/// The wanted chunks of these records that lie behind `missed` in its pack, in their order, up to `window` bytes behind it. Ends at what is
/// not in memory and where the order of records is not that of the pack.
fn behind(
    records: impl Iterator<Item = Result<(Bytes, Bytes), Access>>,
    missed: &ChunkRef,
    window: u64,
    wanted: impl Fn(&ChunkRef) -> bool,
) -> Vec<ChunkRef> {
    let end = |c: &ChunkRef| u64::from(c.at.offset) + u64::from(c.at.stored_len);
    let limit = end(missed) + window;
    let (mut ahead, mut last): (Vec<ChunkRef>, _) = (Vec::new(), end(missed));
    for (key, value) in records.take(RECORDS).map_while(Result::ok) {
        if !matches!(KeyKind::parse(&key), Ok(KeyKind::Block(..))) {
            continue;
        }
        let Ok(block) = Block::decode(&value, &[]) else { break };
        for piece in block.pieces() {
            let Source::Chunk { chunk, .. } = &piece.source else { continue };
            if u64::from(chunk.at.offset) < last {
                // Content that stands earlier too; the files behind may go on.
                continue;
            }
            if chunk.at.pack != missed.at.pack || end(chunk) > limit || ahead.len() >= CHUNKS {
                return ahead;
            }
            last = end(chunk);
            if wanted(chunk) {
                ahead.push(*chunk);
            }
        }
    }
    ahead
}

impl Read for View<'_> {
    fn value(&self, key: &Key) -> Result<Option<Value>, Stop> {
        self.state.value(&self.shared.hydrator, key)
    }
    fn scan(&self, prefix: &Prefix, from: &[u8], f: &mut dyn FnMut(KeyKind<'_>, &Value) -> bool) -> Result<(), Stop> {
        scan::scan(self.state.overlays(), self.state.below(prefix.start()), &self.shared.hydrator, prefix, from, f)
    }
    fn hasher(&self) -> &NameHasher {
        &self.shared.hasher
    }
    fn near(&self, stop: Stop, near: Near<'_>) -> Stop {
        self.state.near(&self.shared.hydrator, stop, near)
    }
}

/// Which files are read in sequence, and how far ahead it is worth to read.
#[derive(Default)]
pub(crate) struct Sequential {
    files: HashMap<Ino, (u64, u64)>,
}

impl Sequential {
    /// A read that ended at `end` was answered.
    fn note(&mut self, ino: Ino, end: u64) {
        if self.files.len() >= SEQUENTIAL_FILES && !self.files.contains_key(&ino) {
            self.files.clear();
        }
        self.files.entry(ino).or_insert((end, READAHEAD_FIRST)).0 = end;
    }
    /// The window of a read at `offset` that missed; `None` where it does not continue a sequence.
    fn window(&mut self, ino: Ino, offset: u64) -> Option<u64> {
        let (next, window) = self.files.get_mut(&ino)?;
        // The kernel's own readahead may pass its last request on out of order: near is in sequence.
        if offset.abs_diff(*next) > READAHEAD_MAX {
            *window = READAHEAD_FIRST;
            return None;
        }
        let now = *window;
        *window = (now * 2).min(READAHEAD_MAX);
        Some(now)
    }
}

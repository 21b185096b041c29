//! One atomic change of a workspace: one journal record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hiloop_journal::{Class, Staged};
use hiloop_manifest::schema::{
    Attr, Block, Entry, FileKind, IndexEntry, Key, KeyKind, NameHasher, Piece, Prefix, Source, StagedAt, Timestamp, Totals, Value,
};
use hiloop_types::{Error, Ino, Result, Seqno, limits};
use parking_lot::RwLockWriteGuard;

use super::read::Read;
use super::{Near, Shared, Standing, State, scan, state};
use crate::record::{Batch, CHANGES, Change};
use crate::stop::{Miss, Stop};

/// Changes of one journal record; a larger operation (dropping a huge file) takes several, deletions first.
const CHANGES_MAX: usize = 4096;

/// A change being made. Dropping it without [`Txn::commit`] leaves no trace.
pub struct Txn<'a> {
    shared: &'a Arc<Shared>,
    state: RwLockWriteGuard<'a, State>,
    pending: BTreeMap<Key, Option<Value>>,
    changes: Vec<Change>,
    /// Counts of the workspace with this change.
    totals: Totals,
    reserve: bool,
    data_bytes: u64,
    next_ino: u64,
    now: Timestamp,
    /// Holds the staged ranges until the record that names them is accepted.
    staged: Vec<Staged>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        let now = shared.now();
        let state = shared.state.write();
        let (next_ino, totals) = (state.next_ino, state.totals);
        Self {
            shared,
            state,
            pending: BTreeMap::new(),
            changes: Vec::new(),
            totals,
            reserve: false,
            data_bytes: 0,
            next_ino,
            now,
            staged: Vec::new(),
        }
    }

    /// The time of this change.
    pub fn now(&self) -> Timestamp {
        self.now
    }
    /// Bytes that the quota still allows, this change counted; `u64::MAX` without a quota.
    pub fn quota_left(&self) -> u64 {
        self.shared.quota.map_or(u64::MAX, |q| q.saturating_sub(self.totals.bytes))
    }

    fn set(&mut self, key: Key, value: Value) {
        self.changes.push(Change::Set(key.clone(), value.clone()));
        self.pending.insert(key, Some(value));
    }
    fn delete(&mut self, key: Key) {
        self.changes.push(Change::Delete(key.clone()));
        self.pending.insert(key, None);
    }

    /// A number that no inode ever had.
    ///
    /// # Errors
    /// `Exhausted` where all numbers that the head reserves are used; the next publish reserves more.
    pub fn new_ino(&mut self) -> Result<Ino, Stop> {
        if self.next_ino >= self.state.ino_limit {
            return Err(Error::exhausted("all reserved inode numbers are used; the next publish reserves more").into());
        }
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        Ok(ino)
    }

    /// Puts the attributes of an inode that exists and keeps the totals.
    ///
    /// # Errors
    /// A miss.
    pub fn put_attr(&mut self, ino: Ino, attr: Attr) -> Result<(), Stop> {
        let before = self.attr(ino)?.map_or(0, |a| a.allocated);
        self.totals.bytes = self.totals.bytes.saturating_add_signed(attr.allocated as i64 - before as i64);
        self.set(Key::attr(ino), Value::Attr(Box::new(attr)));
        Ok(())
    }

    /// Puts the attributes of a new inode, marked as born in this opening.
    pub fn create_inode(&mut self, ino: Ino, mut attr: Attr) {
        attr.birth_epoch = self.shared.epoch;
        attr.birth_session = self.shared.session;
        self.totals.inodes = self.totals.inodes.saturating_add(1);
        self.totals.bytes = self.totals.bytes.saturating_add_signed(attr.allocated as i64);
        self.set(Key::attr(ino), Value::Attr(Box::new(attr)));
    }

    /// Gives an inode a name. Moves the directory's counters in `dir_attr`, which the caller puts.
    pub fn link(&mut self, dir: Ino, dir_attr: &mut Attr, name: &[u8], ino: Ino, kind: FileKind) {
        let index = dir_attr.next_index;
        if dir_attr.entries == 0 {
            dir_attr.children = ino;
        }
        dir_attr.next_index += 1;
        dir_attr.entries += 1;
        self.set(self.shared.hasher.entry(dir, name), Value::Entry(Entry { ino, kind, index }));
        self.set(Key::index(dir, index), Value::Index(IndexEntry { ino, kind, name: name.to_vec() }));
        self.set(Key::backref(ino, dir, index), Value::Unit);
    }

    /// Takes a name away. Moves the directory's counter in `dir_attr`, which the caller puts.
    pub fn unlink(&mut self, dir: Ino, dir_attr: &mut Attr, name: &[u8], entry: &Entry) {
        self.reserve = true;
        dir_attr.entries -= 1;
        self.delete(self.shared.hasher.entry(dir, name));
        self.delete(Key::index(dir, entry.index));
        self.delete(Key::backref(entry.ino, dir, entry.index));
    }

    /// Marks an inode without a name that is still open.
    pub fn orphan(&mut self, ino: Ino) {
        self.reserve = true;
        self.set(Key::orphan(ino), Value::Unit);
    }
    /// The inode has a name again (linkat of an open, unlinked file).
    pub fn unorphan(&mut self, ino: Ino) {
        self.delete(Key::orphan(ino));
    }

    /// Removes an inode with its data and extended attributes.
    ///
    /// # Errors
    /// A miss.
    pub fn remove_inode(&mut self, ino: Ino) -> Result<(), Stop> {
        self.reserve = true;
        let Some(attr) = self.attr(ino)? else { return Ok(()) };
        let mut keys = Vec::new();
        self.scan(&Prefix::inode(ino), &[], &mut |k, _| {
            match k {
                KeyKind::Block(_, n) => keys.push(Key::block(ino, n)),
                KeyKind::Xattr(_, name) => keys.push(Key::xattr(ino, name)),
                _ => {}
            }
            true
        })?;
        let orphan = self.value(&Key::orphan(ino))?.is_some();
        for k in keys {
            self.delete(k);
        }
        if orphan {
            self.delete(Key::orphan(ino));
        }
        self.delete(Key::attr(ino));
        self.totals.inodes = self.totals.inodes.saturating_sub(1);
        self.totals.bytes = self.totals.bytes.saturating_sub(attr.allocated);
        Ok(())
    }

    /// Writes data; moves `attr.size` and `attr.allocated`, which the caller puts.
    ///
    /// # Errors
    /// A miss of manifest nodes (never of data: overwriting does not hydrate) or of room: a change that is run again stages its data
    /// again, so one change stages at most [`limits::STAGING_DIRTY`] in all. `Exhausted` where the disk is full.
    pub fn write(&mut self, ino: Ino, attr: &mut Attr, offset: u64, data: &[u8]) -> Result<(), Stop> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        // All that can miss comes first: staged bytes of an operation that is run again would be written twice.
        let blocks = self.load_blocks(ino, offset, end)?;
        let inline = data.len() <= limits::INLINE_WRITE && self.state.active.inline_bytes < limits::MEMORY_INLINE;
        let whole = if inline { Source::Inline(Bytes::copy_from_slice(data)) } else { Source::Staged { at: self.stage(data)?, skip: 0 } };
        for (n, block) in blocks {
            let start = n * limits::BLOCK;
            let (from, to) = (offset.max(start), end.min(start + limits::BLOCK));
            let (by, len) = ((from - offset) as u32, (to - from) as u32);
            let source = match &whole {
                Source::Inline(b) => Source::Inline(b.slice(by as usize..(by + len) as usize)),
                Source::Staged { at, .. } => Source::Staged { at: *at, skip: by },
                other => other.clone(),
            };
            self.put_piece(ino, n, block, attr, Piece { start: (from - start) as u32, len, source });
        }
        attr.size = attr.size.max(end);
        Ok(())
    }

    /// Cuts a file off, or lengthens it by a hole; moves `attr.size` and `attr.allocated`.
    ///
    /// # Errors
    /// A miss.
    pub fn truncate(&mut self, ino: Ino, attr: &mut Attr, size: u64) -> Result<(), Stop> {
        if size < attr.size {
            self.reserve = true;
            self.punch(ino, attr, size, u64::MAX)?;
        }
        attr.size = size;
        Ok(())
    }

    /// Makes `from..to` a hole; moves `attr.allocated`.
    ///
    /// # Errors
    /// A miss.
    pub fn punch(&mut self, ino: Ino, attr: &mut Attr, from: u64, to: u64) -> Result<(), Stop> {
        if from >= to {
            return Ok(());
        }
        let mut hit = Vec::new();
        self.blocks_from(ino, from / limits::BLOCK, &mut |n, b| {
            let keep = n * limits::BLOCK < to;
            if keep {
                hit.push((n, b.clone()));
            }
            keep
        })?;
        for (n, mut block) in hit {
            let start = n * limits::BLOCK;
            let (a, b) = (from.max(start) - start, (to - start).min(limits::BLOCK));
            let before = block.allocated();
            block.clear(a as u32, b as u32);
            let freed = before - block.allocated();
            if freed == 0 {
                continue;
            }
            attr.allocated -= freed;
            let key = Key::block(ino, n);
            if block.is_empty() {
                self.delete(key);
            } else {
                self.edit(key, block, |k| Change::Clear(k, a as u32, b as u32));
            }
        }
        Ok(())
    }

    /// Allocates the holes of `from..to` as zeros; moves `attr.allocated`.
    ///
    /// # Errors
    /// A miss.
    pub fn reserve(&mut self, ino: Ino, attr: &mut Attr, from: u64, to: u64) -> Result<(), Stop> {
        for (n, mut block) in self.load_blocks(ino, from, to)? {
            let start = n * limits::BLOCK;
            let (a, b) = (from.max(start) - start, (to - start).min(limits::BLOCK));
            let grew = block.reserve(a as u32, b as u32);
            if grew > 0 {
                attr.allocated += grew;
                self.set(Key::block(ino, n), Value::Block(block));
            }
        }
        Ok(())
    }

    /// Shares a range of `src` with `dst`: no byte is copied. Moves `dst_attr.size` and `dst_attr.allocated`; holes stay holes.
    ///
    /// # Errors
    /// A miss.
    pub fn clone_range(&mut self, src: Ino, src_offset: u64, dst: Ino, dst_attr: &mut Attr, dst_offset: u64, len: u64) -> Result<(), Stop> {
        let end = src_offset + len;
        let mut pieces: Vec<(u64, Piece)> = Vec::new();
        self.blocks_from(src, src_offset / limits::BLOCK, &mut |n, b| {
            let start = n * limits::BLOCK;
            if start >= end {
                return false;
            }
            let (from, to) = (src_offset.max(start) - start, (end - start).min(limits::BLOCK));
            pieces.extend(b.pieces().iter().filter_map(|p| p.within(from as u32, to as u32)).map(|p| (start + u64::from(p.start), p)));
            true
        })?;
        self.load_blocks(dst, dst_offset, dst_offset + len)?;
        self.punch(dst, dst_attr, dst_offset, dst_offset + len)?;
        for (at, piece) in pieces {
            // One piece of the source may lie across an edge between two blocks of the target.
            let mut to = dst_offset + (at - src_offset);
            let mut rest = Piece { start: 0, len: piece.len, source: piece.source };
            while rest.len > 0 {
                let (n, start) = (to / limits::BLOCK, (to % limits::BLOCK) as u32);
                let take = rest.len.min(limits::BLOCK as u32 - start);
                let Some(part) = rest.within(0, take) else { break };
                let block = self.block(dst, n)?.unwrap_or_default();
                self.put_piece(dst, n, block, dst_attr, Piece { start, ..part });
                to += u64::from(take);
                rest = match rest.within(take, rest.len) {
                    Some(r) => Piece { start: 0, ..r },
                    None => break,
                };
            }
        }
        dst_attr.size = dst_attr.size.max(dst_offset + len);
        Ok(())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8]) {
        self.set(Key::xattr(ino, name), Value::Bytes(Bytes::copy_from_slice(value)));
    }
    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8]) {
        self.reserve = true;
        self.delete(Key::xattr(ino, name));
    }

    fn stage(&mut self, data: &[u8]) -> Result<StagedAt, Stop> {
        let Some(staged) = self.shared.node.journal.stage(data)? else {
            return Err(Stop::Miss(Miss::Room(data.len() as u64)));
        };
        let at = state::staged_at(&staged.reference());
        self.staged.push(staged);
        self.data_bytes += data.len() as u64;
        Ok(at)
    }

    fn load_blocks(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, Block)>, Stop> {
        let (first, last) = (from / limits::BLOCK, to.saturating_sub(1) / limits::BLOCK);
        (first..=last).map(|n| Ok((n, self.block(ino, n)?.unwrap_or_default()))).collect()
    }

    fn put_piece(&mut self, ino: Ino, n: u64, mut block: Block, attr: &mut Attr, piece: Piece) {
        let before = block.allocated();
        block.put(piece.clone());
        attr.allocated = attr.allocated + block.allocated() - before;
        self.edit(Key::block(ino, n), block, |k| Change::Put(k, piece));
    }

    /// Records a change of a block as small as it may be: as an edit where an earlier record since the last seal set the block whole,
    /// else whole (see [`crate::record`]).
    fn edit(&mut self, key: Key, block: Block, small: impl FnOnce(Key) -> Change) {
        let known = match self.pending.get(&key) {
            Some(v) => v.is_some(),
            None => matches!(self.state.active.entries.get(&key), Some(Some(_))),
        };
        if known {
            self.changes.push(small(key.clone()));
            self.pending.insert(key, Some(Value::Block(block)));
        } else {
            self.set(key, Value::Block(block));
        }
    }

    pub(super) fn commit(mut self) -> Result<Seqno> {
        if self.changes.is_empty() {
            return Ok(self.state.accepted);
        }
        let class = if self.reserve { Class::Reserve } else { Class::Data };
        let journal = &self.shared.node.journal;
        let changes = std::mem::take(&mut self.changes);
        let mut last = self.state.accepted;
        let mut bytes = self.data_bytes;
        let mut slabs = BTreeSet::new();
        let mut operations = 0;
        let records = changes.chunks(CHANGES_MAX).len();
        for (i, part) in changes.chunks(CHANGES_MAX).enumerate() {
            // The totals go with the last record, as the attributes do.
            let ends = i + 1 == records;
            let batch =
                Batch { totals: if ends { self.totals } else { self.state.totals }, next_ino: self.next_ino, changes: part.to_vec() };
            let (body, staged) = batch.encode();
            let refs: Vec<_> = staged.iter().map(state::staged_ref).collect();
            slabs.extend(staged.iter().map(|s| s.slab));
            match journal.append(class, self.shared.stream(), CHANGES, &[&body], &refs) {
                Ok(seqno) => last = seqno,
                Err(e) if i == 0 => return Err(e),
                Err(e) => {
                    // Its first part is accepted and cannot be taken back; memory must not claim that it did not happen.
                    let shared = self.shared;
                    drop(self);
                    shared.stop_writing(Standing::ReadOnly { reason: format!("a large operation was cut off: {e}") });
                    return Err(e);
                }
            }
            bytes += body.len() as u64;
            operations += 1;
        }
        let state = &mut *self.state;
        for (k, v) in std::mem::take(&mut self.pending) {
            state.active.put(k, v);
        }
        state.active.slabs.extend(slabs);
        state.active.operations += operations;
        state.active.bytes += bytes;
        state.totals = self.totals;
        state.active.totals = self.totals;
        state.next_ino = self.next_ino;
        state.accepted = last;
        self.shared.admission.add(bytes, operations);
        self.shared.node.backlog.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        self.shared.replicator.dirty();
        Ok(last)
    }
}

impl Read for Txn<'_> {
    fn value(&self, key: &Key) -> Result<Option<Value>, Stop> {
        match self.pending.get(key) {
            Some(v) => Ok(v.clone()),
            None => self.state.value(&self.shared.hydrator, key),
        }
    }
    fn scan(&self, prefix: &Prefix, from: &[u8], f: &mut dyn FnMut(KeyKind<'_>, &Value) -> bool) -> Result<(), Stop> {
        let overlays = std::iter::once(&self.pending).chain(self.state.overlays());
        scan::scan(overlays, self.state.below(prefix.start()), &self.shared.hydrator, prefix, from, f)
    }
    fn hasher(&self) -> &NameHasher {
        &self.shared.hasher
    }
    fn near(&self, stop: Stop, near: Near<'_>) -> Stop {
        self.state.near(&self.shared.hydrator, stop, near)
    }
}

//! What a simulated node stands on: a disk, an index and a cache, all of which lose what was not flushed, and may lie.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hiloop_cache::{SlabFile, Usage};
use hiloop_engine::node::Ground as EngineGround;
use hiloop_journal::{Disk, DiskFile, Ownership, SimDisk};
use hiloop_types::{Column, MemoryMeta, MetaBatch, MetaStore, Result};
use parking_lot::Mutex;

use super::planted::Lie;
use crate::executor::Executor;

/// How late a disk that answers flushes early does them.
const LATE: Duration = Duration::from_millis(400);
/// Writes that a disk holds back that answers them early.
const HELD: usize = 3;
/// Bytes of staging that a disk uses that writes in place.
const RING: u64 = 48 << 10;
/// Bytes of the volume that the cache stands on.
const VOLUME: u64 = 1 << 30;

/// The hardware of one node; it outlives its processes.
pub struct Ground {
    /// The disk of journal and staging.
    pub disk: SimDisk,
    exec: Executor,
    meta: Arc<MemoryMeta>,
    slabs: Slabs,
    lie: Option<Lie>,
    ownership: Ownership,
}

impl Ground {
    /// New hardware with an empty directory `root`.
    pub fn new(exec: Executor, seed: u64, root: &Path, lie: Option<Lie>) -> Self {
        let disk = SimDisk::new(seed, root);
        Self { disk, exec, meta: Arc::default(), slabs: Slabs::default(), lie, ownership: Ownership::New }
    }
    /// The disk of journal and staging, for a process that starts now.
    pub fn process_disk(&self) -> Arc<dyn Disk> {
        match self.lie {
            Some(lie @ (Lie::ShippedBeforeFlush | Lie::AnsweredBeforeWhole | Lie::NoDirectoryFlush | Lie::StagingInPlace)) => {
                Arc::new(Liar { disk: self.disk.clone(), lie, exec: self.exec.clone(), booted: self.exec.now(), held: Arc::default() })
            }
            _ => Arc::new(self.disk.clone()),
        }
    }
    /// All else, for a process that starts now.
    pub fn boot(&mut self) -> EngineGround {
        let meta: Arc<dyn MetaStore> = match self.lie {
            Some(Lie::IndexForgets) => Arc::new(Forgetful(self.meta.clone())),
            _ => self.meta.clone(),
        };
        let ownership = std::mem::replace(&mut self.ownership, Ownership::SameBoot);
        EngineGround { cache: Box::new(self.slabs.clone()), meta, ownership, lock: None }
    }
    /// The process was killed: the page cache stays, the index loses what it held in memory.
    pub fn killed(&mut self) {
        self.meta.crash_keeping(|n| self.exec.below(n as u64 + 1) as usize);
    }
    /// The power was cut.
    pub fn power_cut(&mut self) {
        self.killed();
        self.disk.crash();
        self.slabs.power_cut(&self.exec);
        self.ownership = Ownership::AfterReboot;
    }
    /// A byte of a cached frame rots; false where none is cached.
    pub fn rot(&self) -> bool {
        self.slabs.rot(&self.exec, self.lie == Some(Lie::Unverified))
    }
}

/// An index whose flushes do nothing.
struct Forgetful(Arc<MemoryMeta>);

impl MetaStore for Forgetful {
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.get(column, key)
    }
    fn scan(&self, column: Column, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.0.scan(column, prefix, visit)
    }
    fn write(&self, batch: MetaBatch) -> Result<()> {
        self.0.write(batch)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Held {
    /// Writes that were answered and are not done.
    writes: VecDeque<(Arc<dyn DiskFile>, u64, Vec<u8>)>,
    /// Flushes that were answered, and when they are done.
    flushes: VecDeque<(Duration, Arc<dyn DiskFile>)>,
}

/// A disk that lies.
#[derive(Clone)]
struct Liar {
    disk: SimDisk,
    lie: Lie,
    exec: Executor,
    /// Recovery is not cheated, it takes no time.
    booted: Duration,
    held: Arc<Mutex<Held>>,
}

impl Liar {
    /// Does what is due.
    fn settle(&self, writes_left: usize) -> io::Result<()> {
        let held = &mut *self.held.lock();
        while held.writes.len() > writes_left {
            if let Some((file, offset, data)) = held.writes.pop_front() {
                file.write_at(&data, offset)?;
            }
        }
        while held.flushes.front().is_some_and(|(at, _)| *at <= self.exec.now()) {
            if let Some((_, file)) = held.flushes.pop_front() {
                file.sync_data()?;
            }
        }
        Ok(())
    }
    fn file(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Arc::new(LyingFile { file, segment: name.starts_with("segment"), slab: name.starts_with("slab"), liar: self.clone() })
    }
}

impl Disk for Liar {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.lie == Lie::NoDirectoryFlush { Ok(()) } else { self.disk.sync_dir(path) }
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(path, self.disk.open(path)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(path, self.disk.create(path)?))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }
}

struct LyingFile {
    file: Arc<dyn DiskFile>,
    segment: bool,
    slab: bool,
    liar: Liar,
}

impl LyingFile {
    fn in_place(&self) -> bool {
        self.slab && self.liar.lie == Lie::StagingInPlace
    }
    /// Parts of a range that stand together in the ring: (offset in the range, place, length).
    fn ring(offset: u64, len: usize) -> Vec<(usize, u64, usize)> {
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < len {
            let at = offset + done as u64;
            let place = if at < 512 { at } else { 512 + (at - 512) % RING };
            let end = if at < 512 { 512 } else { 512 + RING };
            let part = (len - done).min((end - place) as usize);
            parts.push((done, place, part));
            done += part;
        }
        parts
    }
}

impl DiskFile for LyingFile {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.liar.settle(0)?;
        if !self.in_place() {
            return self.file.read_at(out, offset);
        }
        let mut read = 0;
        for (from, place, len) in Self::ring(offset, out.len()) {
            read += self.file.read_at(&mut out[from..from + len], place)?;
        }
        Ok(read)
    }
    fn read_at_nowait(&self, out: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.read_at(out, offset).map(Some)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.liar.settle(HELD)?;
        if self.in_place() {
            return Self::ring(offset, data.len())
                .into_iter()
                .try_for_each(|(from, at, len)| self.file.write_at(&data[from..from + len], at));
        }
        if self.segment && self.liar.lie == Lie::AnsweredBeforeWhole {
            self.liar.held.lock().writes.push_back((self.file.clone(), offset, data.to_vec()));
            return Ok(());
        }
        self.file.write_at(data, offset)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.liar.settle(0)?;
        if self.segment && self.liar.lie == Lie::ShippedBeforeFlush && self.liar.exec.now() > self.liar.booted {
            let due = self.liar.exec.now() + LATE;
            self.liar.held.lock().flushes.push_back((due, self.file.clone()));
            return Ok(());
        }
        self.file.sync_data()
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

/// Slab files of a cache in memory.
#[derive(Clone, Default)]
struct Slabs(Arc<Mutex<BTreeMap<u32, Vec<u8>>>>);

impl Slabs {
    /// Slabs are never flushed: blocks of them may be gone.
    fn power_cut(&self, exec: &Executor) {
        for slab in self.0.lock().values_mut() {
            if exec.chance(500) {
                for block in slab.chunks_mut(4096) {
                    if exec.chance(200) {
                        block.fill(0);
                    }
                }
            }
        }
    }

    /// Flips a bit in a random record's bytes; with `sealed` so that its checksums still hold.
    fn rot(&self, exec: &Executor, sealed: bool) -> bool {
        let slabs = &mut *self.0.lock();
        let mut records = Vec::new();
        for (id, slab) in slabs.iter() {
            let word = |at: usize| u32::from_le_bytes([slab[at], slab[at + 1], slab[at + 2], slab[at + 3]]) as usize;
            for at in 4096..slab.len().saturating_sub(60) {
                if slab[at..at + 4] == *b"HLRC" && word(at + 12) == at {
                    let (stored, table) = (word(at + 16), word(at + 16).div_ceil(16 << 10) * 4);
                    if stored > 0 && at + 60 + table + stored <= slab.len() {
                        records.push((*id, at, table, stored));
                    }
                }
            }
        }
        if records.is_empty() {
            return false;
        }
        let (id, at, table, stored) = records[exec.below(records.len() as u64) as usize];
        let Some(slab) = slabs.get_mut(&id) else { return false };
        let bytes = at + 60 + table;
        slab[bytes + exec.below(stored as u64) as usize] ^= 1 << exec.below(8);
        if sealed {
            let sums: Vec<u8> = slab[bytes..bytes + stored].chunks(16 << 10).flat_map(|s| crc32c::crc32c(s).to_le_bytes()).collect();
            slab[at + 60..bytes].copy_from_slice(&sums);
            let crc = crc32c::crc32c_append(crc32c::crc32c(&slab[at..at + 56]), &sums);
            slab[at + 56..at + 60].copy_from_slice(&crc.to_le_bytes());
        }
        true
    }

    fn with<T>(&self, id: u32, f: impl FnOnce(&mut Vec<u8>) -> io::Result<T>) -> io::Result<T> {
        self.0.lock().get_mut(&id).map_or_else(|| Err(io::ErrorKind::NotFound.into()), f)
    }
}

impl hiloop_cache::Disk for Slabs {
    fn slabs(&self) -> io::Result<Vec<u32>> {
        Ok(self.0.lock().keys().copied().collect())
    }
    fn create(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        match self.0.lock().entry(id) {
            std::collections::btree_map::Entry::Occupied(_) => Err(io::ErrorKind::AlreadyExists.into()),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(Vec::new());
                Ok(Box::new(Slab { slabs: self.clone(), id }))
            }
        }
    }
    fn open(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        self.with(id, |_| Ok(()))?;
        Ok(Box::new(Slab { slabs: self.clone(), id }))
    }
    fn remove(&self, id: u32) -> io::Result<()> {
        self.0.lock().remove(&id);
        Ok(())
    }
    fn usage(&self) -> io::Result<Usage> {
        Ok(Usage { total: VOLUME, used: self.0.lock().values().map(|s| s.len() as u64).sum() })
    }
}

struct Slab {
    slabs: Slabs,
    id: u32,
}

impl SlabFile for Slab {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.slabs.with(self.id, |slab| {
            let found = slab.get(at as usize..at as usize + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(found);
            Ok(())
        })
    }
    fn write_all_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.slabs.with(self.id, |slab| {
            let end = at as usize + buf.len();
            if slab.len() < end {
                slab.resize(end, 0);
            }
            slab[at as usize..end].copy_from_slice(buf);
            Ok(())
        })
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.slabs.with(self.id, |slab| {
            let end = slab.len().min((at + len) as usize);
            if let Some(hole) = slab.get_mut(at as usize..end) {
                hole.fill(0);
            }
            Ok(())
        })
    }
    fn length(&self) -> io::Result<u64> {
        self.slabs.with(self.id, |slab| Ok(slab.len() as u64))
    }
    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.slabs.0.lock().contains_key(&self.id))
    }
}

/// Where a node's directory stands on its own disk.
pub fn root() -> PathBuf {
    PathBuf::from("/node")
}

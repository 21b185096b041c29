//! Staging slabs: append-only files for data too large to stand in a record. Written before the record that names it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, DiskFile};
use crate::format::{DATA_START, HEADER_LEN, SlabId, StagedRef, decode_slab_header, encode_slab_header};
use crate::health::Health;
use crate::options::{Fault, JournalOptions};

/// What a caller that found no room runs once staging was written back, or never will be.
pub type Room = Box<dyn FnOnce(Result<()>) + Send>;

/// Ranges start on sector boundaries.
const RANGE_ALIGN: u64 = 512;

pub(crate) struct Slab {
    id: SlabId,
    file: Arc<dyn DiskFile>,
    size: u64,
    /// Bytes written since the last flush began.
    dirty: AtomicU64,
    /// Staged ranges whose record may not stand in the journal yet.
    pins: AtomicU32,
}

/// A staged range. Keep it until the `append` that names it has returned: until then it alone keeps the slab from being freed.
pub struct Staged {
    reference: StagedRef,
    slab: Arc<Slab>,
}

impl Staged {
    /// What the record lists.
    pub fn reference(&self) -> StagedRef {
        self.reference
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.slab.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reference.fmt(f)
    }
}

struct Filling {
    slab: Arc<Slab>,
    offset: u64,
}

#[derive(Default)]
struct Ends {
    filling: Option<Filling>,
    /// The slab after it, made ahead of need.
    ready: Option<Arc<Slab>>,
}

pub(crate) struct Staging {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    health: Arc<Health>,
    slab_size: u64,
    dirty_limit: u64,
    sync_dir: bool,
    retry_flush: bool,
    ends: Mutex<Ends>,
    slabs: RwLock<BTreeMap<SlabId, Arc<Slab>>>,
    next_id: AtomicU64,
    dirty: AtomicU64,
    new_names: AtomicBool,
    flushing: Mutex<()>,
    /// Callers that wait for room; each belongs to a request in flight.
    waiting: Mutex<Vec<Room>>,
}

fn slab_path(dir: &Path, id: SlabId) -> PathBuf {
    dir.join(format!("slab-{:016x}", id.0))
}

impl Staging {
    /// Opens the slabs of a directory. None of them is written again: new ranges go to new slabs.
    pub(crate) fn open(dir: PathBuf, disk: Arc<dyn Disk>, health: Arc<Health>, options: &JournalOptions, next_slab: u64) -> Result<Self> {
        let mut slabs = BTreeMap::new();
        let mut next = next_slab;
        for name in disk.list(&dir).at(dir.display())? {
            let Some(id) = name.strip_prefix("slab-").and_then(|n| u64::from_str_radix(n, 16).ok()).map(SlabId) else { continue };
            let path = slab_path(&dir, id);
            let file = disk.open(&path).at(path.display())?;
            let mut header = [0; HEADER_LEN];
            file.read_at(&mut header, 0).at(path.display())?;
            // A header that is not whole was never flushed; each range carries its own checksum, so only a foreign version matters.
            decode_slab_header(&header).at(path.display())?;
            let size = file.size().at(path.display())?;
            slabs.insert(id, Arc::new(Slab { id, file, size, dirty: AtomicU64::new(0), pins: AtomicU32::new(0) }));
            next = next.max(id.0 + 1);
        }
        Ok(Self {
            dir,
            disk,
            health,
            slab_size: options.slab_size,
            dirty_limit: options.staging_dirty,
            sync_dir: !options.planted(Fault::SkipDirectorySync),
            retry_flush: options.planted(Fault::RetryFailedFlush),
            ends: Mutex::default(),
            slabs: RwLock::new(slabs),
            next_id: AtomicU64::new(next),
            dirty: AtomicU64::new(0),
            new_names: AtomicBool::new(false),
            flushing: Mutex::new(()),
            waiting: Mutex::default(),
        })
    }
    /// Keeps new slabs above an id that a record names.
    pub(crate) fn raise_next(&self, above: SlabId) {
        self.next_id.fetch_max(above.0 + 1, Ordering::Relaxed);
    }
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }
    /// Slabs and their bytes on disk.
    pub(crate) fn size(&self) -> (usize, u64) {
        let slabs = self.slabs.read();
        (slabs.len(), slabs.values().map(|s| s.size).sum())
    }
    /// Write-back should begin: half of what may be dirty is.
    pub(crate) fn wants_write_back(&self) -> bool {
        self.dirty() > self.dirty_limit / 2
    }
    /// Whether this many fresh bytes were the ones that called for write-back.
    pub(crate) fn crossed_half(&self, added: u64) -> bool {
        let now = self.dirty();
        now > self.dirty_limit / 2 && now.saturating_sub(added) <= self.dirty_limit / 2
    }

    fn make(&self) -> Result<Arc<Slab>> {
        let id = SlabId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let path = slab_path(&self.dir, id);
        let file = self.disk.create(&path).at(path.display())?;
        let made = file.allocate(self.slab_size).and_then(|()| file.write_at(&encode_slab_header(id), 0));
        if let Err(e) = made {
            // Half a slab is of no use; the first error is the one to report.
            let _ = self.disk.remove(&path);
            return Err(Error::io(path.display(), &e));
        }
        let slab = Slab { id, file, size: self.slab_size, dirty: AtomicU64::new(HEADER_LEN as u64), pins: AtomicU32::new(0) };
        self.dirty.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
        self.new_names.store(true, Ordering::Release);
        Ok(Arc::new(slab))
    }
    /// Makes the next slab ahead of need, off the request thread.
    pub(crate) fn prepare(&self) -> Result<()> {
        let wanted = {
            let ends = self.ends.lock();
            ends.ready.is_none() && ends.filling.as_ref().is_some_and(|f| f.offset > self.slab_size / 2)
        };
        if wanted {
            let slab = self.make()?;
            self.ends.lock().ready = Some(slab);
        }
        Ok(())
    }
    fn reserve(&self, len: u64) -> Result<(Arc<Slab>, u64)> {
        let mut ends = self.ends.lock();
        let full = ends.filling.as_ref().is_none_or(|f| f.offset + len > self.slab_size);
        if full {
            let slab = match ends.ready.take() {
                Some(slab) => slab,
                None => self.make()?,
            };
            self.slabs.write().insert(slab.id, slab.clone());
            ends.filling = Some(Filling { slab, offset: DATA_START });
        }
        let filling = ends.filling.as_mut().expect("set above when it was missing");
        let offset = filling.offset;
        filling.offset += len.next_multiple_of(RANGE_ALIGN);
        filling.slab.pins.fetch_add(1, Ordering::AcqRel);
        Ok((filling.slab.clone(), offset))
    }
    /// Whether `len` more bytes may be unflushed. A range that is larger than the limit has its turn once little else is.
    fn admits(&self, dirty: u64, len: u64) -> bool {
        dirty + len <= self.dirty_limit || dirty <= self.dirty_limit / 2
    }
    /// Writes a range; `None` where too much is unflushed: then nothing was done, and [`Self::when_room`] says when to try again.
    pub(crate) fn stage(&self, data: &[u8]) -> Result<Option<Staged>> {
        let len = data.len() as u64;
        if len == 0 || DATA_START + len > self.slab_size || len > u64::from(u32::MAX) {
            return Err(Error::invalid(format!("{len} bytes cannot be staged at once; a slab holds {}", self.slab_size - DATA_START)));
        }
        // The sum first: a flush subtracts from it what it took from the slab.
        let taken = self.dirty.fetch_update(Ordering::AcqRel, Ordering::Acquire, |dirty| self.admits(dirty, len).then_some(dirty + len));
        if taken.is_err() {
            return Ok(None);
        }
        self.write(data).map(Some).inspect_err(|_| {
            self.dirty.fetch_sub(len, Ordering::AcqRel);
        })
    }
    fn write(&self, data: &[u8]) -> Result<Staged> {
        let (slab, offset) = self.reserve(data.len() as u64)?;
        let reference = StagedRef { slab: slab.id, offset, len: data.len() as u32, crc: crc32c::crc32c(data) };
        // From here the pin is given back on every way out.
        let staged = Staged { reference, slab };
        if let Err(e) = staged.slab.file.write_at(data, offset) {
            let error = Error::io(slab_path(&self.dir, staged.slab.id).display(), &e);
            if error.kind() != ErrorKind::Exhausted {
                self.health.fail(&error);
            }
            return Err(error);
        }
        staged.slab.dirty.fetch_add(data.len() as u64, Ordering::AcqRel);
        Ok(staged)
    }
    /// As [`Self::stage`], flushing where it must: for recovery, which has nobody to wait for.
    pub(crate) fn stage_or_flush(&self, data: &[u8]) -> Result<Staged> {
        loop {
            match self.stage(data)? {
                Some(staged) => return Ok(staged),
                None => self.flush()?,
            }
        }
    }
    /// Runs `room` after the next flush, or at once where `len` bytes have room by now. The caller sees to it that a flush comes.
    pub(crate) fn when_room(&self, len: u64, room: Room) {
        self.waiting.lock().push(room);
        // A flush between the refusal and the push would have woken nobody.
        match self.health.failure() {
            Some(e) => self.wake(&Err(e)),
            None if self.admits(self.dirty(), len) => self.wake(&Ok(())),
            None => {}
        }
    }
    /// Answers all that wait for room.
    pub(crate) fn wake(&self, result: &Result<()>) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for room in waiting {
            room(result.clone());
        }
    }
    /// Makes every range staged before the call durable.
    pub(crate) fn flush(&self) -> Result<()> {
        let result = self.flush_one_at_a_time();
        self.wake(&result);
        result
    }
    fn flush_one_at_a_time(&self) -> Result<()> {
        let _one = self.flushing.lock();
        // A flush that failed while we waited may have been for our own bytes.
        if let Some(e) = self.health.failure() {
            return Err(e);
        }
        let result = self.flush_locked();
        if let Err(e) = &result
            && !self.retry_flush
        {
            self.health.fail(e);
        }
        result
    }
    fn flush_locked(&self) -> Result<()> {
        if self.new_names.swap(false, Ordering::AcqRel) && self.sync_dir {
            self.disk.sync_dir(&self.dir).at(self.dir.display())?;
        }
        let dirty: Vec<_> = self.slabs.read().values().filter(|s| s.dirty.load(Ordering::Acquire) > 0).cloned().collect();
        for slab in dirty {
            let bytes = slab.dirty.swap(0, Ordering::AcqRel);
            slab.file.sync_data().at(slab_path(&self.dir, slab.id).display())?;
            self.dirty.fetch_sub(bytes, Ordering::AcqRel);
        }
        Ok(())
    }

    fn slab(&self, id: SlabId) -> Result<Arc<Slab>> {
        let found = self.slabs.read().get(&id).cloned();
        found.ok_or_else(|| Error::corrupt("staging slab is missing").at(slab_path(&self.dir, id).display()))
    }
    fn within(&self, r: &StagedRef, skip: u32, len: usize) -> Result<()> {
        if u64::from(skip) + len as u64 > u64::from(r.len) {
            return Err(Error::invalid(format!("bytes {skip}..{} of a staged range of {}", u64::from(skip) + len as u64, r.len)));
        }
        Ok(())
    }
    /// Reads part of a range, without its checksum.
    pub(crate) fn read(&self, r: &StagedRef, skip: u32, out: &mut [u8]) -> Result<()> {
        self.within(r, skip, out.len())?;
        let slab = self.slab(r.slab)?;
        let place = || slab_path(&self.dir, r.slab);
        let n = slab.file.read_at(out, r.offset + u64::from(skip)).map_err(|e| Error::io(place().display(), &e))?;
        if n < out.len() {
            return Err(Error::corrupt(format!("slab ends inside the range at {}", r.offset)).at(place().display()));
        }
        Ok(())
    }
    /// As `read`, but `false` when it would wait for the device.
    pub(crate) fn read_nowait(&self, r: &StagedRef, skip: u32, out: &mut [u8]) -> Result<bool> {
        self.within(r, skip, out.len())?;
        let slab = self.slab(r.slab)?;
        let n = slab.file.read_at_nowait(out, r.offset + u64::from(skip)).at(self.dir.display())?;
        Ok(n == Some(out.len()))
    }
    /// The whole range, checked.
    pub(crate) fn verify(&self, r: &StagedRef) -> Result<Bytes> {
        let end = r.offset.checked_add(u64::from(r.len));
        if end.is_none_or(|end| self.slab(r.slab).is_ok_and(|s| end > s.size)) {
            return Err(Error::corrupt("staged range lies outside its slab").at(slab_path(&self.dir, r.slab).display()));
        }
        let mut data = vec![0; r.len as usize];
        self.read(r, 0, &mut data)?;
        if crc32c::crc32c(&data) != r.crc {
            let what = format!("staged bytes at {} do not match their checksum", r.offset);
            return Err(Error::corrupt(what).at(slab_path(&self.dir, r.slab).display()));
        }
        Ok(data.into())
    }
    /// Removes the slabs that nobody names. Call with the journal's head locked: whoever is about to name a slab pins it.
    pub(crate) fn forget_unused(&self, in_use: &HashSet<SlabId>, named: &HashSet<SlabId>) -> Vec<SlabId> {
        // Held to the end: a slab that becomes the filled one is listed before it is pinned.
        let ends = self.ends.lock();
        let filling = ends.filling.as_ref().map(|f| f.slab.id);
        let mut slabs = self.slabs.write();
        let unused: Vec<SlabId> = slabs
            .values()
            .filter(|s| Some(s.id) != filling && s.pins.load(Ordering::Acquire) == 0)
            .map(|s| s.id)
            .filter(|id| !in_use.contains(id) && !named.contains(id))
            .collect();
        for id in &unused {
            if let Some(slab) = slabs.remove(id) {
                self.dirty.fetch_sub(slab.dirty.swap(0, Ordering::AcqRel), Ordering::AcqRel);
            }
        }
        unused
    }
    /// Deletes the file of a forgotten slab.
    pub(crate) fn delete(&self, id: SlabId) -> Result<()> {
        let path = slab_path(&self.dir, id);
        self.disk.remove(&path).at(path.display())
    }
}

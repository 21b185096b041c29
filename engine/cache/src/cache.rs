//! The cache as its users see it: look up, fill, pin, quarantine.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Column, MetaBatch, MetaStore, Result, ResultExt, limits};
use parking_lot::{Mutex, RwLock};

use crate::disk::Disk;
use crate::frame::{CacheKey, Frame, Hit};
use crate::options::{CacheOptions, SHARDS};
use crate::record::{self, Fault, Place};
use crate::residency::{self, Row};
use crate::shard::{Found, Seed, Shard};
use crate::slab::Slab;
use crate::stats::{CacheStats, Counters, Fill, FillDrop, count};
use crate::upkeep::Upkeep;

/// The disk cache of a node; see the crate for its rules. All methods block for at most their own disk access.
pub struct Cache {
    pub(crate) options: CacheOptions,
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) meta: Arc<dyn MetaStore>,
    seed: Seed,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    pub(crate) slabs: RwLock<BTreeMap<u32, Arc<Slab>>>,
    active: Mutex<Active>,
    clock: CoarseClock,
    /// Bytes that may be filled until the next tick.
    pub(crate) room: AtomicU64,
    pub(crate) counters: Counters,
    /// Held by whoever evicts: one at a time.
    pub(crate) upkeep: Mutex<Upkeep>,
}

/// The slab that is being filled.
struct Active {
    slab: Option<Arc<Slab>>,
    next: u32,
}

/// Seconds since 1970 by the monotonic clock: wall time is read once, at opening, so that last uses can be compared over a
/// restart; a jump of the wall clock while the cache is open changes nothing.
struct CoarseClock {
    wall: Duration,
    monotonic: Duration,
    now: AtomicU32,
}

impl CoarseClock {
    fn new(env: &Env) -> Self {
        let wall = env.wall();
        Self { wall, monotonic: env.monotonic(), now: AtomicU32::new(seconds(wall)) }
    }
}

fn seconds(time: Duration) -> u32 {
    time.as_secs().min(u64::from(u32::MAX)) as u32
}

impl Cache {
    /// Opens the cache on `disk` (a [`Directory`], or what tests and the simulator put there), with what an earlier run left as far as
    /// `meta` knows it.
    ///
    /// # Errors
    /// Invalid for contradicting options; otherwise when the disk or `meta` cannot be read. Damage to slabs is no error: it loses the
    /// entries in them.
    ///
    /// [`Directory`]: crate::Directory
    pub fn open_on(disk: Box<dyn Disk>, options: CacheOptions, env: &Env, meta: Arc<dyn MetaStore>) -> Result<Self> {
        options.check()?;
        let seed = Seed(env.random_u64());
        let cache = Self {
            options,
            disk,
            meta,
            seed,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(seed))).collect(),
            slabs: RwLock::new(BTreeMap::new()),
            active: Mutex::new(Active { slab: None, next: 0 }),
            clock: CoarseClock::new(env),
            room: AtomicU64::new(0),
            counters: Counters::default(),
            upkeep: Mutex::new(Upkeep::default()),
        };
        cache.restore()?;
        cache.measure();
        Ok(cache)
    }

    /// Reads an entry. `None` also when its bytes turn out to be gone or wrong: it is then dropped and counted, and the caller
    /// fetches it again.
    pub fn lookup(&self, key: &CacheKey) -> Option<Hit> {
        let shard = self.shard(key);
        let Some(found) = shard.lock().begin_read(key, self.now()) else {
            count(&self.counters.misses, 1);
            return None;
        };
        if found.rescued {
            count(&self.counters.rescued, 1);
        }
        let held = Held { shard, place: found.place };
        let read = self.read(key, &found);
        drop(held);
        match read {
            Ok(frame) => {
                count(&self.counters.hits, 1);
                Some(Hit { frame, verified: found.verified })
            }
            Err(fault) => {
                self.discard(key, found.place, fault);
                count(&self.counters.misses, 1);
                None
            }
        }
    }

    /// Whether a lookup would find the entry, as far as the index knows. No disk access, and no use of the entry.
    pub fn contains(&self, key: &CacheKey) -> bool {
        self.shard(key).lock().contains(key)
    }

    /// Stores a frame whose digest the caller has verified. Never fails: a fill that cannot be kept is dropped and counted.
    pub fn insert(&self, key: CacheKey, frame: &Frame) -> Fill {
        let fill = self.try_insert(key, frame);
        match fill {
            Fill::Stored => count(&self.counters.fills, 1),
            Fill::Present => {}
            Fill::Dropped(why) => {
                count(&self.counters.fill_drops, 1);
                match why {
                    FillDrop::NoRoom => count(&self.counters.fill_drops_no_room, 1),
                    FillDrop::NoSpace => count(&self.counters.fill_drops_no_space, 1),
                    FillDrop::TooLarge | FillDrop::Io => {}
                }
            }
        }
        fill
    }

    fn try_insert(&self, key: CacheKey, frame: &Frame) -> Fill {
        if let Some(rescued) = self.shard(&key).lock().touch(&key, self.now()) {
            count(&self.counters.rescued, u64::from(rescued));
            return Fill::Present;
        }
        match self.append(&key, frame) {
            Ok((place, len)) => {
                if self.shard(&key).lock().insert(key, place, len, self.now()) {
                    Fill::Stored
                } else {
                    Fill::Present
                }
            }
            Err(why) => Fill::Dropped(why),
        }
    }

    /// Writes a record that nothing points to yet.
    pub(crate) fn append(&self, key: &CacheKey, frame: &Frame) -> Result<(Place, u32), FillDrop> {
        let len = record::length(frame.stored.len())
            .filter(|len| u64::from(*len) + crate::options::BLOCK <= u64::from(self.options.slab_bytes))
            .ok_or(FillDrop::TooLarge)?;
        let taken = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(u64::from(len)));
        taken.map_err(|_| FillDrop::NoRoom)?;
        let (slab, place) = self.reserve(len).map_err(|e| self.failed_fill(&e))?;
        if let Err(e) = slab.write(place, key, frame) {
            self.shard(key).lock().free(place, len);
            return Err(self.failed_fill(&e));
        }
        Ok((place, len))
    }

    fn failed_fill(&self, err: &io::Error) -> FillDrop {
        tracing::debug!(%err, "a fill of the cache was dropped");
        if matches!(err.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            // The next tick looks again; until then each try would only cost a system call.
            self.room.store(0, Ordering::Relaxed);
            FillDrop::NoSpace
        } else {
            FillDrop::Io
        }
    }

    fn reserve(&self, len: u32) -> io::Result<(Arc<Slab>, Place)> {
        let mut active = self.active.lock();
        if let Some(slab) = &active.slab
            && let Some(place) = slab.reserve(len)
        {
            return Ok((slab.clone(), place));
        }
        let id = active.next;
        // Counted on also when creating fails, in case something of that name was left behind.
        active.next = id.wrapping_add(1);
        let slab = Arc::new(Slab::create(&*self.disk, id, self.options.slab_bytes)?);
        let place = slab.reserve(len).expect("the length was checked against that of an empty slab");
        self.slabs.write().insert(id, slab.clone());
        active.slab = Some(slab.clone());
        Ok((slab, place))
    }

    /// Ends the slab that is being filled (if it is `only`), so that it can be deleted.
    pub(crate) fn seal_active(&self, only: Option<u32>) {
        let mut active = self.active.lock();
        if let Some(slab) = active.slab.take_if(|slab| only.is_none_or(|id| id == slab.id)) {
            slab.seal();
        }
    }

    /// Keeps an entry from eviction until [`Self::unpin`]; pins add up. Also keys that are not there can be pinned, which holds
    /// for a later fill. Answers whether the entry is there.
    pub fn pin(&self, key: CacheKey) -> bool {
        let touched = self.shard(&key).lock().pin(key, self.now());
        count(&self.counters.rescued, u64::from(touched == Some(true)));
        touched.is_some()
    }

    /// Takes one pin back; without one it does nothing.
    pub fn unpin(&self, key: &CacheKey) {
        self.shard(key).lock().unpin(key, self.now());
    }

    /// The caller checked the digest of a hit that was not verified: it held.
    pub fn mark_verified(&self, key: &CacheKey) {
        self.shard(key).lock().mark_verified(key);
    }

    /// The caller checked a hit and its digest did not hold: the entry is dropped, also a pinned one, and counted.
    pub fn quarantine(&self, key: &CacheKey) {
        if self.shard(key).lock().remove(key, None) {
            tracing::warn!(?key, "an entry of the disk cache did not match its digest; it is fetched again");
            count(&self.counters.corrupt, 1);
        }
    }

    /// State and counters.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats { slabs: self.slabs.read().len() as u64, ..CacheStats::default() };
        self.counters.fill_in(&mut stats);
        for shard in &self.shards {
            let s = shard.lock().sizes();
            stats.entries += s.entries;
            stats.bytes += s.bytes;
            stats.pending_delete_bytes += s.condemned_bytes + s.freed_bytes;
            stats.pinned += s.pinned;
        }
        stats
    }

    pub(crate) fn shard(&self, key: &CacheKey) -> &Mutex<Shard> {
        // The shard takes the high bits; the tables inside use the low and the highest seven.
        let at = (self.seed.hash_one(key) >> 40) as usize % SHARDS;
        &self.shards[at]
    }

    pub(crate) fn slab(&self, id: u32) -> Option<Arc<Slab>> {
        self.slabs.read().get(&id).cloned()
    }

    pub(crate) fn read(&self, key: &CacheKey, found: &Found) -> Result<Frame, Fault> {
        self.slab(found.place.slab).ok_or(Fault::Vanished)?.read(found.place, found.len, key)
    }

    /// Drops an entry that could not be read, unless it was replaced meanwhile.
    pub(crate) fn discard(&self, key: &CacheKey, place: Place, fault: Fault) {
        if self.shard(key).lock().remove(key, Some(place)) {
            tracing::warn!(?key, ?fault, ?place, "an entry of the disk cache cannot be read; it is fetched again");
            match fault {
                Fault::Vanished => count(&self.counters.vanished, 1),
                Fault::Corrupt => count(&self.counters.corrupt, 1),
            }
        }
    }

    pub(crate) fn now(&self) -> u32 {
        self.clock.now.load(Ordering::Relaxed)
    }

    /// Moves the coarse clock; it never goes back.
    pub(crate) fn advance(&self, monotonic: Duration) -> u32 {
        let now = seconds(self.clock.wall + monotonic.saturating_sub(self.clock.monotonic));
        self.clock.now.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Takes over what an earlier run left: rows whose slab is there, slabs that have rows.
    fn restore(&self) -> Result<()> {
        let mut orphans = self.disk.slabs().at("slabs")?;
        let mut newest_row = None;
        let mut stray = Vec::new();
        if self.meta.get(Column::Residency, residency::VERSION_KEY)?.as_deref() == Some(&residency::VERSION) {
            let mut restorer = Restorer { cache: self, slab: None, end: 0, last: None };
            self.meta.scan(Column::Residency, residency::ROWS, &mut |key, value| {
                if !Row::parse(key, value).is_some_and(|row| restorer.take(&row)) {
                    stray.push(key.to_vec());
                }
                true
            })?;
            newest_row = restorer.last;
        } else {
            let mut batch = MetaBatch::new();
            batch.delete_prefix(Column::Residency, []);
            batch.put(Column::Residency, residency::VERSION_KEY, residency::VERSION);
            self.meta.write(batch)?;
        }
        for keys in stray.chunks(limits::CACHE_ROWS) {
            let mut batch = MetaBatch::new();
            keys.iter().for_each(|key| batch.delete(Column::Residency, key.as_slice()));
            self.meta.write(batch)?;
        }
        let mut active = self.active.lock();
        // An id is never used twice, also when only a row or only a file is left of it: a stale row must not meet a new record.
        let newest = newest_row.into_iter().chain(orphans.iter().copied()).max();
        active.next = newest.map_or(1, |id| id.wrapping_add(1));
        let slabs = self.slabs.read();
        orphans.retain(|id| !slabs.contains_key(id));
        for id in orphans {
            self.disk.remove(id).at(format!("slab {id:08x}"))?;
        }
        for slab in slabs.values() {
            for run in slab.untouched() {
                // Not freed is not lost: the file goes when its last record goes.
                let _ = slab.punch(run);
            }
        }
        active.slab = newest.and_then(|id| slabs.get(&id)).cloned();
        for (id, slab) in slabs.iter() {
            if Some(*id) != newest {
                slab.seal();
            }
        }
        Ok(())
    }
}

/// Takes rows over in ascending order of place.
struct Restorer<'a> {
    cache: &'a Cache,
    slab: Option<Arc<Slab>>,
    /// End of the previous row's record in the same slab.
    end: u64,
    /// Slab id of the previous row.
    last: Option<u32>,
}

impl Restorer<'_> {
    /// False if the row describes nothing that can be used.
    fn take(&mut self, row: &Row) -> bool {
        let Place { slab: id, at } = row.place;
        if self.last != Some(id) {
            self.last = Some(id);
            self.end = 0;
            self.slab = Slab::open(&*self.cache.disk, id, self.cache.options.slab_bytes)
                .inspect_err(|err| tracing::info!(%err, slab = id, "the entries of a slab of the disk cache are lost"))
                .ok()
                .map(Arc::new);
        }
        let Some(slab) = &self.slab else { return false };
        if u64::from(at) < self.end || self.cache.contains(&row.key) || !slab.adopt(at, row.len) {
            return false;
        }
        self.end = u64::from(at) + u64::from(row.len);
        self.cache.shard(&row.key).lock().adopt(row, self.cache.now());
        self.cache.slabs.write().entry(id).or_insert_with(|| slab.clone());
        true
    }
}

/// A read in flight; ends when dropped.
pub(crate) struct Held<'a> {
    pub(crate) shard: &'a Mutex<Shard>,
    pub(crate) place: Place,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shard.lock().end_read(self.place);
    }
}

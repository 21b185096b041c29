//! One part of the index: what is where, since when, and who holds it. Pure bookkeeping; its lock is never held over I/O.
//!
//! An entry costs 48 bytes in a table that is between 44 and 88 percent full: about 80 bytes on average.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use hiloop_types::limits;

use crate::frame::CacheKey;
use crate::policy::{Ages, Cut, expired};
use crate::record::Place;
use crate::residency::Row;

/// An entry of the index.
#[derive(Clone, Copy)]
struct Entry {
    slab: u32,
    at: u32,
    /// Record length in the low thirty bits, then [`VERIFIED`] and [`DIRTY`].
    len_flags: u32,
    last_use: u32,
}

/// The digest was verified since the cache was opened.
const VERIFIED: u32 = 1 << 31;
/// The row in the store is missing or older.
const DIRTY: u32 = 1 << 30;

impl Entry {
    fn place(&self) -> Place {
        Place { slab: self.slab, at: self.at }
    }
    fn len(&self) -> u32 {
        self.len_flags & !(VERIFIED | DIRTY)
    }
}

/// Why an entry was condemned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Ttl,
    Pressure,
}

struct Condemned {
    deadline: u32,
    cause: Cause,
}

/// Entry found by [`Shard::begin_read`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) len: u32,
    pub(crate) verified: bool,
    /// It was condemned; this use keeps it.
    pub(crate) rescued: bool,
}

/// What is left to condemn, over all shards, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// In the last span of the cut; the entry that uses it up may exceed it.
    pub(crate) partly: u64,
    /// In all: never exceeded, so that the floor holds.
    pub(crate) spare: u64,
}

/// Entries removed by [`Shard::remove_due`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) ttl: u64,
    pub(crate) pressure: u64,
}

/// A part of the index.
pub(crate) struct Shard {
    entries: HashMap<CacheKey, Entry, Seed>,
    condemned: HashMap<CacheKey, Condemned, Seed>,
    pins: HashMap<CacheKey, u32, Seed>,
    /// Reads in flight by place: such bytes are not punched, whatever becomes of the entry.
    readers: HashMap<Place, u32>,
    /// Records without an entry, to be punched once nobody reads them.
    freed: Vec<(Place, u32)>,
    /// New entries whose row is not written yet.
    born: Vec<CacheKey>,
    /// No entry was last used earlier; may be too early.
    oldest: u32,
    swept_at: u32,
    bytes: u64,
    condemned_bytes: u64,
    freed_bytes: u64,
}

/// Bytes and numbers of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) condemned_bytes: u64,
    pub(crate) freed_bytes: u64,
    pub(crate) pinned: u64,
}

impl Shard {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            entries: HashMap::with_hasher(seed),
            condemned: HashMap::with_hasher(seed),
            pins: HashMap::with_hasher(seed),
            readers: HashMap::new(),
            freed: Vec::new(),
            born: Vec::new(),
            oldest: u32::MAX,
            swept_at: 0,
            bytes: 0,
            condemned_bytes: 0,
            freed_bytes: 0,
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            entries: self.entries.len() as u64,
            bytes: self.bytes,
            condemned_bytes: self.condemned_bytes,
            freed_bytes: self.freed_bytes,
            pinned: self.pins.len() as u64,
        }
    }

    pub(crate) fn contains(&self, key: &CacheKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Takes an entry of an earlier run over; false if the key is there already.
    pub(crate) fn adopt(&mut self, row: &Row, now: u32) -> bool {
        if self.entries.contains_key(&row.key) {
            return false;
        }
        // The wall clock may have been set back: nothing was used in the future.
        let last_use = row.last_use.min(now);
        let Place { slab, at } = row.place;
        self.entries.insert(row.key, Entry { slab, at, len_flags: row.len, last_use });
        self.oldest = self.oldest.min(last_use);
        self.bytes += u64::from(row.len);
        true
    }

    /// Marks an entry used: now, and no longer condemned. Answers whether it is there, and whether it was condemned.
    pub(crate) fn touch(&mut self, key: &CacheKey, now: u32) -> Option<bool> {
        let entry = self.entries.get_mut(key)?;
        if entry.last_use < now {
            entry.last_use = now;
            entry.len_flags |= DIRTY;
        }
        let (len, last_use) = (entry.len(), entry.last_use);
        let rescued = self.condemned.remove(key).is_some();
        if rescued {
            self.condemned_bytes -= u64::from(len);
            // A sweep does not count what is condemned.
            self.oldest = self.oldest.min(last_use);
        }
        Some(rescued)
    }

    /// Finds an entry and holds its bytes until [`Self::end_read`].
    pub(crate) fn begin_read(&mut self, key: &CacheKey, now: u32) -> Option<Found> {
        let rescued = self.touch(key, now)?;
        let found = self.hold(key)?;
        Some(Found { rescued, ..found })
    }

    /// As [`Self::begin_read`] for upkeep: reading so is no use.
    pub(crate) fn hold(&mut self, key: &CacheKey) -> Option<Found> {
        let entry = self.entries.get(key)?;
        let place = entry.place();
        *self.readers.entry(place).or_insert(0) += 1;
        Some(Found { place, len: entry.len(), verified: entry.len_flags & VERIFIED != 0, rescued: false })
    }

    /// Ends a read.
    pub(crate) fn end_read(&mut self, place: Place) {
        if let Some(n) = self.readers.get_mut(&place) {
            *n -= 1;
            if *n == 0 {
                self.readers.remove(&place);
            }
        }
    }

    /// Adds an entry whose record is written; false if the key is there already (its record is then freed).
    pub(crate) fn insert(&mut self, key: CacheKey, place: Place, len: u32, now: u32) -> bool {
        if self.entries.contains_key(&key) {
            self.free(place, len);
            return false;
        }
        self.entries.insert(key, Entry { slab: place.slab, at: place.at, len_flags: len | VERIFIED | DIRTY, last_use: now });
        self.oldest = self.oldest.min(now);
        self.bytes += u64::from(len);
        self.note_birth(key);
        true
    }

    fn note_birth(&mut self, key: CacheKey) {
        if self.born.len() < limits::CACHE_BORN {
            self.born.push(key);
        }
    }

    /// Puts a record that has no entry on the list of what is to be punched.
    pub(crate) fn free(&mut self, place: Place, len: u32) {
        self.freed.push((place, len));
        self.freed_bytes += u64::from(len);
    }

    /// Removes an entry, if it still stands at `place`.
    pub(crate) fn remove(&mut self, key: &CacheKey, place: Option<Place>) -> bool {
        let Some(entry) = self.entries.get(key).copied() else { return false };
        if place.is_some_and(|p| p != entry.place()) {
            return false;
        }
        self.entries.remove(key);
        let len = u64::from(entry.len());
        self.bytes -= len;
        if self.condemned.remove(key).is_some() {
            self.condemned_bytes -= len;
        }
        self.free(entry.place(), entry.len());
        true
    }

    /// Removes an entry if it stands in `slab`.
    pub(crate) fn remove_of_slab(&mut self, key: &CacheKey, slab: u32) -> bool {
        let place = self.entries.get(key).map(Entry::place).filter(|p| p.slab == slab);
        place.is_some() && self.remove(key, place)
    }

    /// Points an entry that still stands at `from` to its copy; the place that lost is freed.
    pub(crate) fn relocate(&mut self, key: &CacheKey, from: Place, to: Place) -> bool {
        match self.entries.get_mut(key) {
            Some(entry) if entry.place() == from => {
                (entry.slab, entry.at) = (to.slab, to.at);
                entry.len_flags |= DIRTY;
                let len = entry.len();
                self.free(from, len);
                self.note_birth(*key);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn mark_verified(&mut self, key: &CacheKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.len_flags |= VERIFIED;
        }
    }

    /// Pins a key; answers as [`Self::touch`].
    pub(crate) fn pin(&mut self, key: CacheKey, now: u32) -> Option<bool> {
        *self.pins.entry(key).or_insert(0) += 1;
        self.touch(&key, now)
    }

    /// Takes one pin back; the time to live begins anew with the last one.
    pub(crate) fn unpin(&mut self, key: &CacheKey, now: u32) {
        if let Some(n) = self.pins.get_mut(key) {
            *n -= 1;
            if *n == 0 {
                self.pins.remove(key);
            }
            self.touch(key, now);
        }
    }

    /// Condemns what has outlived its time. Looks through the entries only if one may have, and at most each `pause` seconds.
    pub(crate) fn condemn_expired(&mut self, ttl: u32, pause: u32, now: u32, deadline: u32) {
        if !expired(ttl, now, self.oldest) || now.saturating_sub(self.swept_at) < pause {
            return;
        }
        self.swept_at = now;
        self.oldest = u32::MAX;
        let Self { entries, condemned, pins, condemned_bytes, oldest, .. } = self;
        for (key, entry) in entries.iter() {
            if condemned.contains_key(key) {
                continue;
            }
            if expired(ttl, now, entry.last_use) && !pins.contains_key(key) {
                condemned.insert(*key, Condemned { deadline, cause: Cause::Ttl });
                *condemned_bytes += u64::from(entry.len());
            } else {
                *oldest = (*oldest).min(entry.last_use);
            }
        }
    }

    /// No entry was last used earlier than this.
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Counts what pressure may condemn.
    pub(crate) fn count_ages(&self, ages: &mut Ages) {
        for (key, entry) in &self.entries {
            if !self.condemned.contains_key(key) && !self.pins.contains_key(key) {
                ages.add(entry.last_use, u64::from(entry.len()));
            }
        }
    }

    /// Condemns what `cut` reaches as far as `quota` allows.
    pub(crate) fn condemn_cut(&mut self, cut: Cut, quota: &mut Quota, deadline: u32) {
        let Self { entries, condemned, pins, condemned_bytes, .. } = self;
        for (key, entry) in entries.iter() {
            let len = u64::from(entry.len());
            let within = entry.last_use < cut.before || (entry.last_use < cut.until && quota.partly > 0);
            if !within || len > quota.spare || condemned.contains_key(key) || pins.contains_key(key) {
                continue;
            }
            if entry.last_use >= cut.before {
                quota.partly = quota.partly.saturating_sub(len);
            }
            quota.spare -= len;
            condemned.insert(*key, Condemned { deadline, cause: Cause::Pressure });
            *condemned_bytes += len;
        }
    }

    /// Removes condemned entries whose deadline has passed (all of them if `at_once`), except those being read.
    pub(crate) fn remove_due(&mut self, now: u32, at_once: bool) -> Removed {
        let due: Vec<(CacheKey, Cause)> = self
            .condemned
            .iter()
            .filter(|(key, c)| {
                let read = self.entries.get(*key).is_some_and(|e| self.readers.contains_key(&e.place()));
                (at_once || c.deadline <= now) && !read
            })
            .map(|(key, c)| (*key, c.cause))
            .collect();
        let mut removed = Removed::default();
        for (key, cause) in due {
            self.remove(&key, None);
            match cause {
                Cause::Ttl => removed.ttl += 1,
                Cause::Pressure => removed.pressure += 1,
            }
        }
        // A burst of evictions leaves an empty table behind.
        if self.entries.capacity() > 4 * self.entries.len() + 1024 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        if self.condemned.is_empty() {
            self.condemned.shrink_to(0);
        }
        removed
    }

    /// Takes the freed records that nobody reads; they stay counted until [`Self::punched`].
    pub(crate) fn take_freed(&mut self) -> Vec<(Place, u32)> {
        let readers = &self.readers;
        let (held, free) = self.freed.drain(..).partition(|(place, _)| readers.contains_key(place));
        self.freed = held;
        free
    }

    /// Freed records were given back to the file system.
    pub(crate) fn punched(&mut self, bytes: u64) {
        self.freed_bytes -= bytes;
    }

    /// Rows of new entries (or, in a `round`, of all whose row is old) that have to be written.
    pub(crate) fn take_dirty(&mut self, round: bool, rows: &mut Vec<Row>) {
        let mut take = |key: &CacheKey, entry: &mut Entry| {
            if entry.len_flags & DIRTY != 0 {
                entry.len_flags &= !DIRTY;
                rows.push(Row { place: entry.place(), key: *key, len: entry.len(), last_use: entry.last_use });
            }
        };
        if round {
            self.born.clear();
            self.entries.iter_mut().for_each(|(key, entry)| take(key, entry));
        } else {
            for key in self.born.drain(..) {
                if let Some(entry) = self.entries.get_mut(&key) {
                    take(&key, entry);
                }
            }
        }
    }

    /// Entries of a slab, at most `max`.
    pub(crate) fn of_slab(&self, slab: u32, max: usize, out: &mut Vec<CacheKey>) {
        out.extend(self.entries.iter().filter(|(_, e)| e.slab == slab).map(|(key, _)| *key).take(max));
    }
}

/// Hashes digests: they are random already, the seed keeps an outsider from choosing the bucket.
#[derive(Clone, Copy)]
pub(crate) struct Seed(pub(crate) u64);

pub(crate) struct KeyHasher(u64);

impl BuildHasher for Seed {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let wide = u128::from(self.0 ^ u64::from_le_bytes(word)) * 0x9e37_79b9_7f4a_7c15_u128;
            self.0 = (wide as u64) ^ ((wide >> 64) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<(CacheKey, Entry)>(), 48);
    }
}

//! What the cache counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a fill was not kept. The reader has its bytes either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillDrop {
    /// The volume or the cap stands at the full mark until eviction has made room.
    NoRoom,
    /// The file system is full.
    NoSpace,
    /// The frame is longer than a slab.
    TooLarge,
    /// The disk failed.
    Io,
}

/// What became of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The frame is in the cache now.
    Stored,
    /// It was there already.
    Present,
    /// It was not kept.
    Dropped(FillDrop),
}

/// State and counters since opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Entries that a lookup can find.
    pub entries: u64,
    /// Their bytes on disk, condemned entries included.
    pub bytes: u64,
    /// Bytes that are condemned, or removed and not yet given back to the file system.
    pub pending_delete_bytes: u64,
    /// Pinned keys, whether they have an entry or not.
    pub pinned: u64,
    /// Slab files.
    pub slabs: u64,
    /// Lookups that were answered.
    pub hits: u64,
    /// Lookups that were not, for whatever reason.
    pub misses: u64,
    /// Frames stored.
    pub fills: u64,
    /// Fills not kept, all reasons.
    pub fill_drops: u64,
    /// Fills not kept: [`FillDrop::NoRoom`].
    pub fill_drops_no_room: u64,
    /// Fills not kept: [`FillDrop::NoSpace`].
    pub fill_drops_no_space: u64,
    /// Entries that outlived their time.
    pub evicted_ttl: u64,
    /// Entries evicted by a watermark, or by [`crate::Cache::evict_all`].
    pub evicted_pressure: u64,
    /// Condemned entries that a use kept.
    pub rescued: u64,
    /// Entries whose bytes were not what was written, quarantined ones included.
    pub corrupt: u64,
    /// Entries whose bytes were gone: a hole, a short or a missing file.
    pub vanished: u64,
    /// Entries moved out of nearly empty slabs.
    pub compacted: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// The counters behind [`CacheStats`].
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn fill_in(&self, stats: &mut CacheStats) {
                $(stats.$name = self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counters!(
    hits,
    misses,
    fills,
    fill_drops,
    fill_drops_no_room,
    fill_drops_no_space,
    evicted_ttl,
    evicted_pressure,
    rescued,
    corrupt,
    vanished,
    compacted
);

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

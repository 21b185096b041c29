//! Settings and bounds of the disk cache.

use std::time::Duration;

use hiloop_types::limits::{GIB, KIB, MIB};
use hiloop_types::{Error, Result};

/// Independent parts of the index: a lock is held for one of them, and never over I/O.
pub(crate) const SHARDS: usize = 64;
/// Unit of hole punching, bytes: the block of the file systems we run on.
pub(crate) const BLOCK: u64 = 4 * KIB;
/// Buckets of the age histogram that pressure eviction works with: 32 KiB of memory while it runs.
pub(crate) const AGE_BUCKETS: usize = 4096;
/// How long a round of writing last uses to the store takes, seconds.
pub(crate) const TOUCH_ROUND: u32 = 300;

/// Settings of the disk cache. The defaults are those of `protocols.md` 5.4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// An entry leaves this long after its last use. At least one second; last uses are kept in whole seconds.
    pub ttl: Duration,
    /// Percent of the file system in use above which the oldest entries leave.
    pub high_percent: u8,
    /// Percent down to which they leave.
    pub low_percent: u8,
    /// Percent at which nothing more is filled and condemned entries leave without delay.
    pub full_percent: u8,
    /// Time between the decision to evict an entry and its deletion; a use in between keeps it.
    pub delete_delay: Duration,
    /// Pressure never shrinks the cache below this, bytes: others filling the disk cannot empty it. Time to live still does.
    pub floor: u64,
    /// The cache takes itself for a file system of this many bytes, beside the real one: the same percents apply to it.
    pub cap: Option<u64>,
    /// Length of a slab file, bytes; a multiple of 4 KiB, at most 1 GiB.
    pub slab_bytes: u32,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(25 * 3600),
            high_percent: 85,
            low_percent: 80,
            full_percent: 95,
            delete_delay: Duration::from_secs(60),
            floor: GIB,
            cap: None,
            slab_bytes: 256 * MIB as u32,
        }
    }
}

impl CacheOptions {
    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// Invalid, naming the setting and what it must be.
    pub fn check(&self) -> Result<()> {
        if self.ttl < Duration::from_secs(1) {
            return Err(Error::invalid("the time to live of the cache is below one second").at("ttl"));
        }
        if !(self.low_percent < self.high_percent && self.high_percent < self.full_percent && self.full_percent <= 100) {
            let what = format!("watermarks {}, {} and {} are not in order", self.low_percent, self.high_percent, self.full_percent);
            return Err(Error::invalid(what).at("watermarks").hint("low < high < full <= 100"));
        }
        if self.cap.is_some_and(|cap| cap < self.floor) {
            return Err(Error::invalid("the cap of the cache is below its floor").at("cap").hint("raise the cap or lower the floor"));
        }
        if u64::from(self.slab_bytes) % BLOCK != 0 || !(64 * KIB..=GIB).contains(&u64::from(self.slab_bytes)) {
            return Err(Error::invalid("slabs are multiples of 4 KiB, from 64 KiB to 1 GiB").at("slab_bytes"));
        }
        Ok(())
    }

    pub(crate) fn ttl_seconds(&self) -> u32 {
        self.ttl.as_secs().min(u64::from(u32::MAX)) as u32
    }

    pub(crate) fn delay_seconds(&self) -> u32 {
        // Rounded up: a delay of half a second is not none.
        self.delete_delay.as_millis().div_ceil(1000).min(u128::from(u32::MAX)) as u32
    }
}

//! What to evict: pure rules over numbers, without clock, disk or index.
//!
//! A *volume* is something that can be full: the file system of the cache, and the cap if there is one. Eviction begins when
//! a volume's use exceeds the high watermark and frees down to the low one. Bytes that are already condemned count as free,
//! or the delay of deletions would make each tick evict them again. The floor stops pressure, never the time to live.

use crate::options::{AGE_BUCKETS, CacheOptions};

/// Size and use of a volume, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that can be used at all.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}

impl Usage {
    /// `percent` of the whole, bytes.
    fn mark(self, percent: u8) -> u64 {
        (u128::from(self.total) * u128::from(percent) / 100) as u64
    }
}

/// What the cache holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// On disk, condemned entries included.
    pub stored: u64,
    /// Of these: condemned, or removed and not yet punched.
    pub pending: u64,
}

/// What a tick has to do about pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes to condemn, oldest first; the last entry may exceed it.
    pub condemn: u64,
    /// Bytes that may be condemned at all before the floor is reached.
    pub spare: u64,
    /// Whether condemned entries leave now instead of after the delay.
    pub at_once: bool,
    /// Bytes that may be filled until the next tick.
    pub room: u64,
}

/// Decides what pressure demands. `file_system` is unknown (`None`) when asking for it failed: then only the cap counts.
pub fn plan(options: &CacheOptions, file_system: Option<Usage>, holding: Holding) -> Plan {
    let cap = options.cap.map(|total| Usage { total, used: holding.stored });
    let mut plan = Plan { condemn: 0, spare: 0, at_once: false, room: u64::MAX };
    for volume in [file_system, cap].into_iter().flatten() {
        let after = volume.used.saturating_sub(holding.pending);
        if after > volume.mark(options.high_percent) {
            plan.condemn = plan.condemn.max(after - volume.mark(options.low_percent));
        }
        plan.at_once |= volume.used >= volume.mark(options.full_percent);
        plan.room = plan.room.min(volume.mark(options.full_percent).saturating_sub(volume.used));
    }
    let kept = holding.stored.saturating_sub(holding.pending);
    plan.spare = kept.saturating_sub(options.floor);
    plan.condemn = plan.condemn.min(plan.spare);
    plan
}

/// Whether an entry last used at `last_use` has outlived its time at `now` (both in seconds of one clock).
pub fn expired(ttl_seconds: u32, now: u32, last_use: u32) -> bool {
    now.saturating_sub(last_use) >= ttl_seconds
}

/// Bytes by last use, to find how far back eviction has to reach without sorting the entries.
pub struct Ages {
    oldest: u32,
    width: u32,
    bytes: Vec<u64>,
}

/// What [`Ages::cut`] answers: condemn everything last used before `before`, and of what was last used from there to before
/// `until`, `partly` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Entries last used earlier than this go.
    pub before: u32,
    /// Entries last used from `before` on but earlier than this go until `partly` is used up.
    pub until: u32,
    /// Bytes to condemn in the last span.
    pub partly: u64,
}

impl Ages {
    /// For entries last used between `oldest` and `now`; earlier and later ones count at the ends.
    pub fn new(oldest: u32, now: u32) -> Self {
        let span = now.saturating_sub(oldest);
        Self { oldest, width: span / AGE_BUCKETS as u32 + 1, bytes: vec![0; AGE_BUCKETS] }
    }

    /// Counts an entry.
    pub fn add(&mut self, last_use: u32, bytes: u64) {
        let at = (last_use.saturating_sub(self.oldest) / self.width) as usize;
        self.bytes[at.min(AGE_BUCKETS - 1)] += bytes;
    }

    /// How far to reach for `need` bytes.
    pub fn cut(&self, need: u64) -> Cut {
        let mut rest = need;
        for (at, bytes) in self.bytes.iter().enumerate() {
            if *bytes >= rest {
                let before = if at == 0 { 0 } else { self.start(at) };
                let until = if at == AGE_BUCKETS - 1 { u32::MAX } else { self.start(at + 1) };
                return Cut { before, until, partly: rest };
            }
            rest -= bytes;
        }
        Cut { before: u32::MAX, until: u32::MAX, partly: 0 }
    }

    fn start(&self, bucket: usize) -> u32 {
        self.oldest.saturating_add(self.width.saturating_mul(bucket as u32))
    }
}

#[cfg(test)]
mod tests {
    use hiloop_types::limits::GIB;
    use proptest::prelude::*;

    use super::*;

    fn options(floor: u64, cap: Option<u64>) -> CacheOptions {
        CacheOptions { floor, cap, ..CacheOptions::default() }
    }

    #[test]
    fn watermarks() {
        // (total, used, stored, pending, floor, cap) -> (condemn, at once, room)
        let table = [
            ("below the high mark nothing happens", (100, 85, 50, 0, 0, None), (0, false, 10)),
            ("above it down to the low mark", (100, 86, 50, 0, 0, None), (6, false, 9)),
            ("pending bytes count as free", (100, 90, 50, 6, 0, None), (0, false, 5)),
            ("and are not condemned twice", (100, 94, 50, 6, 0, None), (8, false, 1)),
            ("the floor stops pressure", (100, 90, 22, 0, 15, None), (7, false, 5)),
            ("at the floor others cannot empty the cache", (100, 99, 15, 0, 15, None), (0, true, 0)),
            ("a full disk waives the delay", (100, 95, 50, 20, 0, None), (0, true, 0)),
            ("the cap is a volume of its own", (1000, 100, 90, 0, 0, Some(100)), (10, false, 5)),
            ("the tighter volume decides", (100, 92, 90, 0, 0, Some(100)), (12, false, 3)),
            ("a cap with pending bytes", (1000, 100, 96, 20, 0, Some(100)), (0, true, 0)),
            ("no more is condemned than there is", (100, 94, 5, 0, 0, None), (5, false, 1)),
        ];
        for (name, (total, used, stored, pending, floor, cap), (condemn, at_once, room)) in table {
            let got = plan(&options(floor, cap), Some(Usage { total, used }), Holding { stored, pending });
            let spare = (stored - pending).saturating_sub(floor);
            assert_eq!(got, Plan { condemn, spare, at_once, room }, "{name}");
        }
        let blind = plan(&options(0, None), None, Holding { stored: 7, pending: 0 });
        assert_eq!(blind, Plan { condemn: 0, spare: 7, at_once: false, room: u64::MAX }, "an unknown usage demands nothing");
    }

    #[test]
    fn huge_volumes_do_not_overflow() {
        let got = plan(&options(GIB, None), Some(Usage { total: u64::MAX, used: u64::MAX }), Holding { stored: u64::MAX, pending: 0 });
        assert!(got.at_once && got.condemn > 0);
    }

    #[test]
    fn time_to_live() {
        assert!(!expired(10, 109, 100));
        assert!(expired(10, 110, 100));
        assert!(!expired(10, 90, 100), "a last use in the future is a use now");
    }

    proptest! {
        #[test]
        fn condemning_reaches_the_low_mark_or_the_floor(total in 1u64..1 << 40, used in 0u64..1 << 40, stored in 0u64..1 << 40,
                                                        pending in 0u64..1 << 40, floor in 0u64..1 << 30) {
            let (used, stored) = (used.min(total), stored.min(used));
            let pending = pending.min(stored);
            let o = options(floor, None);
            let p = plan(&o, Some(Usage { total, used }), Holding { stored, pending });
            let kept = stored - pending - p.condemn;
            if p.condemn > 0 {
                prop_assert!(kept >= floor);
                let left = used - pending - p.condemn;
                prop_assert!(left == total * 80 / 100 || kept == floor);
            }
        }

        #[test]
        fn a_cut_takes_the_oldest_and_enough(mut uses in proptest::collection::vec((0u32..100_000, 1u64..1000), 1..200), need in 1u64..50_000) {
            let mut ages = Ages::new(uses.iter().map(|u| u.0).min().unwrap(), 100_000);
            uses.iter().for_each(|(at, bytes)| ages.add(*at, *bytes));
            let cut = ages.cut(need);
            let (mut freed, mut partly) = (0, cut.partly);
            for (at, bytes) in &uses {
                if *at < cut.before {
                    freed += bytes;
                } else if *at < cut.until && partly > 0 {
                    freed += bytes;
                    partly = partly.saturating_sub(*bytes);
                }
            }
            let all: u64 = uses.iter().map(|u| u.1).sum();
            prop_assert!(freed >= need.min(all));
            // No more than the need, one entry and what is older than the span.
            uses.sort();
            let older: u64 = uses.iter().filter(|u| u.0 < cut.before).map(|u| u.1).sum();
            prop_assert!(older < need || all < need);
            prop_assert!(freed < need + 1000 || all < need);
        }
    }
}

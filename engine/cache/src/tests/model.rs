use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Fill(u64),
    Lookup(u64),
    Pin(u64),
    Unpin(u64),
    Quarantine(u64),
    Pass(u64),
    Pressure(u64),
    EvictAll,
    Full(bool),
    Restart { persist: bool, crash: bool },
    Corrupt(prop::sample::Index, prop::sample::Index),
    Vanish(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0u64..24;
    prop_oneof![
        12 => n.clone().prop_map(Step::Fill),
        12 => n.clone().prop_map(Step::Lookup),
        2 => n.clone().prop_map(Step::Pin),
        2 => n.clone().prop_map(Step::Unpin),
        1 => n.prop_map(Step::Quarantine),
        4 => (1u64..6).prop_map(Step::Pass),
        2 => (40u64..101).prop_map(Step::Pressure),
        1 => Just(Step::EvictAll),
        1 => any::<bool>().prop_map(Step::Full),
        2 => any::<(bool, bool)>().prop_map(|(persist, crash)| Step::Restart { persist, crash }),
        1 => any::<(prop::sample::Index, prop::sample::Index)>().prop_map(|(file, at)| Step::Corrupt(file, at)),
        1 => any::<prop::sample::Index>().prop_map(Step::Vanish),
    ]
}

fn len(n: u64) -> usize {
    [0, 1, 100, 3000, 5000, 16 << 10, 40_000, 60_000][n as usize % 8]
}

fn slab_files(node: &Node) -> Vec<std::path::PathBuf> {
    let mut out: Vec<_> = fs::read_dir(node.dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    out.sort();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Whatever happens: a hit is what was filled; a pinned entry leaves only by damage; sums are those of the entries.
    #[test]
    fn a_hit_is_what_was_filled(steps in proptest::collection::vec(step(), 1..80)) {
        let node = Node { options: CacheOptions { slab_bytes: 128 << 10, ..Node::new().options }, ..Node::new() };
        let mut cache = node.open();
        let mut pins: HashMap<u64, u32> = HashMap::new();
        // Entries that must be there: pinned, filled, and not damaged since.
        let mut sure: HashSet<u64> = HashSet::new();
        let mut damaged = false;
        for step in steps {
            match step {
                Step::Fill(n) => {
                    let (key, frame) = frame(n, len(n));
                    let filled = cache.insert(key, &frame);
                    if !matches!(filled, crate::Fill::Dropped(_)) && pins.contains_key(&n) && !damaged {
                        sure.insert(n);
                    }
                }
                Step::Lookup(n) => {
                    let (key, frame) = frame(n, len(n));
                    match cache.lookup(&key) {
                        Some(hit) => {
                            prop_assert_eq!(hit.frame, frame);
                            prop_assert!(cache.contains(&key));
                        }
                        None => {
                            prop_assert!(!sure.contains(&n), "{} is pinned", n);
                            prop_assert!(!cache.contains(&key));
                        }
                    }
                }
                Step::Pin(n) => {
                    *pins.entry(n).or_insert(0) += 1;
                    if cache.pin(frame(n, 0).0) && !damaged {
                        sure.insert(n);
                    }
                }
                Step::Unpin(n) => {
                    cache.unpin(&frame(n, 0).0);
                    if let Some(count) = pins.get_mut(&n) {
                        *count -= 1;
                        if *count == 0 {
                            pins.remove(&n);
                            sure.remove(&n);
                        }
                    }
                }
                Step::Quarantine(n) => {
                    cache.quarantine(&frame(n, 0).0);
                    sure.remove(&n);
                }
                Step::Pass(seconds) => node.pass(&cache, seconds),
                Step::Pressure(percent) => node.usage(100 * MIB, percent * MIB),
                Step::EvictAll => cache.evict_all().unwrap(),
                Step::Full(full) => node.faults.full.store(full, Ordering::SeqCst),
                Step::Restart { persist, crash } => {
                    if persist {
                        cache.persist().unwrap();
                    }
                    drop(cache);
                    if crash {
                        node.meta.crash();
                    }
                    cache = node.open();
                    // Pins are the users', who are gone with the process. A row may be stale, which is damage to the entry.
                    pins.clear();
                    sure.clear();
                    damaged |= crash;
                }
                Step::Corrupt(file, at) => {
                    let files = slab_files(&node);
                    if !files.is_empty() {
                        let file = fs::OpenOptions::new().read(true).write(true).open(file.get(&files)).unwrap();
                        let at = at.index(file.metadata().unwrap().len() as usize) as u64;
                        let mut byte = [0];
                        file.read_exact_at(&mut byte, at).unwrap();
                        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
                        damaged = true;
                        sure.clear();
                    }
                }
                Step::Vanish(file) => {
                    let files = slab_files(&node);
                    if !files.is_empty() {
                        fs::remove_file(file.get(&files)).unwrap();
                        damaged = true;
                        sure.clear();
                    }
                }
            }
            let stats = cache.stats();
            prop_assert_eq!(stats.pinned, pins.len() as u64);
            prop_assert!(sure.iter().all(|n| cache.contains(&frame(*n, 0).0)));
            prop_assert_eq!(stats.entries, (0..24).filter(|n| cache.contains(&frame(*n, 0).0)).count() as u64);
            let bytes: u64 = (0..24u64)
                .filter(|n| cache.contains(&frame(*n, 0).0))
                .map(|n| u64::from(crate::record::length(len(n)).unwrap()))
                .sum();
            prop_assert_eq!(stats.bytes, bytes);
        }
        // In the end everything can be given back.
        pins.iter().for_each(|(n, count)| (0..*count).for_each(|_| cache.unpin(&frame(*n, 0).0)));
        cache.evict_all().unwrap();
        let stats = cache.stats();
        prop_assert_eq!((stats.entries, stats.bytes, stats.pending_delete_bytes, stats.slabs, stats.pinned), (0, 0, 0, 0, 0));
        prop_assert_eq!(node.meta_rows(), 0);
    }
}

impl Node {
    /// Rows of the index.
    fn meta_rows(&self) -> usize {
        use hiloop_types::{Column, MetaStore};
        let mut rows = 0;
        let mut add = |_: &[u8], _: &[u8]| {
            rows += 1;
            true
        };
        self.meta.scan(Column::Residency, b"r", &mut add).unwrap();
        rows
    }
}

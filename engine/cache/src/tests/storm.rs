use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;

/// Rounds of each thread, at least.
const ROUNDS: u64 = 1500;

/// Readers, fillers and an evictor at once: every hit is right, and in the end nothing is held or leaked.
#[test]
fn an_eviction_storm_never_serves_wrong_bytes() {
    let node = Node { options: CacheOptions { slab_bytes: 256 << 10, delete_delay: Duration::ZERO, ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    let running = AtomicU64::new(3);
    let hits = AtomicU64::new(0);
    // Whoever is scheduled how: it blows until something was evicted and something was hit.
    let blew = AtomicBool::new(false);
    let len = |n: u64| [100, 4000, 20_000, 70_000][n as usize % 4];
    std::thread::scope(|s| {
        for thread in 0..3u64 {
            let (cache, running, hits, blew) = (&cache, &running, &hits, &blew);
            s.spawn(move || {
                for round in (0..u64::MAX).take_while(|round| *round < ROUNDS || !blew.load(Ordering::SeqCst)) {
                    let n = (round * 7 + thread * 13) % 60;
                    let (key, frame) = frame(n, len(n));
                    match cache.lookup(&key) {
                        Some(hit) => {
                            assert_eq!(hit.frame, frame, "wrong bytes for {n}");
                            hits.fetch_add(1, Ordering::Relaxed);
                        }
                        None => drop(cache.insert(key, &frame)),
                    }
                    if round < ROUNDS && round % 50 == thread {
                        cache.quarantine(&key);
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut round = 0u64;
        while running.load(Ordering::SeqCst) > 0 {
            round += 1;
            // Pressure comes and goes; sometimes everything is thrown out.
            node.usage(100 * MIB, if round.is_multiple_of(2) { 96 * MIB } else { 50 * MIB });
            node.pass(&cache, 1);
            if round.is_multiple_of(16) {
                cache.evict_all().unwrap();
            }
            blew.store(cache.stats().evicted_pressure > 0 && hits.load(Ordering::Relaxed) > 0, Ordering::SeqCst);
        }
    });
    let stats = cache.stats();
    assert!(hits.load(Ordering::Relaxed) > 0 && stats.evicted_pressure > 0, "{stats:?}");
    assert_eq!(stats.vanished, 0, "a hole was read: {stats:?}");
    assert!(stats.corrupt <= 90, "only quarantines, at most thirty of each thread: {stats:?}");
    cache.evict_all().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.pending_delete_bytes, stats.slabs), (0, 0, 0, 0));
}

/// Two threads fill the same content at once: one record stays, the other's space is given back.
#[test]
fn concurrent_fills_of_one_key_keep_one_record() {
    let node = Node::new();
    let cache = node.open();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for n in 0..100 {
                    let (key, frame) = frame(n, 1000);
                    cache.insert(key, &frame);
                }
            });
        }
    });
    node.pass(&cache, 1);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.fills, stats.pending_delete_bytes), (100, 100, 0));
    assert_eq!(stats.bytes, 100 * u64::from(crate::record::length(1000).unwrap()));
    for n in 0..100 {
        let (key, frame) = frame(n, 1000);
        assert_eq!(cache.lookup(&key).unwrap().frame, frame);
    }
}

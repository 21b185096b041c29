use super::*;
use crate::Fill;

#[test]
fn an_unused_entry_leaves_after_its_time_and_the_delay() {
    let node = Node::new();
    let cache = node.open();
    let (idle, used) = (fill(&cache, 1, 1000), fill(&cache, 2, 1000));
    node.pass(&cache, 9);
    assert!(cache.lookup(&used).is_some());
    node.pass(&cache, 2);
    assert!(cache.contains(&idle), "condemned at 10, deleted at 12");
    assert!(cache.stats().pending_delete_bytes > 1000);
    node.pass(&cache, 1);
    assert!(!cache.contains(&idle) && cache.contains(&used));
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.evicted_ttl, stats.evicted_pressure, stats.pending_delete_bytes), (1, 1, 0, 0));
}

#[test]
fn a_use_rescues_what_is_condemned() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    node.pass(&cache, 11);
    assert!(cache.stats().pending_delete_bytes > 0);
    assert!(cache.lookup(&key).is_some());
    assert_eq!((cache.stats().pending_delete_bytes, cache.stats().rescued), (0, 1));
    node.pass(&cache, 9);
    assert!(cache.contains(&key));
    node.pass(&cache, 3);
    assert!(!cache.contains(&key));
    // A second fill of the same content is a use as well.
    let key = fill(&cache, 1, 1000);
    node.pass(&cache, 11);
    assert_eq!(cache.insert(key, &frame(1, 1000).1), Fill::Present);
    node.pass(&cache, 9);
    assert!(cache.contains(&key));
}

#[test]
fn pressure_takes_the_oldest_down_to_the_low_mark() {
    let node = Node { options: CacheOptions { ttl: Duration::from_secs(1000), ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    let keys: Vec<_> = (0..20)
        .map(|n| {
            node.pass(&cache, 1);
            fill(&cache, n, 100_000)
        })
        .collect();
    cache.lookup(&keys[0]).unwrap();
    node.pass(&cache, 1);
    cache.lookup(&keys[0]).unwrap();
    // 10 MB, of which 85 % are exceeded by little: half a megabyte has to go.
    node.usage(10_000_000, 8_501_000);
    node.pass(&cache, 1);
    let pending = cache.stats().pending_delete_bytes;
    assert!((501_000..650_000).contains(&pending), "{pending}");
    // The file system does not know yet; condemned bytes count as free, so that nothing more is condemned.
    node.pass(&cache, 1);
    assert_eq!(cache.stats().pending_delete_bytes, pending);
    node.usage(10_000_000, 8_000_000);
    node.pass(&cache, 2);
    let stats = cache.stats();
    let kept: Vec<usize> = (0..20).filter(|n| cache.contains(&keys[*n])).collect();
    assert_eq!(kept, [vec![0], (7..20).collect()].concat(), "the oldest went, the one just used stayed");
    assert_eq!((stats.evicted_pressure, stats.evicted_ttl, stats.pending_delete_bytes), (6, 0, 0));
}

#[test]
fn pressure_stops_at_the_floor_and_at_pins() {
    let node = Node { options: CacheOptions { floor: 500_000, ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    (0..10).for_each(|n| {
        fill(&cache, n, 100_000);
    });
    node.usage(10_000_000, 10_000_000);
    node.pass(&cache, 1);
    assert_eq!(cache.stats().entries, 5, "a full disk waives the delay, not the floor");
    node.pass(&cache, 5);
    assert_eq!(cache.stats().entries, 5);

    let node = Node::new();
    let cache = node.open();
    let keys: Vec<_> = (0..10).map(|n| fill(&cache, n, 100_000)).collect();
    assert!(cache.pin(keys[3]) && cache.pin(keys[3]));
    node.usage(10_000_000, 10_000_000);
    node.pass(&cache, 60);
    assert_eq!((cache.stats().entries, cache.stats().pinned), (1, 1));
    cache.evict_all().unwrap();
    cache.unpin(&keys[3]);
    node.pass(&cache, 1);
    assert!(cache.lookup(&keys[3]).is_some(), "pinned twice");
    cache.unpin(&keys[3]);
    cache.unpin(&keys[3]);
    assert_eq!(cache.stats().pinned, 0);
    node.pass(&cache, 1);
    assert_eq!(cache.stats().entries, 0);
}

#[test]
fn a_pin_holds_for_a_later_fill_and_ttl_begins_with_its_end() {
    let node = Node::new();
    let cache = node.open();
    let key = frame(1, 1000).0;
    assert!(!cache.pin(key));
    fill(&cache, 1, 1000);
    node.pass(&cache, 30);
    assert!(cache.contains(&key));
    cache.unpin(&key);
    node.pass(&cache, 11);
    assert!(cache.contains(&key));
    node.pass(&cache, 1);
    assert!(!cache.contains(&key));
}

#[test]
fn the_cap_holds_whatever_is_filled() {
    let node = Node { options: CacheOptions { cap: Some(2_000_000), ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    let (mut stored, mut dropped) = (0, 0);
    for n in 0..200 {
        let (key, frame) = frame(n, 50_000);
        match cache.insert(key, &frame) {
            Fill::Stored => stored += 1,
            Fill::Dropped(crate::FillDrop::NoRoom) => dropped += 1,
            other => panic!("{other:?}"),
        }
        assert!(cache.stats().bytes <= 2_000_000);
        assert!(node.allocated() < 2_100_000, "{}", node.allocated());
        if n % 10 == 9 {
            node.pass(&cache, 1);
        }
    }
    assert!(stored > 60 && dropped > 0, "{stored} {dropped}");
    assert_eq!(cache.stats().fill_drops, dropped);
    assert_eq!(cache.stats().fill_drops_no_room, dropped);
}

#[test]
fn an_entry_being_read_is_not_punched() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 100_000);
    let found = cache.shard(&key).lock().begin_read(&key, cache.now()).unwrap();
    cache.evict_all().unwrap();
    assert!(cache.contains(&key), "nor evicted");
    assert_eq!(cache.read(&key, &found).unwrap(), frame(1, 100_000).1);
    // Also when the entry goes, its bytes stay until the read ends.
    cache.quarantine(&key);
    node.pass(&cache, 5);
    assert!(!cache.contains(&key));
    assert_eq!(cache.read(&key, &found).unwrap(), frame(1, 100_000).1);
    assert!(cache.stats().pending_delete_bytes > 0);
    cache.shard(&key).lock().end_read(found.place);
    node.pass(&cache, 1);
    assert_eq!((cache.stats().pending_delete_bytes, cache.stats().slabs), (0, 0));
}

#[test]
fn eviction_gives_blocks_back_to_the_file_system() {
    let node = Node::new();
    let cache = node.open();
    let keys: Vec<_> = (0..40).map(|n| fill(&cache, n, 50_000)).collect();
    let full = node.allocated();
    assert!(full >= 2_000_000);
    // Every second one goes: holes in the middle of slabs.
    node.pass(&cache, 9);
    keys.iter().step_by(2).for_each(|k| drop(cache.lookup(k).unwrap()));
    node.pass(&cache, 4);
    let half = node.allocated();
    assert_eq!(cache.stats().entries, 20);
    assert!(half < full * 60 / 100, "{full} -> {half}");
    assert!(keys.iter().step_by(2).all(|k| cache.lookup(k).is_some()));
    cache.evict_all().unwrap();
    assert_eq!((node.allocated(), cache.stats().entries, cache.stats().slabs), (0, 0, 0));
    fill(&cache, 100, 10);
    assert_eq!(cache.stats().slabs, 1);
}

#[test]
fn small_entries_share_blocks_and_still_free_them() {
    let node = Node::new();
    let cache = node.open();
    (0..3000).for_each(|n| {
        fill(&cache, n, 200);
    });
    let full = node.allocated();
    assert!(full > 780_000);
    node.pass(&cache, 5);
    (3000..3010).for_each(|n| {
        fill(&cache, n, 200);
    });
    node.pass(&cache, 7);
    assert_eq!(cache.stats().entries, 10);
    assert!(node.allocated() < 20_000, "{full} -> {}", node.allocated());
}

#[test]
fn nearly_empty_slabs_are_merged() {
    let node = Node { options: CacheOptions { slab_bytes: 64 << 10, ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    // Thirty slabs, in each of which one small entry is pinned.
    let pinned: Vec<u64> = (0..30).map(|n| 1000 + n).collect();
    for n in 0..30 {
        cache.pin(fill(&cache, 1000 + n, 500));
        fill(&cache, n, 50_000);
    }
    assert!(cache.stats().slabs >= 29);
    node.pass(&cache, 60);
    let stats = cache.stats();
    assert_eq!(stats.entries, 30);
    assert!(stats.slabs <= 6 && stats.compacted >= 20, "{stats:?}");
    // The ticks have written where everything stands now.
    drop(cache);
    let cache = node.open();
    for n in pinned {
        let (key, frame) = frame(n, 500);
        assert_eq!(cache.lookup(&key).unwrap().frame, frame);
    }
}

#[test]
fn whatever_happens_during_a_read_its_bytes_stay() {
    let node = Node::new();
    let cache = Arc::new(node.open());
    let key = fill(&cache, 1, 100_000);
    let (other, now) = (cache.clone(), node.env.monotonic());
    *node.faults.before_read.lock() = Some(Box::new(move || {
        other.quarantine(&key);
        other.evict_all().unwrap();
        other.tick(now).unwrap();
    }));
    assert_eq!(cache.lookup(&key).unwrap().frame, frame(1, 100_000).1);
    assert!(!cache.contains(&key) && node.allocated() > 100_000);
    node.pass(&cache, 1);
    assert_eq!(node.allocated(), 0);
}

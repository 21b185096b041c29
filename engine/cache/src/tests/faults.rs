use std::fs;
use std::os::unix::fs::FileExt;

use hiloop_types::{Column, MetaBatch, MetaStore};

use super::*;
use crate::{Fill, FillDrop};

#[test]
fn a_flipped_bit_is_a_miss_and_the_entry_is_fetched_again() {
    let node = Node::new();
    let cache = node.open();
    let (key, frame) = frame(1, 100_000);
    for at in [4096, 4096 + 30, 4096 + 57, 4096 + 70, 4096 + 50_000, 4096 + 100_000] {
        assert_eq!(cache.insert(key, &frame), Fill::Stored);
        let slab = fs::read_dir(node.dir.path()).unwrap().next().unwrap().unwrap().path();
        let file = fs::OpenOptions::new().read(true).write(true).open(slab).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let before = cache.stats();
        assert_eq!(cache.lookup(&key), None, "bit at {at}");
        assert!(!cache.contains(&key));
        let after = cache.stats();
        assert_eq!((after.corrupt, after.misses, after.hits), (before.corrupt + 1, before.misses + 1, before.hits));
        cache.evict_all().unwrap();
    }
}

#[test]
fn a_quarantined_entry_is_gone_and_counted() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    cache.pin(key);
    cache.quarantine(&key);
    cache.quarantine(&key);
    assert_eq!((cache.lookup(&key), cache.stats().corrupt), (None, 1));
    fill(&cache, 1, 1000);
    assert!(cache.lookup(&key).is_some());
}

#[test]
fn a_disk_that_fails_to_read_is_a_miss() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    node.faults.broken.store(true, Ordering::SeqCst);
    assert_eq!(cache.lookup(&key), None);
    node.faults.broken.store(false, Ordering::SeqCst);
    assert_eq!((cache.lookup(&key), cache.stats().corrupt), (None, 1), "dropped, not tried again");
}

#[test]
fn a_full_disk_drops_fills_until_a_tick_finds_room() {
    let node = Node::new();
    let cache = node.open();
    let kept = fill(&cache, 1, 1000);
    node.faults.full.store(true, Ordering::SeqCst);
    let (key, frame) = frame(2, 1000);
    assert_eq!(cache.insert(key, &frame), Fill::Dropped(FillDrop::NoSpace));
    assert_eq!(cache.insert(key, &frame), Fill::Dropped(FillDrop::NoRoom), "not tried again before the next tick");
    assert!(!cache.contains(&key) && cache.lookup(&key).is_none() && cache.lookup(&kept).is_some());
    let stats = cache.stats();
    assert_eq!((stats.fill_drops, stats.fill_drops_no_space, stats.fill_drops_no_room), (2, 1, 1));
    node.faults.full.store(false, Ordering::SeqCst);
    node.pass(&cache, 1);
    assert_eq!(cache.insert(key, &frame), Fill::Stored);
    assert_eq!(cache.lookup(&key).unwrap().frame, frame);
}

#[test]
fn a_full_disk_while_a_slab_is_made_leaves_no_trace() {
    let node = Node::new();
    let cache = node.open();
    node.faults.full.store(true, Ordering::SeqCst);
    let (key, frame) = frame(2, 1000);
    for _ in 0..3 {
        assert_eq!(cache.insert(key, &frame), Fill::Dropped(FillDrop::NoSpace));
        assert_eq!(fs::read_dir(node.dir.path()).unwrap().count(), 0);
        node.pass(&cache, 1);
    }
    node.faults.full.store(false, Ordering::SeqCst);
    assert_eq!(cache.insert(key, &frame), Fill::Stored);
    cache.persist().unwrap();
    drop(cache);
    let cache = node.open();
    assert_eq!(cache.lookup(&key).unwrap().frame, frame);
    assert_eq!(fs::read_dir(node.dir.path()).unwrap().count(), 1);
}

#[test]
fn nothing_is_filled_at_the_full_mark() {
    let node = Node::new();
    node.usage(1024 * MIB, 973 * MIB);
    let cache = node.open();
    let (key, frame) = frame(1, 1000);
    assert_eq!(cache.insert(key, &frame), Fill::Dropped(FillDrop::NoRoom));
    node.usage(1024 * MIB, 972 * MIB);
    node.pass(&cache, 1);
    assert_eq!(cache.insert(key, &frame), Fill::Stored);
    // 95 % less one MiB: after about that much it ends, without asking the file system again.
    let stored = (2..100).take_while(|n| cache.insert(super::frame(*n, 50_000).0, &super::frame(*n, 50_000).1) == Fill::Stored).count();
    assert!((10..30).contains(&stored), "{stored}");
}

#[test]
fn an_unknown_usage_evicts_nothing() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    *node.faults.usage.lock() = None;
    node.pass(&cache, 5);
    assert!(cache.lookup(&key).is_some());
    fill(&cache, 2, 1000);
}

#[test]
fn a_frame_longer_than_a_slab_is_not_kept() {
    let node = Node::new();
    let cache = node.open();
    let (key, frame) = frame(1, MIB as usize);
    assert_eq!(cache.insert(key, &frame), Fill::Dropped(FillDrop::TooLarge));
    assert_eq!(cache.stats().fill_drops, 1);
}

#[test]
fn slab_files_may_vanish_while_closed() {
    let node = Node::new();
    let cache = node.open();
    let keys: Vec<_> = (0..3).map(|n| fill(&cache, n, 700_000)).collect();
    cache.persist().unwrap();
    drop(cache);
    fs::remove_file(node.slab_path(2)).unwrap();
    fs::OpenOptions::new().write(true).open(node.slab_path(3)).unwrap().set_len(100_000).unwrap();
    let cache = node.open();
    assert_eq!(keys.iter().map(|k| cache.contains(k)).collect::<Vec<_>>(), [true, false, false]);
    assert!(cache.lookup(&keys[0]).is_some() && cache.lookup(&keys[1]).is_none());
    (1..3).for_each(|n| {
        fill(&cache, n, 700_000);
    });
    assert!(!node.slab_path(2).exists() && node.slab_path(4).exists(), "ids are not used again");
}

#[test]
fn slab_files_may_vanish_while_open() {
    let node = Node::new();
    let cache = node.open();
    let keys: Vec<_> = (0..3).map(|n| fill(&cache, n, 700_000)).collect();
    (1..4).for_each(|id| fs::remove_file(node.slab_path(id)).unwrap());
    node.pass(&cache, 3);
    assert!(keys.iter().all(|k| cache.lookup(k).is_none()));
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.slabs, stats.vanished), (0, 0, 0, 3));
    let key = fill(&cache, 1, 1000);
    assert!(cache.lookup(&key).is_some() && node.slab_path(4).exists());
}

#[test]
fn a_truncated_slab_is_a_miss() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 700_000);
    fs::OpenOptions::new().write(true).open(node.slab_path(1)).unwrap().set_len(10_000).unwrap();
    assert_eq!(cache.lookup(&key), None);
    assert_eq!(cache.stats().vanished, 1);
}

#[test]
fn a_crash_loses_only_cache_and_no_space() {
    let node = Node::new();
    let cache = node.open();
    let (gone, kept) = (fill(&cache, 1, 200_000), fill(&cache, 2, 200_000));
    cache.persist().unwrap();
    // After the last flush of the index: one entry evicted, one added.
    cache.pin(kept);
    cache.evict_all().unwrap();
    let late = fill(&cache, 3, 200_000);
    node.pass(&cache, 1);
    drop(cache);
    node.meta.crash();
    let cache = node.open();
    assert_eq!((cache.contains(&gone), cache.contains(&kept), cache.contains(&late)), (true, true, false));
    assert_eq!(cache.lookup(&gone), None, "a row without a record");
    assert_eq!(cache.stats().vanished, 1);
    assert_eq!(cache.lookup(&kept).unwrap().frame, frame(2, 200_000).1);
    assert!(node.allocated() < 220_000, "the record without a row was punched: {}", node.allocated());
}

#[test]
fn a_lost_or_foreign_index_begins_anew() {
    for version in [None, Some([9, 0, 0, 0])] {
        let node = Node::new();
        let cache = node.open();
        let key = fill(&cache, 1, 200_000);
        cache.persist().unwrap();
        drop(cache);
        let mut batch = MetaBatch::new();
        match version {
            None => batch.delete_prefix(Column::Residency, []),
            Some(v) => batch.put(Column::Residency, b"v", v),
        }
        node.meta.write(batch).unwrap();
        let cache = node.open();
        assert_eq!((cache.contains(&key), cache.stats().slabs, node.allocated()), (false, 0, 0));
        fill(&cache, 1, 200_000);
        assert!(cache.lookup(&key).is_some() && node.slab_path(2).exists());
    }
}

#[test]
fn rows_that_make_no_sense_are_dropped() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 200_000);
    cache.persist().unwrap();
    drop(cache);
    let rows = || {
        let mut rows = Vec::new();
        let mut push = |k: &[u8], v: &[u8]| {
            rows.push((k.to_vec(), v.to_vec()));
            true
        };
        node.meta.scan(Column::Residency, b"r", &mut push).unwrap();
        rows
    };
    let (good_key, good) = rows().remove(0);
    let mut batch = MetaBatch::new();
    batch.put(Column::Residency, b"r", b"");
    batch.put(Column::Residency, b"r\0\0\0\x01\0\0\0\0", good.clone());
    batch.put(Column::Residency, b"r\0\0\0\x01\0\0\x20\0", [&[1; 32][..], &[100, 0, 0, 0], &good[36..]].concat());
    batch.put(Column::Residency, b"r\0\0\0\x01\0\0\x40\0", [&[2; 32][..], &[0xff; 8]].concat());
    batch.put(Column::Residency, b"r\0\0\0\x07\0\0\x10\0", [&[3; 32][..], &good[32..]].concat());
    node.meta.write(batch).unwrap();
    let cache = node.open();
    assert_eq!(cache.stats().entries, 1);
    assert!(cache.lookup(&key).is_some());
    assert_eq!(rows(), [(good_key, good)]);
    drop(cache);
}

#[test]
fn without_hole_punching_space_is_freed_by_whole_slabs() {
    let node = Node::new();
    node.faults.no_holes.store(true, Ordering::SeqCst);
    let cache = node.open();
    let keys: Vec<_> = (0..40).map(|n| fill(&cache, n, 100_000)).collect();
    cache.pin(keys[0]);
    node.pass(&cache, 13);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.pending_delete_bytes), (1, 0));
    assert!(stats.slabs <= 2 && node.allocated() < 2_200_000, "{stats:?}");
    assert!(cache.lookup(&keys[0]).is_some());
}

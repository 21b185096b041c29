//! The cache as a whole, on a real directory with faults put in between.

mod eviction;
mod faults;
mod model;
mod storm;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hiloop_env::{Env, ManualClock};
use hiloop_types::MemoryMeta;
use parking_lot::Mutex;

use crate::disk::{Directory, Disk, SlabFile};
use crate::policy::Usage;
use crate::{Cache, CacheKey, CacheOptions, Frame};

/// Faults of a [`FaultyDisk`].
#[derive(Default)]
struct Faults {
    /// Writes fail with ENOSPC after half of their bytes.
    full: AtomicBool,
    /// Reads fail with EIO.
    broken: AtomicBool,
    /// Runs once, in the middle of the next read.
    before_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Holes cannot be punched.
    no_holes: AtomicBool,
    /// What `usage` answers; `None` fails.
    usage: Mutex<Option<Usage>>,
}

struct FaultyDisk {
    real: Directory,
    faults: Arc<Faults>,
}

struct FaultySlab {
    real: Box<dyn SlabFile>,
    faults: Arc<Faults>,
}

impl Disk for FaultyDisk {
    fn slabs(&self) -> io::Result<Vec<u32>> {
        self.real.slabs()
    }
    fn create(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        Ok(Box::new(FaultySlab { real: self.real.create(id)?, faults: self.faults.clone() }))
    }
    fn open(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        Ok(Box::new(FaultySlab { real: self.real.open(id)?, faults: self.faults.clone() }))
    }
    fn remove(&self, id: u32) -> io::Result<()> {
        self.real.remove(id)
    }
    fn usage(&self) -> io::Result<Usage> {
        self.faults.usage.lock().ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }
}

impl SlabFile for FaultySlab {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        if self.faults.broken.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let hook = self.faults.before_read.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.real.read_exact_at(buf, at)
    }
    fn write_all_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        if self.faults.full.load(Ordering::SeqCst) {
            self.real.write_all_at(&buf[..buf.len() / 2], at)?;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.real.write_all_at(buf, at)
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        if self.faults.no_holes.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.real.punch(at, len)
    }
    fn length(&self) -> io::Result<u64> {
        self.real.length()
    }
    fn is_linked(&self) -> io::Result<bool> {
        self.real.is_linked()
    }
}

/// A node with a cache directory, an index and a clock that outlive openings of the cache.
struct Node {
    dir: tempfile::TempDir,
    meta: Arc<MemoryMeta>,
    env: Env,
    clock: Arc<ManualClock>,
    faults: Arc<Faults>,
    options: CacheOptions,
}

const MIB: u64 = 1 << 20;

impl Node {
    /// Small slabs, ten seconds to live, two seconds of delay, no floor; a half empty file system of 1 GiB.
    fn new() -> Self {
        let (env, clock) = Env::simulated(1);
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
            meta: Arc::new(MemoryMeta::new()),
            env,
            clock,
            faults: Arc::default(),
            options: CacheOptions {
                ttl: Duration::from_secs(10),
                delete_delay: Duration::from_secs(2),
                floor: 0,
                slab_bytes: MIB as u32,
                ..CacheOptions::default()
            },
        };
        node.clock.advance(Duration::from_secs(1_000_000));
        node.usage(1024 * MIB, 512 * MIB);
        node
    }
    fn usage(&self, total: u64, used: u64) {
        *self.faults.usage.lock() = Some(Usage { total, used });
    }
    fn open(&self) -> Cache {
        let disk = FaultyDisk { real: Directory::open(self.dir.path()).unwrap(), faults: self.faults.clone() };
        Cache::open_on(Box::new(disk), self.options.clone(), &self.env, self.meta.clone()).unwrap()
    }
    /// Lets time pass, with a tick each second.
    fn pass(&self, cache: &Cache, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            cache.tick(self.env.monotonic()).unwrap();
        }
    }
    fn slab_path(&self, id: u32) -> std::path::PathBuf {
        self.dir.path().join(format!("slab-{id:08x}"))
    }
    /// Bytes that all slab files take on the real file system.
    fn allocated(&self) -> u64 {
        let mut sum = 0;
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            settle(&path);
            sum += std::fs::metadata(path).unwrap().blocks() * 512;
        }
        sum
    }
}

/// Block counts of a file are true once its delayed allocations are made.
fn settle(path: &Path) {
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

/// A frame that can be told from every other: `len` bytes that follow from `n`.
fn frame(n: u64, len: usize) -> (CacheKey, Frame) {
    let mut stored = vec![0; len];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut stored);
    (CacheKey(*blake3::hash(&n.to_le_bytes()).as_bytes()), Frame { codec: n as u8, plain_len: n as u32, stored: stored.into() })
}

fn fill(cache: &Cache, n: u64, len: usize) -> CacheKey {
    let (key, frame) = frame(n, len);
    assert_eq!(cache.insert(key, &frame), crate::Fill::Stored);
    key
}

#[test]
fn what_was_filled_is_found_also_after_a_restart() {
    let node = Node::new();
    let cache = node.open();
    let lens = [0, 1, 16 << 10, (16 << 10) + 1, 300_000, 900_000, 5];
    for (n, len) in lens.iter().enumerate() {
        let (key, frame) = frame(n as u64, *len);
        assert_eq!(cache.lookup(&key), None);
        assert!(!cache.contains(&key));
        assert_eq!(cache.insert(key, &frame), crate::Fill::Stored);
        assert_eq!(cache.insert(key, &frame), crate::Fill::Present);
        assert!(cache.contains(&key));
        let hit = cache.lookup(&key).unwrap();
        assert_eq!((hit.frame, hit.verified), (frame, true), "the filler has checked the digest");
    }
    let before = cache.stats();
    assert_eq!((before.entries, before.hits, before.misses, before.fills, before.slabs), (7, 7, 7, 7, 2));
    cache.persist().unwrap();
    drop(cache);
    node.meta.crash();

    let cache = node.open();
    assert_eq!((cache.stats().entries, cache.stats().bytes), (before.entries, before.bytes));
    for (n, len) in lens.iter().enumerate() {
        let (key, frame) = frame(n as u64, *len);
        let hit = cache.lookup(&key).unwrap();
        assert_eq!((&hit.frame, hit.verified), (&frame, false), "the digest is checked once after a restart");
        cache.mark_verified(&key);
        assert!(cache.lookup(&key).unwrap().verified);
    }
    fill(&cache, 100, 10);
    assert_eq!(cache.stats().slabs, 2, "the slab of the earlier run is filled on");
    assert!(cache.lookup(&frame(100, 10).0).is_some());
}

#[test]
fn a_tick_writes_new_entries_behind() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    drop(cache);
    assert!(!node.open().contains(&key), "not written yet");
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    node.pass(&cache, 1);
    drop(cache);
    assert!(node.open().contains(&key));
}

#[test]
fn last_uses_survive_a_restart() {
    let node = Node { options: CacheOptions { ttl: Duration::from_secs(1000), ..Node::new().options }, ..Node::new() };
    let cache = node.open();
    let (old, used) = (fill(&cache, 1, 1000), fill(&cache, 2, 1000));
    node.pass(&cache, 600);
    cache.lookup(&used).unwrap();
    node.pass(&cache, 300);
    drop(cache);
    node.clock.advance(Duration::from_secs(101));
    let cache = node.open();
    node.pass(&cache, 20);
    assert!(!cache.contains(&old) && cache.contains(&used));
}

#[test]
fn a_wall_clock_that_jumps_loses_nothing() {
    let node = Node::new();
    let cache = node.open();
    let key = fill(&cache, 1, 1000);
    node.clock.set_wall_offset(Duration::from_secs(1_000_000));
    node.pass(&cache, 1);
    drop(cache);
    // Set back before the next opening: the last use lies in the future then.
    node.clock.set_wall_offset(Duration::ZERO);
    let cache = node.open();
    node.pass(&cache, 9);
    assert!(cache.contains(&key));
    node.pass(&cache, 4);
    assert!(!cache.contains(&key));
}

#[test]
fn contradicting_options_are_refused() {
    let good = CacheOptions::default();
    good.check().unwrap();
    for bad in [
        CacheOptions { low_percent: 85, ..good.clone() },
        CacheOptions { high_percent: 95, ..good.clone() },
        CacheOptions { full_percent: 101, ..good.clone() },
        CacheOptions { cap: Some(good.floor - 1), ..good.clone() },
        CacheOptions { ttl: Duration::from_millis(900), ..good.clone() },
        CacheOptions { slab_bytes: 100_000, ..good.clone() },
    ] {
        assert_eq!(bad.check().unwrap_err().kind(), hiloop_types::ErrorKind::Invalid, "{bad:?}");
    }
}

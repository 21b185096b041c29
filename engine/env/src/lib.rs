//! Clock, randomness, tasks and sleeping of the engine (design.md 7, determinism): nothing else may read the time, draw a number or
//! start a task, so that the real engine runs in a seeded simulator. `clippy.toml` bans the direct calls elsewhere.
//!
//! Two kinds of threads stand outside: the journal's committer and upkeeper, whose bodies are steps that the simulator takes itself
//! (`Journal::maintain`), and the workers of `publish-base`, which only compute.

mod tasks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tasks::Tokio;
pub use tasks::{Died, Elapsed, Job, Task, Tasks};

/// Source of time. Monotonic time decides liveness, wall time is only ever shown or stored as a file time.
pub trait Clock: Send + Sync {
    /// Monotonic time since an arbitrary start.
    fn monotonic(&self) -> Duration;
    /// Wall time since 1970; may jump.
    fn wall(&self) -> Duration;
}

/// Source of random numbers.
pub trait Random: Send + Sync {
    /// Sixty-four random bits.
    fn next_u64(&self) -> u64;
}

/// The surroundings that the engine runs in: cheap to clone, passed down to whoever needs time or chance.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    tasks: Arc<dyn Tasks>,
}

impl Env {
    /// The real clock, the operating system's randomness, and tokio.
    pub fn real() -> Self {
        Self::from_parts(Arc::new(RealClock::new()), Arc::new(OsRandom), Arc::new(Tokio(None)))
    }
    /// A clock that only moves when told, and a seeded generator, for tests. Tasks and sleeps are tokio's.
    pub fn simulated(seed: u64) -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Self::from_parts(clock.clone(), Arc::new(Seeded::new(seed)), Arc::new(Tokio(None))), clock)
    }
    /// Surroundings made elsewhere: for the simulator.
    pub fn from_parts(clock: Arc<dyn Clock>, random: Arc<dyn Random>, tasks: Arc<dyn Tasks>) -> Self {
        Self { clock, random, tasks }
    }
    /// Monotonic time since an arbitrary start.
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
    /// Wall time since 1970.
    pub fn wall(&self) -> Duration {
        self.clock.wall()
    }
    /// Sixty-four random bits.
    pub fn random_u64(&self) -> u64 {
        self.random.next_u64()
    }
    /// Thirty-two random bits.
    pub fn random_u32(&self) -> u32 {
        (self.random.next_u64() >> 32) as u32
    }
    /// Thirty-two random bytes (keys).
    pub fn random_key(&self) -> [u8; 32] {
        let mut out = [0u8; 32];
        for c in out.chunks_exact_mut(8) {
            c.copy_from_slice(&self.random_u64().to_le_bytes());
        }
        out
    }
}

struct RealClock {
    start: std::time::Instant,
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the real clock")]
impl RealClock {
    fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the real clock")]
impl Clock for RealClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

struct OsRandom;

impl Random for OsRandom {
    fn next_u64(&self) -> u64 {
        // The kernel's generator only fails before it was seeded at boot: there is nothing safe to do without it.
        getrandom::u64().expect("the kernel's random generator answers")
    }
}

/// A clock that stands still until it is moved.
#[derive(Default)]
pub struct ManualClock {
    monotonic_ns: AtomicU64,
    wall_offset_ns: AtomicU64,
}

impl ManualClock {
    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        self.monotonic_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
    /// Sets wall time relative to monotonic time: a jump of the wall clock alone.
    pub fn set_wall_offset(&self, offset: Duration) {
        self.wall_offset_ns.store(offset.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::SeqCst))
    }
    fn wall(&self) -> Duration {
        self.monotonic() + Duration::from_nanos(self.wall_offset_ns.load(Ordering::SeqCst))
    }
}

/// SplitMix64: small, seeded, good enough for schedules and nonces in the simulator.
pub struct Seeded(Mutex<u64>);

impl Seeded {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Random for Seeded {
    fn next_u64(&self) -> u64 {
        let mut s = self.0.lock();
        *s = s.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *s;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence() {
        let (a, _) = Env::simulated(7);
        let (b, _) = Env::simulated(7);
        let (c, _) = Env::simulated(8);
        let draw = |e: &Env| (0..8).map(|_| e.random_u64()).collect::<Vec<_>>();
        let first = draw(&a);
        assert_eq!(first, draw(&b));
        assert_ne!(first, draw(&c));
    }
}

//! When to poll for the next request instead of going to sleep.
//!
//! A caller that gets its answer often asks again within microseconds. A reader that is asleep by then has to be woken, on another
//! CPU as a rule, which costs more than the request; one that still polls answers at once. Polling that finds nothing is CPU time
//! stolen from the caller. So a reader polls only where the last requests came fast, for little longer than they took, and never two
//! readers on one CPU, in whatever session they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Shortest time to poll.
const SHORTEST: Duration = Duration::from_micros(20);
/// Longest. A gap above it is no reason to poll.
const LONGEST: Duration = Duration::from_micros(50);
/// Confidence from which on a reader polls; each fast request adds one, each slow one halves it.
const ENOUGH: u32 = 4;
const MOST: u32 = 16;

/// Whether readers poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Never.
    Off,
    /// Where it has shown to pay.
    #[default]
    Adaptive,
    /// After every request: for measurements.
    Always,
}

/// One reader's memory of how requests come.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    confidence: u32,
    /// Mean of the short gaps, nanoseconds; an eighth of the way is gone with each.
    mean: u64,
}

impl Pace {
    /// A request came `gap` after the one before was done.
    pub(crate) fn observe(&mut self, gap: Duration) {
        if gap > LONGEST {
            self.confidence /= 2;
            return;
        }
        self.confidence = (self.confidence + 1).min(MOST);
        let gap = gap.as_nanos() as u64;
        self.mean = if self.mean == 0 { gap } else { self.mean - self.mean / 8 + gap / 8 };
    }

    /// How long to poll now.
    pub(crate) fn window(&self, spin: Spin) -> Option<Duration> {
        match spin {
            Spin::Off => None,
            Spin::Adaptive if self.confidence < ENOUGH => None,
            Spin::Adaptive | Spin::Always => Some(Duration::from_nanos(self.mean * 2).clamp(SHORTEST, LONGEST)),
        }
    }
}

/// Who polls on which CPU: one for a process (and, once the daemon is one per node, for a node). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spinners(Arc<[Cpu]>);

#[derive(Debug, Default)]
struct Cpu {
    spinning: AtomicU32,
    turns: AtomicU64,
}

/// CPUs beyond share slots, so that they only poll less.
const CPUS: usize = 1024;

impl Default for Spinners {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(CPUS, |n| n.get().next_power_of_two().clamp(64, CPUS));
        Self((0..cpus).map(|_| Cpu::default()).collect())
    }
}

/// The right to poll on a CPU.
#[derive(Debug)]
pub struct Turn<'a>(&'a Cpu);

impl Spinners {
    fn cpu(&self, cpu: usize) -> &Cpu {
        &self.0[cpu % self.0.len()]
    }

    /// Takes the right to poll on `cpu`, unless somebody has it.
    pub fn enter(&self, cpu: usize) -> Option<Turn<'_>> {
        let cpu = self.cpu(cpu);
        cpu.spinning.compare_exchange(0, 1, SeqCst, SeqCst).ok()?;
        cpu.turns.fetch_add(1, SeqCst);
        Some(Turn(cpu))
    }

    /// How often somebody polled on `cpu`.
    pub fn turns(&self, cpu: usize) -> u64 {
        self.cpu(cpu).turns.load(SeqCst)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.spinning.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn polling_starts_after_fast_requests_and_ends_after_slow_ones() {
        let mut p = Pace::default();
        assert_eq!(p.window(Spin::Adaptive), None);
        (0..ENOUGH).for_each(|_| p.observe(micros(5)));
        assert_eq!(p.window(Spin::Adaptive), Some(SHORTEST));
        assert_eq!(p.window(Spin::Off), None);
        (0..100).for_each(|_| p.observe(micros(16)));
        let w = p.window(Spin::Adaptive).unwrap();
        assert!(w > SHORTEST && w <= micros(32), "{w:?}");
        (0..100).for_each(|_| p.observe(LONGEST));
        assert_eq!(p.window(Spin::Adaptive), Some(LONGEST));
        // Full confidence is gone after three slow requests.
        (0..3).for_each(|_| p.observe(micros(1000)));
        assert_eq!(p.window(Spin::Adaptive), None);
        assert_eq!(p.window(Spin::Always), Some(LONGEST));
    }

    #[test]
    fn a_cpu_has_one_spinner_and_others_have_theirs() {
        let spinners = Spinners::default();
        let turn = spinners.enter(0).unwrap();
        assert!(spinners.clone().enter(0).is_none());
        assert!(spinners.enter(1).is_some());
        drop(turn);
        assert!(spinners.enter(0).is_some());
        assert_eq!(spinners.turns(0), 2);
    }
}

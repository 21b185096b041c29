//! When a slow read deserves a second request: after the 95th percentile of recent reads, for at most one read in twenty.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Recent latencies that the percentile is taken over.
const WINDOW: usize = 128;
/// No hedge before this many reads are known.
const WARM: usize = 32;
/// The percentile is renewed each so many reads.
const RENEW: u64 = 16;
/// One hedge per this many reads at most (5 %).
const READS_PER_HEDGE: u64 = 20;
/// Below this a second request costs more than it can win.
const LEAST_DELAY: Duration = Duration::from_millis(1);

/// Latencies and budget of one store's reads.
#[derive(Default)]
pub(crate) struct Hedge {
    recent: Mutex<Vec<u64>>,
    reads: AtomicU64,
    hedges: AtomicU64,
    delay_us: AtomicU64,
}

impl Hedge {
    /// How long to wait for the first request, or `None` while too little is known.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.delay_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us).max(LEAST_DELAY)),
        }
    }

    /// Takes one hedge out of the budget.
    pub(crate) fn take(&self) -> bool {
        let allowed = self.reads.load(Ordering::Relaxed) / READS_PER_HEDGE;
        self.hedges.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |h| (h < allowed).then_some(h + 1)).is_ok()
    }

    /// A read took this long.
    pub(crate) fn record(&self, took: Duration) {
        let n = self.reads.fetch_add(1, Ordering::Relaxed);
        let mut recent = self.recent.lock();
        let us = (took.as_micros() as u64).max(1);
        if recent.len() < WINDOW {
            recent.push(us);
        } else {
            recent[n as usize % WINDOW] = us;
        }
        if recent.len() >= WARM && n.is_multiple_of(RENEW) {
            let mut sorted = recent.clone();
            sorted.sort_unstable();
            self.delay_us.store(sorted[sorted.len() * 95 / 100], Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_the_95th_percentile_and_the_budget_5_percent() {
        let hedge = Hedge::default();
        assert!(!hedge.take());
        for n in 0..31 {
            hedge.record(Duration::from_millis(n));
            assert_eq!(hedge.delay(), None);
        }
        for n in 0..200u64 {
            hedge.record(Duration::from_millis(n % 100));
        }
        let delay = hedge.delay().unwrap();
        assert!((Duration::from_millis(85)..Duration::from_millis(100)).contains(&delay), "{delay:?}");
        assert_eq!((0..100).filter(|_| hedge.take()).count(), 231 / 20);
    }
}

//! Speed of what is forwarded: bandwidth, latency, and the odd refusal of a busy store.

use std::time::Duration;

use hiloop_env::Env;
use hyper::Method;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// How slow the store behind the proxy looks. All but `none` have 125 MB/s in all and 60 MB/s for one connection, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Profile {
    /// As fast as it goes.
    #[default]
    None,
    /// 20 ms for each request, 40 ms for PUT and POST.
    Steady,
    /// The same in the median; 200 ms and 900 ms in the 99th percentile; 1 % of the requests are answered 503.
    Jitter,
    /// Bandwidth only.
    Undelayed,
}

/// Bytes per second in all, each way.
const TOTAL: u64 = 125_000_000;
/// Bytes per second of one connection, each way.
const STREAM: u64 = 60_000_000;
/// How much unused time a bucket saves up: timers wake to the millisecond.
const SAVED: Duration = Duration::from_millis(4);
/// 99th percentile of the standard normal distribution.
const P99: f64 = 2.326_347_874;

impl Profile {
    /// Median and 99th percentile of the answer's delay.
    fn latency(self, method: &Method) -> Option<(Duration, Duration)> {
        let writes = method == Method::PUT || method == Method::POST;
        let ms = |n| Duration::from_millis(n);
        match (self, writes) {
            (Self::None | Self::Undelayed, _) => None,
            (Self::Steady, false) => Some((ms(20), ms(20))),
            (Self::Steady, true) => Some((ms(40), ms(40))),
            (Self::Jitter, false) => Some((ms(20), ms(200))),
            (Self::Jitter, true) => Some((ms(40), ms(900))),
        }
    }
    /// How long to hold back one answer.
    pub(crate) fn delay(self, method: &Method, chance: &Chance) -> Duration {
        match self.latency(method) {
            None => Duration::ZERO,
            Some((median, p99)) if median == p99 => median,
            // Log-normal, as latencies of stores are: no answer is quicker than nothing, and the tail is long.
            Some((median, p99)) => median.mul_f64((p99.as_secs_f64() / median.as_secs_f64()).powf(chance.normal() / P99)),
        }
    }
    /// Chance of a 503.
    pub(crate) fn refusals(self) -> f64 {
        if self == Self::Jitter { 0.01 } else { 0.0 }
    }
    pub(crate) fn limits_bandwidth(self) -> bool {
        self != Self::None
    }
}

/// The seeded generator.
pub(crate) struct Chance(Env);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Env::simulated(seed).0)
    }
    /// Evenly in (0, 1].
    fn unit(&self) -> f64 {
        ((self.0.random_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
    pub(crate) fn happens(&self, probability: f64) -> bool {
        // What is certain or impossible takes no draw from the others.
        probability >= 1.0 || (probability > 0.0 && self.unit() <= probability)
    }
    /// Standard normal (Box-Muller).
    fn normal(&self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A token bucket, kept as the time from which it is free.
#[derive(Default)]
struct Bucket(Mutex<Duration>);

impl Bucket {
    /// Takes `bytes` at `now`; how long until they are through.
    fn take(&self, now: Duration, bytes: u64, rate: u64) -> Duration {
        let mut free = self.0.lock();
        *free = (*free).max(now.saturating_sub(SAVED)) + Duration::from_nanos(bytes * 1_000_000_000 / rate);
        free.saturating_sub(now)
    }
}

/// One direction of all connections.
#[derive(Default)]
pub(crate) struct Trunk(Bucket);

/// One direction of one connection.
#[derive(Default)]
pub(crate) struct Lane(Bucket);

impl Lane {
    /// How long `bytes` take through this lane and the trunk that it shares.
    pub(crate) fn take(&self, trunk: &Trunk, now: Duration, bytes: u64) -> Duration {
        self.0.take(now, bytes, STREAM).max(trunk.0.take(now, bytes, TOTAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_shared_and_a_connection_has_less() {
        let (trunk, lanes) = (Trunk::default(), [Lane::default(), Lane::default(), Lane::default()]);
        let start = Duration::from_secs(10);
        // One connection alone: 60 MB take a second, but for what was saved up.
        assert_eq!(lanes[0].take(&trunk, start, 60_000_000), Duration::from_secs(1) - SAVED);
        // Two more beside it: 180 MB in all take 1.44 s on the trunk.
        assert_eq!(lanes[1].take(&trunk, start, 60_000_000), Duration::from_secs(1) - SAVED);
        assert_eq!(lanes[2].take(&trunk, start, 60_000_000), Duration::from_millis(1440) - SAVED);
    }

    #[test]
    fn a_rest_saves_up_no_more_than_a_moment() {
        let (trunk, lane) = (Trunk::default(), Lane::default());
        lane.take(&trunk, Duration::ZERO, 1000);
        assert_eq!(lane.take(&trunk, Duration::from_secs(100), 6_000_000), Duration::from_millis(100) - SAVED);
        assert_eq!(lane.take(&trunk, Duration::from_secs(200), 60_000), Duration::ZERO);
    }

    #[test]
    fn delays_have_the_median_and_percentile_of_the_profile() {
        let chance = Chance::new(3);
        assert_eq!(Profile::Steady.delay(&Method::GET, &chance), Duration::from_millis(20));
        assert_eq!(Profile::Steady.delay(&Method::PUT, &chance), Duration::from_millis(40));
        assert_eq!(Profile::Undelayed.delay(&Method::PUT, &chance), Duration::ZERO);
        for (method, median, p99) in [(Method::GET, 20.0, 200.0), (Method::PUT, 40.0, 900.0)] {
            let mut ms: Vec<f64> = (0..20_000).map(|_| Profile::Jitter.delay(&method, &chance).as_secs_f64() * 1e3).collect();
            ms.sort_by(f64::total_cmp);
            let near = |at: usize, want: f64| assert!((ms[at] / want - 1.0).abs() < 0.15, "{method}: {} for {want}", ms[at]);
            near(10_000, median);
            near(19_800, p99);
        }
        let refused = (0..20_000).filter(|_| chance.happens(Profile::Jitter.refusals())).count();
        assert!((120..280).contains(&refused), "{refused} of 20,000");
        assert!(!(0..1000).any(|_| chance.happens(Profile::Steady.refusals())));
    }
}

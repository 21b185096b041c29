//! Statistics for a noisy machine: ratios within a round, their median, and how far it can be trusted.

use hiloop_env::Env;
use serde::{Deserialize, Serialize};

use crate::figure::Verdict;
use crate::sample::Spread;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;
/// Part of the resamples that lies within the interval.
const WITHIN: f64 = 0.9;
/// A ratio below counts as this in a mean: one step that the page cache answers must not pay for three that are slow.
pub const LEAST: f64 = 0.7;
/// Where two runs of the same thing on the same disk differ by more, the machine was not steady enough to say anything.
pub const STEADY: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// A median and where it may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The middle of the samples.
    pub median: f64,
    /// 5th percentile of the bootstrap.
    pub low: f64,
    /// 95th percentile.
    pub high: f64,
    /// Samples.
    pub count: usize,
}

impl Estimate {
    /// Of samples; none of none.
    pub fn of(samples: &[f64], seed: u64) -> Option<Self> {
        Self::bootstrap(&[samples], seed, |medians| medians[0])
    }

    /// Geometric mean of the medians of several sets of ratios, each at least [`LEAST`].
    pub fn mean_of(sets: &[&[f64]], seed: u64) -> Option<Self> {
        Self::bootstrap(sets, seed, |medians| {
            let logarithms = medians.iter().map(|m| m.max(LEAST).ln()).sum::<f64>();
            (logarithms / medians.len() as f64).exp()
        })
    }

    fn bootstrap(sets: &[&[f64]], seed: u64, of: impl Fn(&[f64]) -> f64) -> Option<Self> {
        if sets.is_empty() || sets.iter().any(|s| s.is_empty()) {
            return None;
        }
        let (random, _) = Env::simulated(seed);
        let medians = |draw: &mut dyn FnMut(&[f64]) -> Vec<f64>| sets.iter().map(|s| Spread::of(&draw(s)).median).collect::<Vec<_>>();
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut draw = |s: &[f64]| s.iter().map(|_| s[(random.random_u64() % s.len() as u64) as usize]).collect();
                of(&medians(&mut draw))
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let at = |part: f64| resampled[((RESAMPLES - 1) as f64 * part).round() as usize];
        let (low, high) = (at((1.0 - WITHIN) / 2.0), at((1.0 + WITHIN) / 2.0));
        let count = sets.iter().map(|s| s.len()).min().unwrap_or(0);
        Some(Self { median: of(&medians(&mut |s| s.to_vec())), low, high, count })
    }

    /// Whether the truth is at most `target`: decided only where the whole interval lies on one side.
    pub fn at_most(&self, target: f64) -> Verdict {
        if self.high <= target {
            Verdict::Met
        } else if self.low > target {
            Verdict::Missed
        } else {
            Verdict::Undecided
        }
    }

    /// Whether the truth is at least `target`.
    pub fn at_least(&self, target: f64) -> Verdict {
        if self.low >= target {
            Verdict::Met
        } else if self.high < target {
            Verdict::Missed
        } else {
            Verdict::Undecided
        }
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} [{:.2}..{:.2}]", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_median_and_is_the_same_each_time() {
        let samples = [1.0, 1.1, 0.9, 1.3, 1.05, 0.95, 4.0];
        let e = Estimate::of(&samples, 7).unwrap();
        assert_eq!(e.median, 1.05);
        assert!(e.low <= e.median && e.median <= e.high, "{e}");
        assert!(e.low >= 0.9 && e.high <= 4.0);
        assert_eq!(e, Estimate::of(&samples, 7).unwrap());
        assert_eq!(Estimate::of(&[], 7), None);
        let alike = Estimate::of(&[2.0; 7], 7).unwrap();
        assert_eq!((alike.low, alike.median, alike.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let e = Estimate { median: 1.2, low: 1.1, high: 1.4, count: 7 };
        assert_eq!((e.at_most(1.4), e.at_most(1.3), e.at_most(1.0)), (Verdict::Met, Verdict::Undecided, Verdict::Missed));
        assert_eq!((e.at_least(1.1), e.at_least(1.3), e.at_least(1.5)), (Verdict::Met, Verdict::Undecided, Verdict::Missed));
    }

    #[test]
    fn a_mean_takes_very_small_ratios_for_the_least() {
        let mean = Estimate::mean_of(&[&[0.01], &[1.0]], 1).unwrap();
        assert!((mean.median - LEAST.sqrt()).abs() < 1e-9);
        assert_eq!(Estimate::mean_of(&[&[1.0], &[]], 1), None);
    }
}

//! Repeated measurements: median and spread.

use serde::Serialize;

/// What repeated measurements come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle; 0 of none.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of these measurements.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n == 0 {
            return Self { median: 0.0, min: 0.0, max: 0.0 };
        }
        Self { median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0, min: sorted[0], max: sorted[n - 1] }
    }
    /// Ratios of measurements taken in the same rounds.
    pub fn of_ratios(over: &[f64], under: &[f64]) -> Self {
        Self::of(&over.iter().zip(under).map(|(a, b)| a / b.max(f64::MIN_POSITIVE)).collect::<Vec<_>>())
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} [{:.2}..{:.2}]", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_even_and_none() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(&[]).median, 0.0);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let r = Spread::of_ratios(&[2.0, 9.0, 4.0], &[1.0, 3.0, 4.0]);
        assert_eq!((r.median, r.min, r.max), (2.0, 1.0, 3.0));
    }
}

//! The values of all metrics at one moment.

use super::names::Metric;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Of what.
    pub metric: &'static Metric,
    /// The label that tells it from others of the metric.
    pub label: Option<(&'static str, &'static str)>,
    /// The value.
    pub value: f64,
}

/// Values, those of one metric side by side.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Sample>);

impl Samples {
    /// Adds a metric without labels.
    pub fn add(&mut self, metric: &'static Metric, value: f64) {
        self.0.push(Sample { metric, label: None, value });
    }
    /// Adds one value of a metric with a label.
    pub fn add_with(&mut self, metric: &'static Metric, key: &'static str, label: &'static str, value: f64) {
        self.0.push(Sample { metric, label: Some((key, label)), value });
    }
    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }
    /// The values of one metric.
    pub fn of(&self, metric: &'static Metric) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |s| s.metric == metric)
    }
}

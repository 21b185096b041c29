//! Metrics as Prometheus text (OpenMetrics 1.0).

use hiloop_types::{Error, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::names::{ALL, Kind};
use super::samples::Samples;

#[derive(Debug)]
struct Now(Samples);

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        for metric in ALL {
            let mut values = self.0.of(metric).peekable();
            if values.peek().is_none() {
                continue;
            }
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let help = metric.help.trim_end_matches('.');
            let mut family = encoder.encode_descriptor(metric.name, help, None, kind)?;
            for sample in values {
                let labels: Vec<(&str, &str)> = sample.label.into_iter().collect();
                let mut one = family.encode_family(&labels)?;
                match metric.kind {
                    Kind::Counter => one.encode_counter::<NoLabelSet, f64, f64>(&sample.value, None)?,
                    Kind::Gauge => one.encode_gauge(&sample.value)?,
                }
            }
        }
        Ok(())
    }
}

/// The text of all metrics.
///
/// # Errors
/// Never in practice: writing to a string does not fail.
pub fn render(samples: Samples) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Now(samples)));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|e| Error::internal(format!("the metrics cannot be written: {e}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::names;

    #[test]
    fn the_text_names_each_metric_once() {
        let mut s = Samples::default();
        s.add(names::MOUNTS, 2.0);
        s.add_with(names::FUSE_REQUESTS, "opcode", "lookup", 3.0);
        s.add_with(names::FUSE_REQUESTS, "opcode", "read", 4.0);
        let text = render(s).unwrap();
        assert!(text.contains("hiloop_workspace_mounts 2"), "{text}");
        assert!(text.contains("hiloop_fuse_requests_total{opcode=\"lookup\"} 3"), "{text}");
        assert!(text.contains("hiloop_fuse_requests_total{opcode=\"read\"} 4"), "{text}");
        assert_eq!(text.matches("# TYPE hiloop_fuse_requests").count(), 1, "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}

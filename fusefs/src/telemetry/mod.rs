//! Logs, traces and metrics of the program.
//!
//! Logs go to standard error as text or JSON. With an OTLP endpoint (off by default) spans and metrics go there over gRPC; metrics are
//! also given as Prometheus text on request. [`names`] holds all metric names.

pub mod names;
pub mod prometheus;
pub mod samples;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiloop_types::{Error, Result, ResultExt};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use names::{ALL, Kind};
use samples::Samples;

/// Name of the service and of its instruments.
const SERVICE: &str = "sandbox-workspace";
/// Pace of metrics to the endpoint.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// Time for the last spans and metrics to leave.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// What is logged and exported.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Filter as tracing's directives have it: `info`, `hiloop_engine=debug,warn`.
    pub filter: String,
    /// Look of log lines.
    pub format: LogFormat,
    /// OTLP endpoint (gRPC), `http://host:4317` or `https://host:4317`.
    pub endpoint: Option<String>,
    /// Certificates of a private authority that the endpoint may have, beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Resource attributes beside the service's.
    pub attributes: Vec<(&'static str, String)>,
}

/// Ends the export; keep it until the end of the program.
#[derive(Default)]
pub struct Exporting {
    tracer: Option<SdkTracerProvider>,
    meter: Option<SdkMeterProvider>,
}

impl Exporting {
    /// Takes the metrics that go to the endpoint.
    pub fn metrics(&self) -> Option<OtlpMetrics> {
        self.meter.clone().map(OtlpMetrics)
    }

    /// Sends what is left, for at most a few seconds. Not on a runtime thread.
    pub fn finish(self) {
        if let Some(t) = self.tracer
            && let Err(e) = t.shutdown_with_timeout(LAST_EXPORT)
        {
            tracing::debug!(error = %e, "the last spans were not exported");
        }
        if let Some(m) = self.meter
            && let Err(e) = m.shutdown_with_timeout(LAST_EXPORT)
        {
            tracing::debug!(error = %e, "the last metrics were not exported");
        }
    }
}

/// Where the daemon's metrics go.
pub struct OtlpMetrics(SdkMeterProvider);

impl OtlpMetrics {
    /// Exports what `samples` says, each time metrics are sent.
    pub fn observe(self, samples: impl Fn() -> Samples + Send + Sync + 'static) {
        let meter = self.0.meter(SERVICE);
        let samples = std::sync::Arc::new(samples);
        for metric in ALL {
            let samples = samples.clone();
            let observe = move |report: &dyn Fn(f64, &[KeyValue])| {
                for s in samples().of(metric) {
                    let labels: Vec<KeyValue> = s.label.iter().map(|(k, v)| KeyValue::new(*k, *v)).collect();
                    report(s.value, &labels);
                }
            };
            // The instruments live in the provider.
            match metric.kind {
                Kind::Counter => drop(
                    meter
                        .f64_observable_counter(metric.name)
                        .with_unit(metric.unit)
                        .with_description(metric.help)
                        .with_callback(move |o| observe(&|v, l| o.observe(v, l)))
                        .build(),
                ),
                Kind::Gauge => drop(
                    meter
                        .f64_observable_gauge(metric.name)
                        .with_unit(metric.unit)
                        .with_description(metric.help)
                        .with_callback(move |o| observe(&|v, l| o.observe(v, l)))
                        .build(),
                ),
            }
        }
    }
}

/// Starts logging, and exporting where an endpoint is set. On a runtime.
///
/// # Errors
/// `Invalid` for a filter or endpoint that cannot be used.
pub fn start(telemetry: &Telemetry) -> Result<Exporting> {
    let filter = EnvFilter::builder().parse(&telemetry.filter).map_err(|e| {
        Error::invalid(format!("the log filter {:?} cannot be read: {e}", telemetry.filter))
            .hint("write a level, or target=level: info, hiloop_engine=debug")
    })?;
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match telemetry.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_filter(filter).boxed()
        }
        LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).with_filter(filter).boxed(),
    };
    let exporting = match &telemetry.endpoint {
        Some(endpoint) => export(endpoint, telemetry.ca_file.as_deref(), &telemetry.attributes)?,
        None => Exporting::default(),
    };
    let spans = exporting.tracer.as_ref().map(|t| {
        // What the exporter itself says would be exported in turn.
        let ours = EnvFilter::new("off,hiloop_fusefs=info,hiloop_engine=info");
        tracing_opentelemetry::layer().with_tracer(t.tracer(SERVICE)).with_filter(ours)
    });
    tracing_subscriber::registry()
        .with(lines)
        .with(spans)
        .try_init()
        .map_err(|e| Error::internal(format!("logging was started twice: {e}")))?;
    Ok(exporting)
}

fn export(endpoint: &str, ca_file: Option<&Path>, attributes: &[(&'static str, String)]) -> Result<Exporting> {
    let tls = if is_tls(endpoint)? { Some(tls(ca_file)?) } else { None };
    let bad = |e: &dyn std::fmt::Display| Error::invalid(format!("the OTLP endpoint cannot be used: {e}")).at(endpoint);
    let resource = Resource::builder()
        .with_service_name(SERVICE)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(attributes.iter().map(|(k, v)| KeyValue::new(*k, v.clone())))
        .build();
    let mut spans = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let mut metrics = opentelemetry_otlp::MetricExporter::builder().with_tonic().with_endpoint(endpoint);
    if let Some(tls) = tls {
        spans = spans.with_tls_config(tls.clone());
        metrics = metrics.with_tls_config(tls);
    }
    let (spans, metrics) = (spans.build().map_err(|e| bad(&e))?, metrics.build().map_err(|e| bad(&e))?);
    let tracer = SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build();
    let reader = PeriodicReader::builder(metrics).with_interval(METRICS_EVERY).build();
    let meter = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
    Ok(Exporting { tracer: Some(tracer), meter: Some(meter) })
}

/// Whom an endpoint over TLS may be: the authorities of the system, and those of `ca_file`.
fn tls(ca_file: Option<&Path>) -> Result<ClientTlsConfig> {
    let tls = ClientTlsConfig::new().with_native_roots();
    match ca_file {
        None => Ok(tls),
        Some(file) => Ok(tls.ca_certificate(Certificate::from_pem(std::fs::read(file).at(file.display())?))),
    }
}

/// Whether the endpoint is to be spoken to over TLS.
fn is_tls(endpoint: &str) -> Result<bool> {
    let form = "write http://HOST:PORT or https://HOST:PORT, usually port 4317";
    let url = url::Url::parse(endpoint).map_err(|e| Error::invalid(format!("the OTLP endpoint is no URL: {e}")).hint(form))?;
    match url.scheme() {
        "http" if url.has_host() => Ok(false),
        "https" if url.has_host() => Ok(true),
        other => Err(Error::invalid(format!("an OTLP endpoint cannot be of scheme {other:?}")).at(endpoint).hint(form)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_says_whether_it_is_spoken_to_over_tls() {
        assert!(!is_tls("http://127.0.0.1:4317").unwrap() && is_tls("https://collector:4317").unwrap());
        for (bad, word) in [("localhost:4317", "scheme"), ("::", "URL"), ("unix:/run/x", "scheme")] {
            assert!(is_tls(bad).unwrap_err().to_string().contains(word), "{bad}");
        }
    }
}

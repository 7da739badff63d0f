//! Where spans go and how, as the command line, the standard variables and the defaults say.

use std::{env, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::{
    Resource, resource::EnvResourceDetector, resource::TelemetryResourceDetector,
    trace::SpanExporter as _,
};

use super::collector_tls::{CollectorTls, SendFailure};
use troupe_options::{OpenTelemetry, OtlpProtocol};

/// Where a collector listens unless it is said.
const HTTP_DEFAULT: &str = "http://localhost:4318/v1/traces";
const GRPC_DEFAULT: &str = "http://localhost:4317";
/// Variables of the standard that would change what is traced; `--trace-config` does that here.
const WITHOUT_EFFECT: &[&str] = &[
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_PROPAGATORS",
];

/// Everything the exporter has to know, with nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Collector {
    /// As it is asked: over HTTP with the path.
    pub(super) endpoint: String,
    pub(super) protocol: OtlpProtocol,
    /// Spans that wait at most.
    pub(super) queue: usize,
    /// Time between two exports.
    pub(super) delay: Duration,
    /// Spans in one export at most.
    pub(super) batch: usize,
    /// How long an export may take.
    pub(super) timeout: Duration,
    resource: Vec<(String, String)>,
    /// How long one request may take.
    request_timeout: Duration,
    tls: CollectorTls,
}

impl Collector {
    /// What `flags` leave open the environment decides.
    pub(super) fn new(flags: &OpenTelemetry) -> Result<Collector, String> {
        for name in WITHOUT_EFFECT.iter().filter(|it| env::var_os(it).is_some()) {
            tracing::warn!("{name} has no effect here: --trace-config says what is traced");
        }
        Collector::with(flags, &|name| env::var(name).ok().filter(|it| !it.trim().is_empty()))
    }

    /// As `new`, of an environment that is given.
    pub(super) fn with(
        flags: &OpenTelemetry,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Collector, String> {
        let first = |names: &[&str]| names.iter().find_map(|it| variable(it));
        let protocol = match flags.protocol {
            Some(protocol) => protocol,
            None => first(&["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"])
                .map_or(Ok(OtlpProtocol::Http), |it| OtlpProtocol::parse(it.trim()))?,
        };
        let number = |flag: Option<u32>, name: &str, default: u32| {
            let said = flag.map(Ok).or_else(|| {
                let wrong = |it: String| format!("{name}: expected a number, got `{it}`");
                variable(name).map(|it| it.trim().parse().map_err(|_| wrong(it)))
            });
            said.unwrap_or(Ok(default))
        };
        let queue = number(flags.max_queue_size, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)?.max(1);
        let delay = number(flags.schedule_delay, "OTEL_BSP_SCHEDULE_DELAY", 5000)?;
        let batch = flags.max_export_batch_size;
        let batch = number(batch, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?.clamp(1, queue);
        let timeout = number(None, "OTEL_BSP_EXPORT_TIMEOUT", 30_000)?;
        let of_traces = number(None, "OTEL_EXPORTER_OTLP_TIMEOUT", 10_000)?;
        let request_timeout = number(None, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", of_traces)?;
        let mut resource = vec![("service.name".to_owned(), "triton-inference-server".to_owned())];
        resource.extend(variable("OTEL_SERVICE_NAME").map(|it| ("service.name".to_owned(), it)));
        resource.extend(flags.resource.iter().cloned());
        Ok(Collector {
            endpoint: endpoint(flags.url.as_deref(), protocol, variable)?,
            protocol,
            queue: queue as usize,
            delay: Duration::from_millis(delay.into()),
            batch: batch as usize,
            timeout: Duration::from_millis(timeout.into()),
            resource,
            request_timeout: Duration::from_millis(request_timeout.into()),
            tls: CollectorTls::new(variable),
        })
    }

    /// What the settings show of it, in Triton's names.
    pub(super) fn shown(&self) -> Vec<(&'static str, String)> {
        let resource: Vec<String> =
            self.resource.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            ("bsp_max_export_batch_size", self.batch.to_string()),
            ("bsp_max_queue_size", self.queue.to_string()),
            ("bsp_schedule_delay", self.delay.as_millis().to_string()),
            ("resource", resource.join(",")),
            ("url", self.endpoint.clone()),
        ]
    }

    /// Must be called, and its exports awaited, within a runtime that lives on. Headers, timeouts
    /// and compression are those of the standard variables. `failure` keeps why requests fail, over
    /// HTTP with TLS.
    pub(super) fn exporter(&self, failure: &SendFailure) -> Result<SpanExporter, String> {
        let exporter = SpanExporter::builder();
        let is_encrypted = self.endpoint.starts_with("https://");
        let built = match self.protocol {
            OtlpProtocol::Http => {
                let exporter = exporter.with_http().with_protocol(Protocol::HttpBinary);
                let exporter = exporter.with_endpoint(&self.endpoint);
                match is_encrypted {
                    true => {
                        exporter.with_http_client(self.tls.http(self.request_timeout, failure)?)
                    }
                    false => exporter,
                }
                .build()
            }
            OtlpProtocol::Grpc => {
                let exporter = exporter.with_tonic().with_endpoint(&self.endpoint);
                match is_encrypted {
                    true => exporter.with_tls_config(self.tls.grpc()?),
                    false => exporter,
                }
                .build()
            }
        };
        let mut exporter = built.map_err(|error| error.to_string())?;
        exporter.set_resource(&self.resource());
        Ok(exporter)
    }

    fn resource(&self) -> Resource {
        // What comes later counts: our default is no match for the standard's variable.
        let (default, said) = self.resource.split_at(1);
        let pair = |(key, value): &(String, String)| KeyValue::new(key.clone(), value.clone());
        Resource::builder_empty()
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_attributes(default.iter().map(pair))
            .with_detector(Box::new(EnvResourceDetector::new()))
            .with_attributes(said.iter().map(pair))
            .build()
    }
}

fn endpoint(
    url: Option<&str>,
    protocol: OtlpProtocol,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let is_http = protocol == OtlpProtocol::Http;
    let said = url.map(str::to_owned).or_else(|| variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"));
    let of_all = || {
        let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        let base = base.trim_end_matches('/');
        Some(if is_http { format!("{base}/v1/traces") } else { base.to_owned() })
    };
    let default = if is_http { HTTP_DEFAULT } else { GRPC_DEFAULT };
    let endpoint = said.or_else(of_all).unwrap_or_else(|| default.to_owned());
    let endpoint = endpoint.trim();
    match endpoint.split_once("://") {
        None => Ok(format!("http://{endpoint}")),
        Some(("http" | "https", _)) => Ok(endpoint.to_owned()),
        Some(_) => Err(format!(
            "expected the collector's URL to begin with http:// or https://: {endpoint}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: OpenTelemetry, variables: &[(&str, &str)]) -> Result<Collector, String> {
        let find = |name: &str| {
            variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
        };
        Collector::with(&flags, &find)
    }

    #[test]
    fn defaults_are_those_of_triton() {
        let collector = with(OpenTelemetry::default(), &[]).unwrap();
        assert_eq!(collector.endpoint, "http://localhost:4318/v1/traces");
        assert_eq!((collector.queue, collector.batch), (2048, 512));
        assert_eq!(collector.delay, Duration::from_secs(5));
        assert_eq!(
            collector.resource().get(&"service.name".into()),
            Some("triton-inference-server".into())
        );
    }

    #[test]
    fn flags_come_before_variables() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
            ("OTEL_BSP_SCHEDULE_DELAY", "7"),
            ("OTEL_SERVICE_NAME", "of the environment"),
        ];
        let plain = with(OpenTelemetry::default(), &variables).unwrap();
        assert_eq!(plain.endpoint, "http://all:4318/v1/traces");
        assert_eq!((plain.queue, plain.batch, plain.delay.as_millis()), (100, 100, 7));
        let flags = OpenTelemetry {
            url: Some("mine:1/x".to_owned()),
            schedule_delay: Some(9),
            resource: vec![("service.name".to_owned(), "of the flag".to_owned())],
            ..OpenTelemetry::default()
        };
        let said = with(flags, &variables).unwrap();
        assert_eq!((&*said.endpoint, said.delay.as_millis()), ("http://mine:1/x", 9));
        assert_eq!(said.resource().get(&"service.name".into()), Some("of the flag".into()));
    }

    #[test]
    fn grpc_has_no_path() {
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        let of = |more: &[(&str, &str)]| {
            with(OpenTelemetry::default(), &[&[grpc], more].concat()).unwrap().endpoint
        };
        assert_eq!(of(&[]), "http://localhost:4317");
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1")]), "http://all:1");
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1")]), "http://t:1");
    }

    #[test]
    fn files_of_tls_are_named_when_they_are_missing_or_wrong() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:4318");
        for protocol in ["grpc", "http/protobuf"] {
            let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
            for (name, value, expected) in [
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere", "CERTIFICATE=/nowhere: No such"),
                ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/dev/null", "no certificate in PEM"),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/nowhere", "CLIENT_KEY is given alone"),
            ] {
                let variables = [(name, value), endpoint, protocol];
                let collector = with(OpenTelemetry::default(), &variables).unwrap();
                let error = collector.exporter(&SendFailure::default()).unwrap_err();
                assert!(error.contains(expected), "{error}");
            }
        }
    }

    #[test]
    fn what_cannot_be_reached_is_said_at_start() {
        for (name, value, expected) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "unix:///x", "expected the collector's URL"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "expected the protocol"),
            ("OTEL_BSP_SCHEDULE_DELAY", "soon", "expected a number, got `soon`"),
        ] {
            let error = with(OpenTelemetry::default(), &[(name, value)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}

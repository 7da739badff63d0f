//! `--trace-config` and the flags before it: what is traced, how often, and where it goes.

use clap::Args;

/// What is traced, how often, and where it goes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Tracing")]
pub struct Trace {
    /// `level=TIMESTAMPS`, `TENSORS` or `OFF`; `rate=N` for one request in N; `count=N` for N
    /// requests in all; `mode=triton` with `triton,file=PATH` and `triton,log-frequency=N`; or
    /// `mode=opentelemetry` with `opentelemetry,url=URL`, `opentelemetry,protocol=http/protobuf` or
    /// `grpc`, `opentelemetry,resource=KEY=VALUE`, and `opentelemetry,` followed by
    /// `bsp_max_queue_size`, `bsp_schedule_delay` or `bsp_max_export_batch_size`. May be given more
    /// than once
    #[arg(long, value_name = "SETTING", value_parser = setting)]
    pub trace_config: Vec<(String, String)>,
    /// Deprecated: `--trace-config triton,file=`
    #[arg(long, hide = true)]
    pub trace_file: Option<String>,
    /// Deprecated: `--trace-config level=`
    #[arg(long, hide = true)]
    pub trace_level: Vec<String>,
    /// Deprecated: `--trace-config rate=`
    #[arg(long, hide = true)]
    pub trace_rate: Option<String>,
    /// Deprecated: `--trace-config count=`
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub trace_count: Option<String>,
    /// Deprecated: `--trace-config triton,log-frequency=`
    #[arg(long, hide = true)]
    pub trace_log_frequency: Option<String>,
}

/// Where traces go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// To a JSON file with Triton's schema.
    #[default]
    Triton,
    /// To a collector.
    OpenTelemetry,
}

/// What is noted of a traced request; nothing: none is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevels {
    /// When what happened.
    pub timestamps: bool,
    /// Inputs and outputs.
    pub tensors: bool,
}

/// How spans travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf in HTTP requests.
    Http,
    /// gRPC.
    Grpc,
}

/// What the command line says of tracing.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceConfig {
    /// Where traces go.
    pub mode: TraceMode,
    /// What is noted.
    pub levels: TraceLevels,
    /// One request in so many is traced; 0: only those whose clients trace them.
    pub rate: u32,
    /// So many more requests are traced; -1: no limit.
    pub count: i32,
    /// So many traces share a file; 0: all of them.
    pub log_frequency: u32,
    /// Where they are written; empty if that was not said.
    pub file: String,
    /// The part of OpenTelemetry.
    pub open_telemetry: OpenTelemetry,
}

/// What `--trace-config opentelemetry,…` says; `None` where the environment or a default decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenTelemetry {
    /// Where the collector listens.
    pub url: Option<String>,
    /// How spans travel.
    pub protocol: Option<OtlpProtocol>,
    /// Attributes of this server.
    pub resource: Vec<(String, String)>,
    /// Spans that wait at most; those beyond are dropped.
    pub max_queue_size: Option<u32>,
    /// Milliseconds between two exports.
    pub schedule_delay: Option<u32>,
    /// Spans in one export at most.
    pub max_export_batch_size: Option<u32>,
}

/// What `--trace-config` knows.
const SETTINGS: [&str; 12] = [
    "level",
    "rate",
    "count",
    "mode",
    "triton,file",
    "triton,log-frequency",
    "opentelemetry,url",
    "opentelemetry,protocol",
    "opentelemetry,resource",
    "opentelemetry,bsp_max_queue_size",
    "opentelemetry,bsp_schedule_delay",
    "opentelemetry,bsp_max_export_batch_size",
];

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig {
            mode: TraceMode::Triton,
            levels: TraceLevels::default(),
            rate: 1000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            open_telemetry: OpenTelemetry::default(),
        }
    }
}

impl TraceLevels {
    /// Is nothing traced?
    pub fn is_off(self) -> bool {
        self == TraceLevels::default()
    }

    /// Levels by name; an error names the one that is none. `OFF` stands alone.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<TraceLevels, String> {
        let mut levels = TraceLevels::default();
        let mut is_off = false;
        for name in names {
            match name {
                "OFF" => is_off = true,
                // Triton's old names for it.
                "TIMESTAMPS" | "MIN" | "MAX" => levels.timestamps = true,
                "TENSORS" => levels.tensors = true,
                _ => {
                    return Err(format!(
                        "unknown trace level '{name}', expected OFF, TIMESTAMPS or TENSORS"
                    ));
                }
            }
        }
        if is_off && !levels.is_off() {
            return Err("Expect only one trace level 'OFF' is specified".to_owned());
        }
        Ok(levels)
    }

    /// And back.
    pub fn names(self) -> Vec<&'static str> {
        if self.is_off() {
            return vec!["OFF"];
        }
        let both = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        both.into_iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name).collect()
    }
}

impl OtlpProtocol {
    /// By its name in `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub fn parse(name: &str) -> Result<OtlpProtocol, String> {
        match name {
            "http/protobuf" => Ok(OtlpProtocol::Http),
            "grpc" => Ok(OtlpProtocol::Grpc),
            _ => Err(format!("expected the protocol `http/protobuf` or `grpc`, got `{name}`")),
        }
    }
}

impl Trace {
    /// All flags together.
    pub fn parsed(&self) -> Result<TraceConfig, String> {
        let old = [
            ("triton,file", &self.trace_file),
            ("rate", &self.trace_rate),
            ("count", &self.trace_count),
            ("triton,log-frequency", &self.trace_log_frequency),
        ];
        let old = old.into_iter().filter_map(|(name, it)| Some((name, it.as_deref()?)));
        let new = self.trace_config.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut config = TraceConfig::default();
        let mut levels: Vec<&str> = self.trace_level.iter().map(String::as_str).collect();
        for (name, value) in old.chain(new) {
            if name == "level" {
                levels.push(value);
                continue;
            }
            let wrong = |text: String| format!("--trace-config {name}={value}: {text}");
            config.set(name, value).map_err(wrong)?;
        }
        config.levels =
            TraceLevels::parse(levels).map_err(|text| format!("--trace-config level: {text}"))?;
        let needs_file = config.mode == TraceMode::Triton && config.file.is_empty();
        if needs_file && !config.levels.is_off() {
            return Err("--trace-config level: trace file name is not given: say \
                        --trace-config triton,file=PATH, or --trace-config mode=opentelemetry"
                .to_owned());
        }
        Ok(config)
    }
}

impl TraceConfig {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let more = &mut self.open_telemetry;
        match name {
            "mode" => {
                self.mode = match value {
                    "triton" => TraceMode::Triton,
                    "opentelemetry" => TraceMode::OpenTelemetry,
                    _ => return Err("expected `triton` or `opentelemetry`".to_owned()),
                }
            }
            "rate" => self.rate = number(value)?,
            "count" => {
                let wrong = || "expected a number from -1 on".to_owned();
                self.count = value.parse().ok().filter(|it| -1 <= *it).ok_or_else(wrong)?;
            }
            "triton,file" => self.file = value.to_owned(),
            "triton,log-frequency" => self.log_frequency = number(value)?,
            "opentelemetry,url" => more.url = Some(value.to_owned()),
            "opentelemetry,protocol" => more.protocol = Some(OtlpProtocol::parse(value)?),
            "opentelemetry,resource" => {
                let (key, value) = value.split_once('=').ok_or("expected KEY=VALUE")?;
                more.resource.push((key.to_owned(), value.to_owned()));
            }
            "opentelemetry,bsp_max_queue_size" => more.max_queue_size = Some(positive(value)?),
            "opentelemetry,bsp_schedule_delay" => more.schedule_delay = Some(number(value)?),
            "opentelemetry,bsp_max_export_batch_size" => {
                more.max_export_batch_size = Some(positive(value)?);
            }
            _ => return Err(format!("there is no such setting; there are {}", SETTINGS.join(" "))),
        }
        Ok(())
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a number from 0 to {}", u32::MAX))
}

fn positive(text: &str) -> Result<u32, String> {
    number(text)?.checked_sub(1).map(|it| it + 1).ok_or_else(|| "expected more than 0".to_owned())
}

fn setting(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("expected `<setting>=<value>` or `<mode>,<setting>=<value>`: `{text}`");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(settings: &[&str]) -> Result<TraceConfig, String> {
        let trace_config = settings.iter().map(|it| setting(it)).collect::<Result<_, _>>()?;
        Trace { trace_config, ..Trace::default() }.parsed()
    }

    #[test]
    fn settings_are_those_of_triton() {
        let config = parsed(&[
            "mode=opentelemetry",
            "level=TIMESTAMPS",
            "level=TENSORS",
            "rate=7",
            "count=100",
            "opentelemetry,url=http://other:4318/v1/traces",
            "opentelemetry,resource=service.name=mine",
            "opentelemetry,bsp_max_queue_size=4096",
        ])
        .unwrap();
        assert_eq!(config.levels, TraceLevels { timestamps: true, tensors: true });
        assert_eq!((config.rate, config.count, config.mode), (7, 100, TraceMode::OpenTelemetry));
        let more = config.open_telemetry;
        assert_eq!(more.resource, [("service.name".to_owned(), "mine".to_owned())]);
        assert_eq!(more.url.as_deref(), Some("http://other:4318/v1/traces"));
        assert_eq!((more.max_queue_size, more.schedule_delay), (Some(4096), None));
        assert_eq!(parsed(&[]), Ok(TraceConfig::default()));
    }

    #[test]
    fn old_flags_say_the_same() {
        let text = |it: &str| Some(it.to_owned());
        let old = Trace {
            trace_file: text("t.json"),
            trace_level: vec!["TIMESTAMPS".to_owned()],
            trace_rate: text("1"),
            trace_count: text("-1"),
            trace_log_frequency: text("50"),
            ..Trace::default()
        };
        let new = ["triton,file=t.json", "level=TIMESTAMPS", "rate=1", "triton,log-frequency=50"];
        assert_eq!(old.parsed(), parsed(&new));
    }

    #[test]
    fn all_settings_that_are_listed_are_there() {
        for setting in SETTINGS {
            let error = parsed(&[&format!("{setting}=?")]).err().unwrap_or_default();
            assert!(!error.contains("there is no such setting"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (settings, expected) in [
            (&["rate"][..], "expected `<setting>=<value>`"),
            (&["rate=-1"], "--trace-config rate=-1: expected a number from 0 to 4294967295"),
            (&["count=-2"], "--trace-config count=-2: expected a number from -1 on"),
            (&["mode=jaeger"], "expected `triton` or `opentelemetry`"),
            (&["level=ALL"], "unknown trace level 'ALL', expected OFF, TIMESTAMPS or TENSORS"),
            (&["level=OFF", "level=TENSORS"], "Expect only one trace level 'OFF' is specified"),
            (&["level=TIMESTAMPS"], "trace file name is not given"),
            (&["opentelemetry,protocol=http/json"], "expected the protocol `http/protobuf` or"),
            (&["opentelemetry,resource=x"], "expected KEY=VALUE"),
            (&["opentelemetry,bsp_max_queue_size=0"], "expected more than 0"),
            (&["opentelemetry,file=x"], "there is no such setting"),
            (&["foo=1"], "there is no such setting; there are level rate count mode triton,file "),
        ] {
            let error = parsed(settings).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}

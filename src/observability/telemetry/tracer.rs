//! Samples requests on arrival, and knows where their traces go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    collector::Collector,
    exporter::Exporter,
    file::{self, FileWriter},
    setting::{SampleCounter, Settings, TraceUpdate, Values},
};
use troupe_base::{
    error::Result,
    trace::{HeaderReader, TraceContext, TraceRecord, TraceSink},
};
use troupe_options::{TraceConfig, TraceMode};

/// The tracer of one server, shared by its listeners.
pub struct Tracer {
    /// Some requests of some models are traced.
    is_on: AtomicBool,
    settings: ArcSwap<Settings>,
    /// One change at a time.
    changing: Mutex<()>,
    to: Destination,
    file: String,
}

/// Where traces go.
enum Destination {
    Nowhere,
    File(Arc<FileWriter>),
    Collector(Arc<Exporter>, Vec<(&'static str, String)>),
}

impl Tracer {
    /// A tracer as the command line says. An error says what of it cannot be done.
    pub fn start(config: &TraceConfig) -> std::result::Result<Tracer, String> {
        let to = match config.mode {
            TraceMode::OpenTelemetry => {
                let collector = Collector::new(&config.open_telemetry)?;
                if config.levels.tensors {
                    tracing::warn!("spans hold no tensors: TENSORS has no effect here");
                }
                let shown = collector.shown();
                Destination::Collector(Exporter::start(collector)?, shown)
            }
            TraceMode::Triton if config.file.is_empty() => Destination::Nowhere,
            TraceMode::Triton => Destination::File(FileWriter::start(config.file.as_str().into())?),
        };
        Ok(Tracer::new(config, to))
    }

    fn new(config: &TraceConfig, to: Destination) -> Tracer {
        let settings = Settings::new(config, &|values, tally| to.sink(values, tally));
        Tracer {
            is_on: AtomicBool::new(settings.is_on()),
            settings: ArcSwap::from_pointee(settings),
            changing: Mutex::new(()),
            to,
            file: config.file.clone(),
        }
    }

    /// Whether it is worth looking at the clock for `sample`.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// A record for a request of `model` that came at `begun`, or just now, if it is to be traced.
    #[inline]
    pub fn sample(
        &self,
        model: &str,
        header: HeaderReader<'_>,
        begun: Option<Instant>,
    ) -> Option<Arc<TraceRecord>> {
        if !self.is_on() {
            return None;
        }
        self.sample_some(model, header, begun)
    }

    fn sample_some(
        &self,
        model: &str,
        header: HeaderReader<'_>,
        begun: Option<Instant>,
    ) -> Option<Arc<TraceRecord>> {
        let settings = self.settings.load();
        let setting = settings.of(model);
        if setting.values.levels.is_off() {
            return None;
        }
        let is_known = matches!(self.to, Destination::Collector(..));
        let is_taken = setting.tally.takes_next(setting.values.rate);
        // A client that traces its request has it traced here too.
        let may_be_wanted = is_taken || is_known && header("traceparent").is_some();
        if !may_be_wanted {
            return None;
        }
        let carried = if is_known { TraceContext::read(header) } else { TraceContext::default() };
        if !is_taken && carried.parent.is_none() {
            return None;
        }
        let begun = begun.unwrap_or_else(Instant::now);
        let mut record = TraceRecord::new(carried, begun, setting.sink.iter().cloned().collect());
        record.is_known = is_known;
        record.has_tensors = setting.values.levels.tensors && !is_known;
        Some(Arc::new(record))
    }

    /// The settings of a model, or of the server, in Triton's names.
    pub fn shown(&self, model: Option<&str>) -> Vec<(&'static str, Vec<String>)> {
        let settings = self.settings.load();
        let now = settings.of(model.unwrap_or_default()).now();
        let levels = now.levels.names().into_iter().map(str::to_owned).collect();
        let mut shown = vec![
            ("trace_level", levels),
            ("trace_rate", vec![now.rate.to_string()]),
            ("trace_count", vec![now.count.to_string()]),
        ];
        let (mode, more) = match &self.to {
            Destination::Collector(_, more) => ("opentelemetry", more.clone()),
            Destination::Nowhere | Destination::File(_) => (
                "triton",
                vec![
                    ("log_frequency", now.log_frequency.to_string()),
                    ("trace_file", self.file.clone()),
                ],
            ),
        };
        shown.push(("trace_mode", vec![mode.to_owned()]));
        shown.extend(more.into_iter().map(|(name, value)| (name, vec![value])));
        shown
    }

    /// Changes the settings of a model, or of the server.
    pub fn update(&self, model: Option<&str>, update: &TraceUpdate) -> Result<()> {
        let _alone = self.changing.lock();
        let make = |values: &Values, tally: &Arc<SampleCounter>| self.to.sink(values, tally);
        let settings = self.settings.load().updated(model, update, &make)?;
        self.is_on.store(settings.is_on(), Relaxed);
        self.settings.store(Arc::new(settings));
        Ok(())
    }

    /// Has everything that waits written or sent.
    pub async fn end(&self) {
        let done = match &self.to {
            Destination::Nowhere => return,
            Destination::File(writer) => writer.end(),
            Destination::Collector(exporter, _) => exporter.end(),
        };
        // An error means that its thread has ended.
        let _ = done.await;
    }
}

impl Default for Tracer {
    /// Traces nothing, and has nowhere to write.
    fn default() -> Tracer {
        Tracer::new(&TraceConfig::default(), Destination::Nowhere)
    }
}

impl Destination {
    fn sink(&self, values: &Values, tally: &Arc<SampleCounter>) -> Option<Arc<dyn TraceSink>> {
        match self {
            Destination::Nowhere => None,
            Destination::File(writer) => {
                let (levels, frequency) = (values.levels, values.log_frequency);
                let series = file::TraceSeries { levels, frequency, tally: tally.clone() };
                Some(Arc::new(writer.sink(series)))
            }
            Destination::Collector(exporter, _) => Some(exporter.clone()),
        }
    }
}

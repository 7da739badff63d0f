//! The log: one line an event, filtered by settings that may change while the server runs.

mod event;
mod line;
mod recent;
mod settings;
mod writer;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::Write,
    sync::Arc,
    time::Duration,
};

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer, filter::filter_fn, layer::Context, layer::SubscriberExt, util::SubscriberInitExt,
};

pub use self::{
    event::FieldValue,
    recent::RecentLine,
    settings::{LogChange, Settings},
};
use self::{
    event::LogRecord, line::Timestamp, recent::RecentLines, settings::Switches, writer::Writer,
};
use troupe_options::{self as options, LogFormat};

/// How long the end of the process waits for the log to be flushed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of this process; clones share it.
#[derive(Clone)]
pub struct Log {
    switches: Arc<Switches>,
    writer: Writer,
    recent: Arc<RecentLines>,
}

/// Starts a log that writes events to `to` on a thread of its own. This is process-wide, as
/// `tracing` is: events go to the log that was started first.
pub fn start(options: &options::LogArguments, to: Box<dyn Write + Send>) -> std::io::Result<Log> {
    let switches = Arc::new(Switches::new(options));
    let for_report = switches.clone();
    let writer = Writer::start(to, move |dropped| {
        let record = LogRecord {
            level: tracing::Level::WARN,
            target: module_path!(),
            place: format!("log.rs:{}", line!()),
            message: format!("{dropped} lines were not logged: they came faster than they go"),
            fields: Vec::new(),
        };
        line::write(&record, &for_report, Timestamp::now())
    })?;
    let recent = Arc::<RecentLines>::default();
    let log = Log { switches: switches.clone(), writer: writer.clone(), recent: recent.clone() };
    let is_wanted = switches.clone();
    let lines = LogLayer { switches, writer, recent };
    let lines = lines.with_filter(filter_fn(move |it| is_wanted.wants(it)));
    // A second start in one process keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    Ok(log)
}

impl Log {
    /// A log that writes nothing, with Triton's default settings.
    pub fn silent() -> Log {
        let (switches, writer) = (Arc::new(Switches::default()), Writer::closed());
        Log { switches, writer, recent: Arc::default() }
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.switches.settings()
    }

    /// Changes the given settings and keeps the others, from the next event on.
    pub fn change(&self, change: &LogChange) -> Settings {
        self.switches.change(change);
        // `tracing` caches for each call site whether its events are wanted.
        tracing::callsite::rebuild_interest_cache();
        self.settings()
    }

    /// The last lines about a model behind the line with the number `after`, 0 for all that are
    /// kept, without those of the access log; and the number to go on behind.
    pub fn about(&self, model: &str, after: u64) -> (Vec<Arc<RecentLine>>, u64) {
        self.recent.about(model, after)
    }

    /// Writes a line of the access log, which the settings of levels do not hide.
    pub fn access(&self, fields: Vec<(&'static str, FieldValue)>) {
        let record = LogRecord {
            level: tracing::Level::INFO,
            target: "troupe::access",
            place: "access".to_owned(),
            message: "inference".to_owned(),
            fields,
        };
        self.writer.push(line::write(&record, &self.switches, Timestamp::now()));
    }

    /// Writes a table as it is, or as the message of an event where lines are JSON; nothing where
    /// information is not logged.
    pub fn table(&self, table: &str) {
        if self.switches.format() == LogFormat::Json {
            tracing::info!("{table}");
        } else if self.settings().info {
            self.writer.push(format!("\n{}\n", table.trim_end()));
        }
    }

    /// A guard that flushes the log when it is dropped; it waits a second at most, for nobody may
    /// read.
    pub fn flush_on_drop(&self) -> FlushOnDrop {
        FlushOnDrop(self.clone())
    }
}

/// Flushes the log when it is dropped, however the process ends.
pub struct FlushOnDrop(Log);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        self.0.writer.flush(FLUSH_TIMEOUT);
    }
}

/// Logs panics as errors from now on: written directly, they would block on the reader of stderr.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => tracing::error!("thread '{name}' {panic}\n{trace}"),
            _ => tracing::error!("thread '{name}' {panic}"),
        }
    }));
}

/// The `tracing` layer that formats events and hands them to the writer.
struct LogLayer {
    switches: Arc<Switches>,
    writer: Writer,
    recent: Arc<RecentLines>,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let record = LogRecord::of(event);
        let line = line::write(&record, &self.switches, Timestamp::now());
        self.recent.push(&record, &line);
        self.writer.push(line);
    }
}

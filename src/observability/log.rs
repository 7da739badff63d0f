//! Log lines: one line an event whatever it says, by switches that may change while the server runs.

mod event;
mod line;
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
    settings::{LogChange, Settings},
};
use self::{event::LogRecord, line::Timestamp, settings::Switches, writer::Writer};
use troupe_options::{self as options, LogFormat};

/// How long the end of the process waits for lines that are not written yet.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// The log of this process; clones share it.
#[derive(Clone)]
pub struct Log {
    switches: Arc<Switches>,
    writer: Writer,
}

/// Writes events to `to` from now on, on a thread of its own. Events go to the log that was started
/// first.
pub fn start(options: &options::LogArguments, to: Box<dyn Write + Send>) -> std::io::Result<Log> {
    let switches = Arc::new(Switches::new(options));
    let told = switches.clone();
    let writer = Writer::start(to, move |dropped| {
        let said = LogRecord {
            level: tracing::Level::WARN,
            target: module_path!(),
            place: format!("log.rs:{}", line!()),
            message: format!("{dropped} lines were not logged: they came faster than they go"),
            fields: Vec::new(),
        };
        line::write(&said, &told, Timestamp::now())
    })?;
    let log = Log { switches: switches.clone(), writer: writer.clone() };
    let is_wanted = switches.clone();
    let lines = Lines { switches, writer };
    let lines = lines.with_filter(filter_fn(move |it| is_wanted.wants(it)));
    // A second start in one process keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    Ok(log)
}

impl Log {
    /// A log that nothing is written to, with Triton's settings.
    pub fn silent() -> Log {
        let (switches, writer) = (Arc::new(Switches::default()), Writer::closed());
        Log { switches, writer }
    }

    /// What is logged, and how.
    pub fn settings(&self) -> Settings {
        self.switches.settings()
    }

    /// Changes what is given and keeps the rest; counts from the next event on.
    pub fn change(&self, change: &LogChange) -> Settings {
        self.switches.change(change);
        // Whether an event is wanted is remembered where it comes from.
        tracing::callsite::rebuild_interest_cache();
        self.settings()
    }

    /// A line of the access log, which no switch of the levels hides.
    pub fn access(&self, fields: Vec<(&'static str, FieldValue)>) {
        let said = LogRecord {
            level: tracing::Level::INFO,
            target: "troupe::access",
            place: "access".to_owned(),
            message: "inference".to_owned(),
            fields,
        };
        self.writer.push(line::write(&said, &self.switches, Timestamp::now()).as_bytes());
    }

    /// Shows people a table as it is, but where each line is an object.
    pub fn table(&self, table: &str) {
        if self.switches.format() == LogFormat::Json {
            tracing::info!("{table}");
        } else {
            self.writer.push(format!("\n{}\n", table.trim_end()).as_bytes());
        }
    }

    /// Dropping it waits until everything is written, a second at most: nobody may read it.
    pub fn flush_on_drop(&self) -> FlushOnDrop {
        FlushOnDrop(self.clone())
    }
}

/// Writes what is left when it is dropped, however the process comes to its end.
pub struct FlushOnDrop(Log);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        self.0.writer.flush(LAST_GRACE);
    }
}

/// Panics become errors in the log from now on: written directly, they would wait for whoever reads
/// stderr.
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

/// Hands events over to the writer.
struct Lines {
    switches: Arc<Switches>,
    writer: Writer,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line::write(&LogRecord::of(event), &self.switches, Timestamp::now());
        self.writer.push(line.as_bytes());
    }
}

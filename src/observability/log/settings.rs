//! Log settings: set by the command line, changed by clients of the logging extension.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

use tracing::{Level, Metadata};

use troupe_options::{self as options, LogFormat};

/// The settings as the logging extension shows them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The log file; empty: stderr. Never changes.
    pub file: String,
    /// Log information.
    pub info: bool,
    /// Log warnings.
    pub warning: bool,
    /// Log errors.
    pub error: bool,
    /// Level of verbose messages, 0 for none.
    pub verbose: u32,
    /// The format of a line.
    pub format: LogFormat,
}

/// New values; `None` keeps the old one.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in `Settings`")]
pub struct LogChange {
    pub info: Option<bool>,
    pub warning: Option<bool>,
    pub error: Option<bool>,
    pub verbose: Option<u32>,
    pub format: Option<LogFormat>,
}

/// Where actix-http logs, as errors, how connections of HTTP end: each is a client's doing, as the
/// end of one that goes on sending a refused body. Clients could fill the log at will.
const OF_CLIENTS: &str = "actix_http::h1::dispatcher";

/// The settings as atomic switches, which every event reads.
pub(super) struct Switches {
    file: String,
    /// Whether messages stand in quotation marks and are escaped as in JSON.
    pub(super) quotes: bool,
    info: AtomicBool,
    warning: AtomicBool,
    error: AtomicBool,
    verbose: AtomicU32,
    format: AtomicU8,
}

impl Default for Switches {
    fn default() -> Switches {
        let on = || AtomicBool::new(true);
        let (verbose, format) = (AtomicU32::new(0), AtomicU8::new(LogFormat::Default as u8));
        let (info, warning, error) = (on(), on(), on());
        Switches { file: String::new(), quotes: true, info, warning, error, verbose, format }
    }
}

impl Switches {
    pub(super) fn new(options: &options::LogArguments) -> Switches {
        let file = options.log_file.as_ref().map(|it| it.display().to_string());
        // Triton's variable.
        let quotes =
            std::env::var_os("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|it| it != "0");
        let switches = Switches { file: file.unwrap_or_default(), quotes, ..Switches::default() };
        switches.change(&LogChange {
            info: Some(options.log_info),
            warning: Some(options.log_warning),
            error: Some(options.log_error),
            verbose: Some(options.log_verbose),
            format: Some(options.log_format),
        });
        switches
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            file: self.file.clone(),
            info: self.info.load(Relaxed),
            warning: self.warning.load(Relaxed),
            error: self.error.load(Relaxed),
            verbose: self.verbose.load(Relaxed),
            format: self.format(),
        }
    }

    pub(super) fn format(&self) -> LogFormat {
        let number = self.format.load(Relaxed);
        let all = [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json];
        all.into_iter().find(|it| *it as u8 == number).unwrap_or_default()
    }

    pub(super) fn change(&self, change: &LogChange) {
        let LogChange { info, warning, error, verbose, format } = change;
        for (switch, value) in [(&self.info, info), (&self.warning, warning), (&self.error, error)]
        {
            if let Some(value) = value {
                switch.store(*value, Relaxed);
            }
        }
        if let Some(level) = verbose {
            self.verbose.store(*level, Relaxed);
        }
        if let Some(format) = format {
            self.format.store(*format as u8, Relaxed);
        }
    }

    /// Whether an event with this metadata is logged.
    pub(super) fn wants(&self, event: &Metadata<'_>) -> bool {
        let is_ours = event.target().starts_with("troupe");
        match *event.level() {
            Level::ERROR if event.target() == OF_CLIENTS && self.verbose.load(Relaxed) < 1 => false,
            Level::ERROR => self.error.load(Relaxed),
            Level::WARN => self.warning.load(Relaxed),
            Level::INFO => self.info.load(Relaxed) && is_ours,
            Level::DEBUG => 1 <= self.verbose.load(Relaxed) && is_ours,
            Level::TRACE => 2 <= self.verbose.load(Relaxed) && is_ours,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_stays() {
        let switches = Switches::default();
        let before = switches.settings();
        switches.change(&LogChange { warning: Some(false), ..LogChange::default() });
        assert_eq!(switches.settings(), Settings { warning: false, ..before.clone() });
        switches.change(&LogChange {
            verbose: Some(3),
            format: Some(LogFormat::Json),
            ..LogChange::default()
        });
        let expected =
            Settings { warning: false, verbose: 3, format: LogFormat::Json, ..before.clone() };
        assert_eq!(switches.settings(), expected);
        switches.change(&LogChange::default());
        assert_eq!(switches.settings(), expected);
    }
}

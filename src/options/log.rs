//! The flags of the log.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::switch;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `I0131 12:34:56.123456 4711 file.rs:12] "message"`.
    #[default]
    Default,
    /// `2024-01-31T12:34:56Z I 4711 file.rs:12] "message"`.
    Iso8601,
    /// An object of JSON.
    Json,
}

impl LogFormat {
    /// As flags and clients spell it.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Default => "default",
            LogFormat::Iso8601 => "ISO8601",
            LogFormat::Json => "json",
        }
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<LogFormat> {
        let all = [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json];
        all.into_iter().find(|it| it.name() == name)
    }
}

/// What to log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArguments {
    /// Level of verbose messages, 0 for none
    #[arg(long, default_value = "0", value_parser = verbosity)]
    pub log_verbose: u32,
    /// Log information
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub log_info: bool,
    /// Log warnings
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub log_warning: bool,
    /// Log errors
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub log_error: bool,
    /// How lines look: `default`, `ISO8601` or `json`
    #[arg(long, default_value = "default", value_parser = format)]
    pub log_format: LogFormat,
    /// Append lines to this file instead of writing them to the terminal
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Log a line about every inference request, whatever else is logged
    #[arg(long, value_parser = switch, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub access_log: bool,
}

fn format(text: &str) -> Result<LogFormat, String> {
    LogFormat::named(text).ok_or_else(|| {
        "invalid argument for --log-format: expected `default`, `ISO8601` or `json`".to_owned()
    })
}

fn verbosity(text: &str) -> Result<u32, String> {
    match switch(text) {
        Ok(on) if text.parse::<u32>().is_err() => Ok(u32::from(on)),
        _ => text.parse().map_err(|_| format!("expected a number, got `{text}`")),
    }
}

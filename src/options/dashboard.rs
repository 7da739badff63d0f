//! The page of live graphs on the metrics port.

use clap::{ArgAction, Args};

use super::switch;

/// Whether there is a page of live graphs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct Dashboard {
    /// Serve a page on the metrics port that draws every ensemble with its live numbers
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_dashboard: bool,
}

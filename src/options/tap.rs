//! The flags of taps.

use clap::{ArgAction, Args};

use super::switch;

/// Who may look at the tensors of requests, and how many.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Tap")]
pub struct TapArguments {
    /// Let clients capture the tensors of requests to ensembles: POST /v2/models/ENSEMBLE/tap
    #[arg(long, value_parser = switch, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub allow_tap: bool,
    /// Bytes that all captures together may hold
    #[arg(long, default_value_t = 1 << 30)]
    pub tap_max_bytes: usize,
}

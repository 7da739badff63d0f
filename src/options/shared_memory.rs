//! The flag of system shared memory.

use clap::{ArgAction, Args};

use super::switch;

/// Whether clients may hand tensors over in shared memory.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Shared memory")]
pub struct SharedMemoryArguments {
    /// Let clients register regions of POSIX shared memory, and read inputs from them and write
    /// outputs to them; whoever can call this can have every object read and written that the
    /// server's user may open
    #[arg(long, value_parser = switch, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub allow_client_shm: bool,
}

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
    #[arg(long, value_parser = switch, num_args = 0..=1, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub allow_client_shm: bool,
}

#[cfg(test)]
mod tests {
    use crate::arguments::parse;

    #[test]
    fn the_flag_is_off_unless_given_and_written_as_tritons() {
        for (line, expected) in [
            ("", false),
            ("--allow-client-shm=true", true),
            ("--allow-client-shm true --http-port=1", true),
            ("--allow-client-shm False", false),
            ("--allow-client-shm --http-port=1", true),
            ("--allow-client-shm", true),
        ] {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let options = parse(&arguments).unwrap();
            assert_eq!(options.serve.shared_memory.allow_client_shm, expected, "{line}");
        }
    }
}

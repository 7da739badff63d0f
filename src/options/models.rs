//! The command lines of `troupe models` and `troupe reload`.

use clap::Args;

use super::connection::ConnectionArguments;

/// The models of a running server.
#[derive(Clone, Debug, Args)]
pub struct ModelsArguments {
    /// Models to list [default: all]
    pub models: Vec<String>,
    /// How the server is reached.
    #[command(flatten)]
    pub connection: ConnectionArguments,
}

/// Models that are to be loaded again.
#[derive(Clone, Debug, Args)]
pub struct ReloadArguments {
    /// Models to load; those that changed on disk are replaced, without one lost request
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
    /// How the server is reached.
    #[command(flatten)]
    pub connection: ConnectionArguments,
}

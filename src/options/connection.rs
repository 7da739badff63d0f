//! How subcommands reach a running server: its address and the headers of each request.

use clap::Args;

/// The server to ask.
#[derive(Clone, Debug, Args)]
pub struct ConnectionArguments {
    /// Where the server listens for gRPC
    #[arg(long, short, default_value = "localhost:8001")]
    pub url: String,
    /// Metadata to send along; may be given more than once
    #[arg(long, value_name = "NAME:VALUE")]
    pub header: Vec<String>,
}

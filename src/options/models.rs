//! The command lines of `troupe models`, `troupe reload` and `troupe logs`.

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

/// What a server has logged about a model.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("url", |url| url.default_value("localhost:8000").help(HTTP_URL)))]
#[command(mut_arg("header", |header| header.help("Header to send along; may be given more than once")))]
pub struct LogsArguments {
    /// Model whose loads, failures, and printed and logged lines to show
    pub model: String,
    /// Go on: print lines as they are logged, also when the server ends and comes back
    #[arg(long, short)]
    pub follow: bool,
    /// Print only the last lines, so many of them, of what is there
    #[arg(long, short = 'n', value_name = "LINES")]
    pub tail: Option<usize>,
    /// How the server is reached, over HTTP.
    #[command(flatten)]
    pub connection: ConnectionArguments,
}

/// The others ask over gRPC.
const HTTP_URL: &str = "Where the server listens for HTTP: `HOST:PORT`, `https://HOST:PORT` where \
                        it encrypts, or `unix:PATH`";

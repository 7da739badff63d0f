//! How subcommands reach a running server: its address, TLS, and the headers of each request.

use std::path::PathBuf;

use clap::Args;

/// The server to ask.
#[derive(Clone, Debug, Args)]
pub struct ConnectionArguments {
    /// Where the server listens for gRPC: `HOST:PORT`, `https://HOST:PORT` where it encrypts, or
    /// `unix:PATH`
    #[arg(long, short, default_value = "localhost:8001")]
    pub url: String,
    /// Metadata to send along; may be given more than once
    #[arg(long, value_name = "NAME:VALUE")]
    pub header: Vec<String>,
    /// PEM file of the roots that the server's certificate comes from [default: those of the
    /// system]; encrypts
    #[arg(long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// PEM file of the certificate to show to the server; encrypts
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// PEM file of the private key of --client-cert
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

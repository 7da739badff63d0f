//! The command lines of `troupe infer` and `troupe run-once`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{connection::ConnectionArguments, provision};

/// One request to a running server.
#[derive(Clone, Debug, Args)]
pub struct InferArguments {
    /// The model's name
    pub model: String,
    /// What to ask, and how to print the answer.
    #[command(flatten)]
    pub request: RequestArguments,
    /// A version of the model [default: the latest]
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub model_version: String,
    /// How the server is reached.
    #[command(flatten)]
    pub connection: ConnectionArguments,
}

/// One request to a model that is loaded for it.
#[derive(Clone, Debug, Args)]
pub struct RunOnceArguments {
    /// The model's folder; the other models of an ensemble lie beside it
    pub folder: PathBuf,
    /// What to ask, and how to print the answer.
    #[command(flatten)]
    pub request: RequestArguments,
    /// Show the whole log, not only its warnings, its errors and what models print
    #[arg(long)]
    pub log: bool,
    /// A setting of a backend, as of the server
    #[arg(long, value_parser = super::backend_setting)]
    pub backend_config: Vec<((String, String), String)>,
    /// Make missing Python environments and fetch a missing ONNX Runtime: `auto` or `never`
    #[arg(long, default_value = "auto", value_parser = provision, action = clap::ArgAction::Set)]
    pub provision: bool,
}

/// What to ask a model, and how to print its answer.
#[derive(Clone, Debug, Args)]
pub struct RequestArguments {
    /// JSON, plain text, or the contents of a file behind `@`, of which an array if it ends in
    /// `.npy`; may be given more than once, and without `NAME=` if the model has one input. A
    /// missing batch dimension is added
    #[arg(long, short, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub input: Vec<String>,
    /// Dimensions of an input, where its data and the model's config leave them open
    #[arg(long, value_name = "NAME=1,3,224,224", allow_hyphen_values = true)]
    pub shape: Vec<String>,
    /// A parameter of the request, such as `sequence_id=5`, `sequence_start=true`, `priority=1`; what
    /// is no JSON is text; may be given more than once
    #[arg(long, value_name = "NAME=JSON", allow_hyphen_values = true)]
    pub parameter: Vec<String>,
    /// An output to ask for; may be given more than once [default: all]
    #[arg(long, value_name = "NAME")]
    pub output: Vec<String>,
    /// Print the K largest elements of each output with their labels, instead of the output
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub classes: Option<u32>,
    /// How long to wait for the answer
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Print all rows, elements and characters
    #[arg(long)]
    pub full: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    let limit = seconds.filter(|it| !it.is_zero());
    limit.ok_or_else(|| format!("expected a number of seconds greater than 0, got `{text}`"))
}

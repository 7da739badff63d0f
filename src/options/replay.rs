//! The command line of `troupe replay`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{connection::ConnectionArguments, infer::seconds};

/// A capture to run again on a running server.
#[derive(Clone, Debug, Args)]
pub struct ReplayArguments {
    /// The file of a capture, as a tap answers it
    pub file: PathBuf,
    /// The first step to run, by index or by its model's name: with it run the steps that stand
    /// behind it in the ensemble's config, and all that read what one of these writes. The others'
    /// tensors are taken from the capture. 0: all run
    #[arg(long, value_name = "STEP", default_value = "0")]
    pub from: String,
    /// The number of a captured request, or `all`
    #[arg(long, value_name = "N", default_value = "all", value_parser = requests)]
    pub request: Requests,
    /// Give each step its captured inputs, also where an earlier step now answers differently
    #[arg(long)]
    pub isolated: bool,
    /// How the server is reached.
    #[command(flatten)]
    pub connection: ConnectionArguments,
    /// How long a step may take
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Which requests of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Every one.
    All,
    /// The one of this number.
    One(usize),
}

fn requests(text: &str) -> Result<Requests, String> {
    match text {
        "all" => Ok(Requests::All),
        number => number
            .parse()
            .map(Requests::One)
            .map_err(|_| format!("expected a request's number or `all`, got `{text}`")),
    }
}

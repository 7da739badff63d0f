//! The command line of `troupe new`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to write.
#[derive(Clone, Debug, Subcommand)]
pub enum NewCommand {
    /// Write a model that works at once: a Python function, unless --onnx or --op say otherwise
    Model(NewModelArguments),
    /// Write an ensemble: the outputs of its steps are wired to inputs of later ones by name and
    /// type
    Ensemble(NewEnsembleArguments),
    /// Write an ensemble as a function in Python that calls its models, wired in the same way
    Pipeline(NewEnsembleArguments),
}

/// A model to write.
#[derive(Clone, Debug, Args)]
pub struct NewModelArguments {
    /// The model's name, which is also its folder's
    pub name: String,
    /// An ONNX file to serve; it is copied
    #[arg(long, value_name = "FILE", conflicts_with = "op")]
    pub onnx: Option<PathBuf>,
    /// An op of the server itself, like `image_decode`; a name that is none lists them
    #[arg(long, value_name = "NAME")]
    pub op: Option<String>,
    /// Where it is written.
    #[command(flatten)]
    pub target: NewTarget,
}

/// An ensemble to write.
#[derive(Clone, Debug, Args)]
pub struct NewEnsembleArguments {
    /// The ensemble's name, which is also its folder's
    pub name: String,
    /// The models it runs, in this order; they are in the same folder of models
    #[arg(required = true, value_name = "STEP")]
    pub steps: Vec<String>,
    /// Where it is written.
    #[command(flatten)]
    pub target: NewTarget,
}

/// Where new models are written, and what is asked for signatures that no config tells.
#[derive(Clone, Debug, Args)]
pub struct NewTarget {
    /// Folder of models
    #[arg(long, default_value = "model_repository")]
    pub model_repository: PathBuf,
    /// `<backend>,<key>=<value>`, as for the server: models without a config are asked what they
    /// take and give
    #[arg(long, value_parser = super::backend_setting)]
    pub backend_config: Vec<((String, String), String)>,
}

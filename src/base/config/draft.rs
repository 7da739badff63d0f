//! A configuration on its way: as much as has been written or found out so far.

use prost_reflect::{DeserializeOptions, DynamicMessage};

use super::check::Options;
use super::problem::{Places, Problem};
use super::text::{self, Conflict};
use super::{ModelConfig, backend, check, normalise};
use troupe_proto::{self as proto, inference};

/// Whatever was written, possibly nothing at all.
#[derive(Clone, Debug)]
pub struct Draft {
    pub proto: inference::ModelConfig,
    pub places: Places,
    pub(super) conflicts: Vec<Conflict>,
}

/// Reads a config.pbtxt; `file` names it in problems, and an empty text is a draft too.
pub fn read_text(text: &str, file: &str) -> Result<Draft, Vec<Problem>> {
    let parsed = text::read(text, proto::model_config(), file)?;
    let proto = typed(&parsed.message, &parsed.places)?;
    Ok(Draft { proto, places: parsed.places, conflicts: parsed.conflicts })
}

/// Reads the JSON of a load request's `config` parameter; `file` names it in problems.
pub fn read_json(text: &str, file: &str) -> Result<Draft, Vec<Problem>> {
    let places = Places::whole_file(file);
    let mut json = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new();
    DynamicMessage::deserialize_with_options(proto::model_config(), &mut json, &options)
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| places.problem("", format!("Invalid config override: {error}")))
        .map_err(|problem| vec![problem])
        .and_then(|message| typed(&message, &places))
        .map(|proto| Draft { proto, places, conflicts: Vec::new() })
}

impl Draft {
    /// A configuration that came as a message: its problems are about the whole `file`.
    pub fn new(proto: inference::ModelConfig, file: &str) -> Draft {
        Draft { proto, places: Places::whole_file(file), conflicts: Vec::new() }
    }

    /// Fills in name, backend, platform and file name from the model's directory.
    ///
    /// `files` are the names in one of its version folders.
    pub fn complete_from_directory(
        &mut self,
        directory: &str,
        files: &[&str],
    ) -> Result<(), Vec<Problem>> {
        if self.proto.name.is_empty() {
            self.proto.name = directory.into();
        }
        let model = &self.proto.name;
        let mut problems = Vec::new();
        if model != directory {
            let text = format!(
                "unexpected directory name '{directory}' for model '{model}', \
                 directory name must equal model name"
            );
            problems.push(self.places.problem("name", text));
        }
        if let Err(text) = backend::deduce(&mut self.proto, files) {
            problems.push(self.places.problem("", text));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Fills in the defaults, then checks everything.
    pub fn finish(mut self, options: &Options) -> Result<ModelConfig, Vec<Problem>> {
        let auto = normalise::normalise(&mut self.proto, options);
        check::check(self, &auto, options)
    }
}

/// The reader knows our descriptors, so this fails only if they and the types disagree.
fn typed(
    message: &DynamicMessage,
    places: &Places,
) -> Result<inference::ModelConfig, Vec<Problem>> {
    message.transcode_to().map_err(|error| vec![places.problem("", error.to_string())])
}

//! The draft of a configuration: as much as has been written or found out so far.

use prost_reflect::{DeserializeOptions, DynamicMessage};

use super::backend;
use super::problem::{Problem, SourceMap};
use super::text::{self, MapConflict};
use troupe_proto::{self as proto, inference};

/// Whatever was written, possibly nothing at all.
#[derive(Clone, Debug)]
pub struct Draft {
    pub proto: inference::ModelConfig,
    pub source_map: SourceMap,
    pub(super) conflicts: Vec<MapConflict>,
}

/// Reads a config.pbtxt; `file` names it in problems, and an empty text is a draft too.
pub fn read_text(text: &str, file: &str) -> Result<Draft, Vec<Problem>> {
    let parsed = text::read(text, proto::model_config(), file)?;
    let proto = typed(&parsed.message, &parsed.source_map)?;
    Ok(Draft { proto, source_map: parsed.source_map, conflicts: parsed.conflicts })
}

/// Reads the JSON of a load request's `config` parameter; `file` names it in problems.
pub fn read_json(text: &str, file: &str) -> Result<Draft, Vec<Problem>> {
    let source_map = SourceMap::whole_file(file);
    let mut json = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new();
    DynamicMessage::deserialize_with_options(proto::model_config(), &mut json, &options)
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| source_map.problem("", format!("Invalid config override: {error}")))
        .map_err(|problem| vec![problem])
        .and_then(|message| typed(&message, &source_map))
        .map(|proto| Draft { proto, source_map, conflicts: Vec::new() })
}

impl Draft {
    /// A configuration that came as a message: its problems are about the whole `file`.
    pub fn new(proto: inference::ModelConfig, file: &str) -> Draft {
        Draft { proto, source_map: SourceMap::whole_file(file), conflicts: Vec::new() }
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
                 directory name must equal model name: rename the folder or the name"
            );
            problems.push(self.source_map.problem("name", text));
        }
        if let Err(text) = backend::deduce(&mut self.proto, files) {
            problems.push(self.source_map.problem("", text));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// The reader knows our descriptors, so this fails only if they and the types disagree.
fn typed(
    message: &DynamicMessage,
    source_map: &SourceMap,
) -> Result<inference::ModelConfig, Vec<Problem>> {
    message.transcode_to().map_err(|error| vec![source_map.problem("", error.to_string())])
}

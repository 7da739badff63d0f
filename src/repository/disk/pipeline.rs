//! Pipelines in Python: a `pipeline.py` in a model's folder is an ensemble, traced when it is read and
//! again when the models it calls are known.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::Settings;
use troupe_backends::python::TracedPipeline;
use troupe_base::{
    backend::ModelFiles,
    config::{self, Draft, ModelConfig, Problem, SourceMap, SourcePosition, json},
};
use troupe_proto::inference;

/// The file of a pipeline, in the model's folder.
pub const PIPELINE_FILE: &str = "pipeline.py";
/// Stands for the configs of the models while they are not known.
pub(crate) const NOT_KNOWN: &str = "null";
/// The version of a pipeline without a folder of one.
pub(crate) const ONLY_VERSION: i64 = 1;

/// The pipeline in a model's folder, if there is one.
pub(crate) fn file(model_dir: &Path) -> Option<PathBuf> {
    Some(model_dir.join(PIPELINE_FILE)).filter(|it| it.is_file())
}

/// The config of a pipeline whose models are not known yet, so that its types are made up; what is
/// `written` in its config.pbtxt goes beside the graph. Blocks.
pub(crate) fn read(
    settings: &Settings,
    name: &str,
    file: &Path,
    written: &Draft,
) -> Result<Draft, Vec<Problem>> {
    let proto = &written.proto;
    let doubled = [
        ("input", !proto.input.is_empty()),
        ("output", !proto.output.is_empty()),
        ("ensemble_scheduling", proto.scheduling_choice.is_some()),
        ("backend", !proto.backend.is_empty()),
        ("max_batch_size", proto.max_batch_size != 0),
    ];
    let doubled = doubled.iter().filter(|(_, is_written)| *is_written).map(|(field, _)| {
        let remedy = match *field {
            "max_batch_size" => "write @pipeline(max_batch_size=…)",
            _ => "take it out, or take away the pipeline",
        };
        let text = format!("'{field}' is what {} says: {remedy}", file.display());
        written.source_map.problem(field, text)
    });
    let doubled: Vec<_> = doubled.collect();
    if !doubled.is_empty() {
        return Err(doubled);
    }
    draft(&traced(settings, name, file, NOT_KNOWN)?, file, &written.proto)
}

/// The config of a pipeline whose models have these configs. Blocks.
pub(crate) fn typed<'a>(
    settings: &Settings,
    untyped: &ModelConfig,
    file: &Path,
    models: impl Iterator<Item = &'a ModelConfig>,
) -> Result<Arc<ModelConfig>, Vec<Problem>> {
    let traced = traced(settings, &untyped.name, file, &configs(models))?;
    let config = draft(&traced, file, &untyped.proto)?.finish(&settings.config)?;
    Ok(Arc::new(config))
}

/// The configs, each once, as a list in JSON.
pub(crate) fn configs<'a>(models: impl Iterator<Item = &'a ModelConfig>) -> String {
    let configs: BTreeMap<&str, String> =
        models.map(|it| (&*it.name, json::print(&it.proto))).collect();
    format!("[{}]", configs.into_values().collect::<Vec<_>>().join(","))
}

/// Runs its function. Blocks.
pub(crate) fn traced(
    settings: &Settings,
    name: &str,
    file: &Path,
    configs: &str,
) -> Result<TracedPipeline, Vec<Problem>> {
    let files = ModelFiles {
        name: name.to_owned(),
        model_dir: file.parent().unwrap_or(Path::new("")).to_owned(),
        version: ONLY_VERSION,
    };
    settings
        .backends
        .trace_pipeline(&settings.backend, &files, file, configs)
        .map_err(|error| vec![placed(file, error.to_string())])
}

/// A text that begins with a place as a problem at that place.
fn placed(file: &Path, text: String) -> Problem {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let rest = text.strip_prefix(&format!("{}:", whole.display()));
    let place = rest.and_then(|rest| match rest.split_once(": ") {
        _ if rest.starts_with(' ') => Some((0, rest.trim_start().to_owned())),
        Some((line, text)) => Some((line.parse().ok()?, text.to_owned())),
        None => None,
    });
    let file = file.display().to_string();
    match place {
        Some((line, text)) => Problem { position: SourcePosition { file, line, column: 1 }, text },
        None => SourceMap::whole_file(&file).problem("", text),
    }
}

/// What was traced, beside what was written of the rest.
fn draft(
    traced: &TracedPipeline,
    file: &Path,
    written: &inference::ModelConfig,
) -> Result<Draft, Vec<Problem>> {
    let file = file.display().to_string();
    let mut draft = config::read_text(&traced.text, &file)?;
    let made = std::mem::replace(&mut draft.proto, written.clone());
    draft.proto.platform = made.platform;
    draft.proto.max_batch_size = made.max_batch_size;
    draft.proto.input = made.input;
    draft.proto.output = made.output;
    draft.proto.scheduling_choice = made.scheduling_choice;
    draft.source_map = draft.source_map.of_origin(&file, &traced.lines);
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_a_line_of_the_file_is_a_problem_there() {
        for (text, expected) in [
            ("/m/pipeline.py:7: no graph: why", "/m/pipeline.py:7:1: no graph: why"),
            ("/m/pipeline.py: nothing is marked", "/m/pipeline.py: nothing is marked"),
            ("/m/other.py:7: no", "/m/pipeline.py: /m/other.py:7: no"),
            ("TypeError: 3", "/m/pipeline.py: TypeError: 3"),
        ] {
            let problem = placed(Path::new("/m/pipeline.py"), text.to_owned());
            assert_eq!(problem.to_string(), expected);
        }
    }
}

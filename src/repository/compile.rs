//! Compiles a pipeline in Python to the config.pbtxt of the ensemble that it is: `troupe compile`.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{
    Overrides, Settings,
    disk::{
        definition::{self, Content, Definition},
        pipeline,
        scan::{self, Folders},
    },
    operation::open,
};
use troupe_base::config::{ModelConfig, Problem};

/// Ensembles inside each other that a pipeline may run; more are taken for a cycle.
const MAX_DEPTH: usize = 32;

/// The config.pbtxt of the pipeline in `file`. The models it calls are those of the settings'
/// repositories; the code that completes their configs runs. Blocks.
pub fn compile(settings: &Settings, file: &Path) -> Result<String, String> {
    let (folders, unreadable) = scan::folders(&settings.repositories);
    if let Some(problem) = unreadable.into_iter().next() {
        return Err(problem);
    }
    let compiler = Compiler { settings, folders };
    let file = std::path::absolute(file).map_err(|error| error.to_string())?;
    let name = file.parent().and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy();
    let calls = pipeline::traced(settings, &name, &file, pipeline::NOT_KNOWN).map_err(told)?;
    let models = compiler.configs(calls.models.iter().map(|(model, _)| &**model), 0)?;
    let configs = pipeline::configs(models.values().map(|it| &**it));
    Ok(pipeline::traced(settings, &name, &file, &configs).map_err(told)?.text)
}

/// The config of one of these models as a load would finish it, pipelines included; where inputs
/// and outputs are written in its file, without a look at the model. Blocks.
pub(super) fn finished(
    settings: &Settings,
    folders: &Folders,
    name: &str,
) -> Result<Arc<ModelConfig>, String> {
    let compiler = Compiler { settings, folders: folders.clone() };
    let definition = compiler.read(name)?;
    if let Content::Single(draft) = &definition.content
        && let Ok(config) = draft.clone().finish(&settings.config)
        && !config.inputs.is_empty()
        && !config.outputs.is_empty()
    {
        return Ok(config.into());
    }
    compiler.finish(&definition, 0)
}

struct Compiler<'a> {
    settings: &'a Settings,
    folders: Folders,
}

type Configs = BTreeMap<String, Arc<ModelConfig>>;

impl Compiler<'_> {
    /// The configs of those models that there are.
    fn configs<'b>(
        &self,
        names: impl Iterator<Item = &'b str>,
        depth: usize,
    ) -> Result<Configs, String> {
        let mut found = Configs::new();
        for name in names.filter(|name| self.folders.contains_key(*name)) {
            if !found.contains_key(name) {
                found.insert(name.to_owned(), self.finish(&self.read(name)?, depth)?);
            }
        }
        Ok(found)
    }

    /// What is on disk of one model.
    fn read(&self, name: &str) -> Result<Definition, String> {
        let overrides = Overrides::default();
        definition::read(self.settings, &self.folders, &name.into(), &overrides)
            .map_err(|failure| format!("model '{name}': {}", failure.reason()))
    }

    /// The config of one model, as a load would finish it.
    fn finish(&self, read: &Definition, depth: usize) -> Result<Arc<ModelConfig>, String> {
        let settings = self.settings;
        let failed = |text: String| format!("model '{}': {text}", read.name);
        if MAX_DEPTH < depth {
            return Err(failed("it runs itself, or ensembles are too deep".to_owned()));
        }
        match (&read.content, &read.pipeline) {
            (Content::Single(_), _) => {
                let version = read.versions.keys().next_back().copied();
                let version = version.ok_or_else(|| failed(definition::no_version(read)))?;
                let config = open::finished_config(settings, read, version);
                config.map(Arc::new).map_err(|error| failed(error.to_string()))
            }
            (Content::Ensemble(config, _), None) => Ok(config.clone()),
            (Content::Ensemble(config, required), Some(file)) => {
                let models = self.configs(required.iter().map(|it| &*it.model), depth + 1)?;
                pipeline::typed(settings, config, file, models.values().map(|it| &**it))
                    .map_err(told)
            }
        }
    }
}

fn told(problems: Vec<Problem>) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

//! The definition of a model as it is on disk: its config, and the versions its policy picks.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use super::{
    misnamed::{lacking, misplaced},
    overlay::Overlay,
    pipeline,
    scan::{self, CONFIG_FILE, CONFIGS_FOLDER, Folders, Stamp, names_in},
};
use crate::{
    Overrides, Settings,
    failure::{LoadFailure, NO_VERSION},
};
use troupe_backends::python::ENVIRONMENT;
use troupe_base::{
    config::{self, Draft, ModelConfig, Problem, SourceMap, did_you_mean},
    files,
};
use troupe_proto::inference::{
    ModelVersionPolicy, model_config::SchedulingChoice, model_version_policy::PolicyChoice,
};

/// What stands for the model's folder in it.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// One model as it was found at one moment.
pub(crate) struct Definition {
    /// The model's name.
    pub(crate) name: Arc<str>,
    /// Has a folder for each version.
    pub(crate) model_dir: PathBuf,
    /// Came with a load request, at least in part.
    pub(crate) is_override: bool,
    /// Of everything but the versions.
    pub(crate) stamp: Stamp,
    /// The same without its configs.
    pub(crate) files: Stamp,
    /// All versions with a folder.
    pub(crate) present: BTreeSet<i64>,
    /// The versions its policy picks.
    pub(crate) versions: BTreeMap<i64, Stamp>,
    /// Its config.
    pub(crate) content: Content,
    /// The Python file that the ensemble was traced from, whose types are made up before its models
    /// are known.
    pub(crate) pipeline: Option<PathBuf>,
    /// Held as long as somebody may read the folder.
    _overlay: Option<Overlay>,
}

/// Says whether a loaded version is still the one on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionStamp {
    /// Of everything in the model's folder but its versions.
    pub(crate) model: Stamp,
    /// The same without its configs.
    pub(crate) files: Stamp,
    /// Of the version's folder.
    pub(crate) version: Stamp,
}

/// A config, as far as it is known before the model is loaded.
pub(crate) enum Content {
    /// What its backend may complete.
    Single(Box<Draft>),
    /// Checked in itself, and the models it runs.
    Ensemble(Arc<ModelConfig>, Vec<RequiredModel>),
}

/// A model that an ensemble runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequiredModel {
    /// Its name.
    pub(crate) model: Arc<str>,
    /// -1: the latest.
    pub(crate) version: i64,
}

impl Definition {
    /// The stamp of one of its versions.
    pub(crate) fn stamp_of(&self, version: i64) -> Option<VersionStamp> {
        let version = *self.versions.get(&version)?;
        Some(VersionStamp { model: self.stamp, files: self.files, version })
    }

    /// The models it runs; none unless it is an ensemble.
    pub(crate) fn required(&self) -> &[RequiredModel] {
        match &self.content {
            Content::Single(_) => &[],
            Content::Ensemble(_, required) => required,
        }
    }
}

/// Reads one model. Blocks.
pub(crate) fn read(
    settings: &Settings,
    folders: &Folders,
    name: &Arc<str>,
    overrides: &Overrides,
) -> Result<Definition, LoadFailure> {
    let overlay = overlay(settings, overrides)?;
    let model_dir = match (&overlay, folders.get(name).map(Vec::as_slice)) {
        (Some(overlay), _) => overlay.model_dir(),
        (None, Some([folder])) => folder.clone(),
        (None, Some([_, _, ..])) => return Err(LoadFailure::Duplicate),
        (None, _) => return Err(LoadFailure::Missing),
    };
    // Taken first, so that what is written while we read counts as a change.
    let mut stamp = scan::common_stamp(&model_dir);
    let files_stamp = scan::files_stamp(&model_dir);
    let present = scan::versions(&model_dir);
    let present =
        present.map_err(|error| unreadable(&model_dir, format!("failed to read: {error}")))?;
    let mut draft = match &overrides.config {
        Some(json) => {
            let mut hasher = DefaultHasher::new();
            (stamp, json).hash(&mut hasher);
            stamp = hasher.finish();
            let draft = config::read_json(json, "config")
                .map_err(|problems| LoadFailure::Refused(texts(&problems)))?;
            if overrides.files.is_empty() {
                check_environment(&draft, || read_config(settings, &model_dir, name))?;
            }
            draft
        }
        None => read_config(settings, &model_dir, name)?,
    };
    let pipeline = pipeline::file(&model_dir);
    let mut present = present;
    if let Some(file) = &pipeline {
        draft = pipeline::read(settings, name, file, &draft).map_err(LoadFailure::Unreadable)?;
        if present.is_empty() {
            present.insert(pipeline::ONLY_VERSION, Stamp::default());
        }
    }
    let numbers: BTreeSet<i64> = present.keys().copied().collect();
    let versions = choose(name, draft.proto.version_policy.as_ref(), present);
    let latest = versions.keys().next_back();
    // They tell which backend runs it.
    let version_dir = latest.map(|version| model_dir.join(version.to_string()));
    let files = version_dir.as_deref().map(names_in).unwrap_or_default();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    draft.complete_from_directory(name, &files).map_err(|mut problems| {
        let lacks = || match &version_dir {
            _ if is_ensemble(&draft) => None,
            None if !numbers.is_empty() => {
                let policy = draft.proto.version_policy.as_ref();
                Some(format!("Nothing is loaded: {}.", not_picked(policy, &numbers)))
            }
            None => misplaced(&model_dir).or_else(|| Some(lacking(&model_dir.join("1")))),
            Some(folder) => files.is_empty().then(|| lacking(folder)),
        };
        let hint = misnamed_config(settings, &model_dir).or_else(lacks);
        if let (Some(last), Some(hint)) = (problems.last_mut(), hint) {
            last.text += &format!(" {hint}");
        }
        LoadFailure::Unreadable(problems)
    })?;
    Ok(Definition {
        name: name.clone(),
        model_dir,
        is_override: overrides.config.is_some(),
        stamp,
        files: files_stamp,
        present: numbers,
        versions,
        content: content(settings, draft)?,
        pipeline,
        _overlay: overlay,
    })
}

/// A client that only sends a config chooses no environment of this machine but the model's own.
fn check_environment(
    asked: &Draft,
    on_disk: impl FnOnce() -> Result<Draft, LoadFailure>,
) -> Result<(), LoadFailure> {
    let environment =
        |draft: &Draft| draft.proto.parameters.get(ENVIRONMENT).map(|it| it.string_value.clone());
    let Some(path) = environment(asked) else { return Ok(()) };
    let is_inside = path.strip_prefix(MODEL_DIRECTORY).is_some_and(|rest| {
        let climbs = |it: Component<'_>| !matches!(it, Component::Normal(_) | Component::CurDir);
        !Path::new(rest.trim_start_matches('/')).components().any(climbs)
    });
    if is_inside || on_disk().is_ok_and(|draft| environment(&draft).as_deref() == Some(&*path)) {
        return Ok(());
    }
    Err(LoadFailure::Refused(format!(
        "{ENVIRONMENT} '{path}' of the config in a load request is neither in the model's folder \
         ({MODEL_DIRECTORY}/…) nor that of the config on disk"
    )))
}

/// The config file of a model, if it has one.
pub(crate) fn config_file(settings: &Settings, model_dir: &Path) -> Option<PathBuf> {
    let named = settings.config_name.as_ref();
    let named = named.map(|name| model_dir.join(CONFIGS_FOLDER).join(format!("{name}.pbtxt")));
    let usual = model_dir.join(CONFIG_FILE);
    named.into_iter().chain([usual]).find(|path| path.exists())
}

/// What to do about a file that is nearly called as a config, where there is none.
pub(crate) fn misnamed_config(settings: &Settings, model_dir: &Path) -> Option<String> {
    if config_file(settings, model_dir).is_some() {
        return None;
    }
    let is_nearly = |file: &&String| {
        file.starts_with(CONFIG_FILE) || did_you_mean(file, [CONFIG_FILE]).is_some()
    };
    let file = names_in(model_dir).into_iter().filter(|it| is_nearly(&it)).min()?;
    let dir = model_dir.display();
    Some(format!("'{dir}/{file}' is not read: a config is called '{CONFIG_FILE}'."))
}

/// The versions a policy picks of those present; by default the latest one.
fn choose(
    name: &str,
    policy: Option<&ModelVersionPolicy>,
    mut present: BTreeMap<i64, Stamp>,
) -> BTreeMap<i64, Stamp> {
    let keep_latest = |present: &mut BTreeMap<i64, Stamp>, count: usize| {
        while count.max(1) < present.len() {
            present.pop_first();
        }
    };
    match policy.and_then(|policy| policy.policy_choice.as_ref()) {
        None => keep_latest(&mut present, 1),
        Some(PolicyChoice::Latest(latest)) => {
            keep_latest(&mut present, latest.num_versions as usize);
        }
        Some(PolicyChoice::All(_)) => (),
        Some(PolicyChoice::Specific(specific)) => {
            let missing = specific.versions.iter().filter(|version| !present.contains_key(version));
            for version in missing {
                tracing::error!("version {version} is specified for model '{name}', but not found");
            }
            present.retain(|version, _| specific.versions.contains(version));
        }
    }
    present
}

/// Only versions that are named can all be missing.
fn not_picked(policy: Option<&ModelVersionPolicy>, present: &BTreeSet<i64>) -> String {
    let asked = match policy.and_then(|policy| policy.policy_choice.as_ref()) {
        Some(PolicyChoice::Specific(specific)) => &specific.versions[..],
        _ => &[],
    };
    let list = |all: &mut dyn Iterator<Item = &i64>| {
        all.map(i64::to_string).collect::<Vec<_>>().join(", ")
    };
    let (asked, there) = (list(&mut asked.iter()), list(&mut present.iter()));
    format!("version_policy names version {asked}, and there is version {there}")
}

fn overlay(settings: &Settings, overrides: &Overrides) -> Result<Option<Overlay>, LoadFailure> {
    if overrides.files.is_empty() {
        return Ok(None);
    }
    if overrides.config.is_none() {
        let text = "Load parameter 'config' must be specified for model file override";
        return Err(LoadFailure::Refused(text.to_owned()));
    }
    let overlay = Overlay::new(&settings.scratch, &overrides.files);
    overlay.map(Some).map_err(|error| LoadFailure::Refused(error.to_string()))
}

fn read_config(settings: &Settings, model_dir: &Path, name: &str) -> Result<Draft, LoadFailure> {
    let Some(file) = config_file(settings, model_dir) else {
        if let Some(text) = files::dangling(&model_dir.join(CONFIG_FILE)) {
            return Err(unreadable(&model_dir.join(CONFIG_FILE), text));
        }
        if settings.auto_complete {
            let file = model_dir.join(CONFIG_FILE);
            return config::read_text("", &file.to_string_lossy()).map_err(LoadFailure::Unreadable);
        }
        let text = format!("model configuration is not provided for model '{name}'");
        return Err(unreadable(model_dir, text));
    };
    let text = scan::read_text(&file, scan::MAX_CONFIG_BYTES);
    let text = text.map_err(|error| unreadable(&file, error.to_string()))?;
    config::read_text(&text, &file.to_string_lossy()).map_err(LoadFailure::Unreadable)
}

fn is_ensemble(draft: &Draft) -> bool {
    let choice = &draft.proto.scheduling_choice;
    draft.proto.platform == "ensemble"
        || matches!(choice, Some(SchedulingChoice::EnsembleScheduling(_)))
}

fn content(settings: &Settings, draft: Draft) -> Result<Content, LoadFailure> {
    if !is_ensemble(&draft) {
        return Ok(Content::Single(Box::new(draft)));
    }
    let config = draft.finish(&settings.config).map_err(LoadFailure::Unreadable)?;
    let steps = config.ensemble.iter().flat_map(|ensemble| &ensemble.steps);
    let required = steps
        .map(|step| RequiredModel { model: step.model.as_str().into(), version: step.version });
    let required = required.collect();
    Ok(Content::Ensemble(Arc::new(config), required))
}

/// Triton's text for a model whose policy picks no version, and what to do about it.
pub(crate) fn no_version(definition: &Definition) -> String {
    let Definition { name, model_dir, .. } = definition;
    let text = format!("{NO_VERSION} under the version policy of model '{name}'");
    let folder = model_dir.join("1");
    if let Some(link) = files::dangling(&folder) {
        return format!("{text}: {link}");
    }
    if !definition.present.is_empty() {
        let policy = match &definition.content {
            Content::Single(draft) => draft.proto.version_policy.as_ref(),
            Content::Ensemble(config, _) => config.proto.version_policy.as_ref(),
        };
        return format!("{text}: {}", not_picked(policy, &definition.present));
    }
    if let Some(hint) = misplaced(model_dir) {
        return format!("{text}. {hint}");
    }
    let folder = folder.display();
    match &definition.content {
        Content::Ensemble(..) => {
            format!("{text}: make the folder '{folder}', with a file .gitkeep in it for git")
        }
        Content::Single(draft) => {
            let file = match &*draft.proto.default_model_filename {
                "" => "the model's file",
                file => file,
            };
            format!("{text}: make the folder '{folder}' and put {file} into it")
        }
    }
}

fn unreadable(path: &Path, text: String) -> LoadFailure {
    let source_map = SourceMap::whole_file(&path.to_string_lossy());
    LoadFailure::Unreadable(vec![source_map.problem("", text)])
}

fn texts(problems: &[Problem]) -> String {
    config::join_texts(problems.iter().map(|it| it.text.clone()))
}

//! Reads what a model is made of: its config, and the versions to serve.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Overrides, Settings,
    graph::Needed,
    node::Failure,
    overlay::Overlay,
    scan::{self, Folders, Stamp},
};
use troupe_base::config::{self, Draft, ModelConfig, Problem, SourceMap};
use troupe_proto::inference::{
    ModelVersionPolicy, model_config::SchedulingChoice, model_version_policy::PolicyChoice,
};

/// One model as it was found at one moment.
pub(super) struct Definition {
    /// The model's name.
    pub(super) name: Arc<str>,
    /// Has a folder for each version.
    pub(super) model_dir: PathBuf,
    /// Came with a load request, at least in part.
    pub(super) is_override: bool,
    /// Of everything but the versions.
    pub(super) stamp: Stamp,
    /// The versions its policy picks.
    pub(super) versions: BTreeMap<i64, Stamp>,
    /// Its config.
    pub(super) content: Content,
    /// Held as long as somebody may read the folder.
    _overlay: Option<Overlay>,
}

/// A config, as far as it is known without loading the model.
pub(super) enum Content {
    /// What its backend may complete.
    Single(Box<Draft>),
    /// Checked in itself, and the models it needs.
    Ensemble(Arc<ModelConfig>, Vec<Needed>),
}

impl Definition {
    /// The models it needs; none unless it is an ensemble.
    pub(super) fn needed(&self) -> &[Needed] {
        match &self.content {
            Content::Single(_) => &[],
            Content::Ensemble(_, needed) => needed,
        }
    }
}

/// Reads one model. Blocks.
pub(super) fn read(
    settings: &Settings,
    folders: &Folders,
    name: &Arc<str>,
    overrides: &Overrides,
) -> Result<Definition, Failure> {
    let overlay = overlay(settings, overrides)?;
    let model_dir = match (&overlay, folders.get(name).map(Vec::as_slice)) {
        (Some(overlay), _) => overlay.model_dir(),
        (None, Some([folder])) => folder.clone(),
        (None, Some([_, _, ..])) => return Err(Failure::Duplicate),
        (None, _) => return Err(Failure::Missing),
    };
    // Taken first, so that what is written while we read counts as a change.
    let mut stamp = scan::common_stamp(&model_dir);
    let present = scan::versions(&model_dir);
    let present = present.map_err(|it| unreadable(&model_dir, format!("failed to read: {it}")))?;
    let mut draft = match &overrides.config {
        Some(json) => {
            let mut hasher = DefaultHasher::new();
            (stamp, json).hash(&mut hasher);
            stamp = hasher.finish();
            config::read_json(json, "config").map_err(|it| Failure::Refused(texts(&it)))?
        }
        None => written(settings, &model_dir, name)?,
    };
    let versions = choose(name, draft.proto.version_policy.as_ref(), present);
    let files = versions.keys().next_back().map(|it| files(&model_dir.join(it.to_string())));
    let files = files.unwrap_or_default();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    draft.complete_from_directory(name, &files).map_err(Failure::Unreadable)?;
    Ok(Definition {
        name: name.clone(),
        model_dir,
        is_override: overrides.config.is_some(),
        stamp,
        versions,
        content: content(settings, draft)?,
        _overlay: overlay,
    })
}

/// The config file of a model, if it has one.
pub(super) fn config_file(settings: &Settings, model_dir: &Path) -> Option<PathBuf> {
    let named = settings.config_name.as_ref();
    let named = named.map(|it| model_dir.join("configs").join(format!("{it}.pbtxt")));
    let usual = model_dir.join("config.pbtxt");
    named.into_iter().chain([usual]).find(|it| it.exists())
}

/// The names in one version's folder: they tell which backend runs it.
pub(super) fn files(version_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(version_dir).into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().into_string().ok()).collect()
}

/// The versions a policy picks of those present; by default the latest one.
pub(super) fn choose(
    name: &str,
    policy: Option<&ModelVersionPolicy>,
    mut present: BTreeMap<i64, Stamp>,
) -> BTreeMap<i64, Stamp> {
    let keep_latest = |present: &mut BTreeMap<i64, Stamp>, count: usize| {
        while count.max(1) < present.len() {
            present.pop_first();
        }
    };
    match policy.and_then(|it| it.policy_choice.as_ref()) {
        None => keep_latest(&mut present, 1),
        Some(PolicyChoice::Latest(latest)) => {
            keep_latest(&mut present, latest.num_versions as usize);
        }
        Some(PolicyChoice::All(_)) => (),
        Some(PolicyChoice::Specific(specific)) => {
            for version in specific.versions.iter().filter(|it| !present.contains_key(it)) {
                tracing::error!("version {version} is specified for model '{name}', but not found");
            }
            present.retain(|it, _| specific.versions.contains(it));
        }
    }
    present
}

fn overlay(settings: &Settings, overrides: &Overrides) -> Result<Option<Overlay>, Failure> {
    if overrides.files.is_empty() {
        return Ok(None);
    }
    if overrides.config.is_none() {
        let text = "Load parameter 'config' must be specified for model file override";
        return Err(Failure::Refused(text.to_owned()));
    }
    let overlay = Overlay::new(&settings.scratch, &overrides.files);
    overlay.map(Some).map_err(|it| Failure::Refused(it.to_string()))
}

fn written(settings: &Settings, model_dir: &Path, name: &str) -> Result<Draft, Failure> {
    let Some(file) = config_file(settings, model_dir) else {
        if settings.auto_complete {
            let file = model_dir.join("config.pbtxt");
            return config::read_text("", &file.to_string_lossy()).map_err(Failure::Unreadable);
        }
        let text = format!("model configuration is not provided for model '{name}'");
        return Err(unreadable(model_dir, text));
    };
    let text = scan::read_text(&file, scan::CONFIG_LIMIT);
    let text = text.map_err(|it| unreadable(&file, it.to_string()))?;
    config::read_text(&text, &file.to_string_lossy()).map_err(Failure::Unreadable)
}

fn content(settings: &Settings, draft: Draft) -> Result<Content, Failure> {
    let choice = &draft.proto.scheduling_choice;
    let is_ensemble = draft.proto.platform == "ensemble"
        || matches!(choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if !is_ensemble {
        return Ok(Content::Single(Box::new(draft)));
    }
    let config = draft.finish(&settings.config).map_err(Failure::Unreadable)?;
    let steps = config.ensemble.iter().flat_map(|it| &it.steps);
    let needed = steps.map(|it| Needed { model: it.model.as_str().into(), version: it.version });
    let needed = needed.collect();
    Ok(Content::Ensemble(Arc::new(config), needed))
}

fn unreadable(place: &Path, text: String) -> Failure {
    let places = SourceMap::whole_file(&place.to_string_lossy());
    Failure::Unreadable(vec![places.problem("", text)])
}

fn texts(problems: &[Problem]) -> String {
    problems.iter().map(|it| it.text.as_str()).collect::<Vec<_>>().join("; ")
}

//! The ensembles that serve, and whether they could still be made once models they run are replaced:
//! it is decided before anything is replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::task::spawn_blocking;

use super::{
    open::completed_ensemble,
    record::{ModelRecord, Records},
    requirements::StepStatus,
    versions::{LoadContext, StepModels, StepsByName, unmet_steps, version_of},
};
use crate::{
    Overrides,
    disk::{
        definition::{self, Content, Definition, RequiredModel, no_version},
        snapshot::DiskSnapshot,
    },
    failure::LoadFailure,
    graph::DependencyGraph,
};
use troupe_base::config::{ModelConfig, Problem, join_texts};
use troupe_engine::ensemble;

/// What has been decided of models that are open and not in place yet.
#[derive(Default)]
pub(super) struct Judgement {
    /// Those that stay as they were, and which ensemble forbids what.
    pub(super) refused: BTreeMap<Arc<str>, String>,
    /// Ensembles that fit once they are read again, too.
    pub(super) reread: BTreeMap<Arc<str>, Arc<Definition>>,
}

/// Models that ensembles run which serve right now, over any number of ensembles.
pub(super) fn guarded(records: &Records, graph: &DependencyGraph) -> BTreeSet<Arc<str>> {
    let mut found = BTreeSet::new();
    let serving = records.iter().filter(|(_, record)| record.running().next().is_some());
    let mut next: Vec<Arc<str>> = serving.map(|(name, _)| name.clone()).collect();
    while let Some(name) = next.pop() {
        for step in runs(&name, records, graph) {
            if found.insert(step.clone()) {
                next.push(step);
            }
        }
    }
    found
}

/// The models that an ensemble runs, now or next.
fn runs(name: &Arc<str>, records: &Records, graph: &DependencyGraph) -> BTreeSet<Arc<str>> {
    let running = records.get(name).into_iter().flat_map(ModelRecord::running);
    graph.steps(name).into_iter().chain(running).collect()
}

/// What dependents are judged by.
pub(super) struct Dependents<'a> {
    pub(super) context: &'a LoadContext,
    pub(super) records: &'a Records,
    pub(super) snapshot: &'a DiskSnapshot,
    pub(super) graph: &'a DependencyGraph,
    /// All models as they serve.
    pub(super) served: &'a StepsByName,
}

/// A model as its ensembles would see it.
#[derive(Clone)]
struct Expected {
    status: StepStatus,
    configs: BTreeMap<i64, Arc<ModelConfig>>,
}

impl From<&StepModels> for Expected {
    fn from(step: &StepModels) -> Expected {
        let configs = step.models.iter().map(|(number, it)| (*number, it.config.clone()));
        Expected { status: step.status.clone(), configs: configs.collect() }
    }
}

/// The reason for those who replace a model that these ensembles, each with why, forbid.
fn refusal(dependents: &[(&Arc<str>, &String)], is_watched: bool) -> String {
    let would_not = dependents.iter().map(|(name, why)| {
        format!("ensemble '{name}', which serves, would not work with it: {why}")
    });
    let would_not = join_texts(would_not);
    let names: Vec<_> = dependents.iter().map(|(name, _)| format!("'{name}'")).collect();
    let names = names.join(", ");
    let (its, them, it) = match dependents {
        [_] => ("its", &*names, "it"),
        _ => ("their", "them", "them"),
    };
    let how = match is_watched {
        true => ": they are loaded together once all of them are saved".to_owned(),
        false => format!(" and load {them}, which also loads those; or unload {it} first"),
    };
    format!("{would_not}. Change {names} or {its} other models to fit{how}")
}

impl Dependents<'_> {
    /// Decides which of the models that are to be replaced may be, given what they would be.
    pub(super) async fn judge(&self, mut replaced: StepsByName) -> Judgement {
        let mut refused = BTreeMap::<Arc<str>, String>::new();
        loop {
            let (broken, reread) = self.broken(&replaced).await;
            let mut culprits = BTreeMap::<_, Vec<_>>::new();
            for dependent in &broken {
                for name in self.upstream(dependent.0).filter(|it| replaced.contains_key(it)) {
                    culprits.entry(name).or_default().push(dependent);
                }
            }
            if culprits.is_empty() {
                return Judgement { refused, reread };
            }
            for (name, dependents) in culprits {
                replaced.remove(&name);
                refused.insert(name, refusal(&dependents, self.context.settings.watch));
            }
        }
    }

    /// Ensembles that serve and could not be made, with the reason, and those that could be as they
    /// are on disk now.
    async fn broken(
        &self,
        replaced: &StepsByName,
    ) -> (BTreeMap<Arc<str>, String>, BTreeMap<Arc<str>, Arc<Definition>>) {
        let expected = self.served.iter().chain(replaced);
        let mut expected: BTreeMap<Arc<str>, Expected> =
            expected.map(|(name, step)| (name.clone(), step.into())).collect();
        let (mut broken, mut reread) = (BTreeMap::new(), BTreeMap::new());
        for name in self.graph.order() {
            let serving = self
                .records
                .get(&name)
                .filter(|it| it.is_wanted() && it.running().next().is_some());
            let Some(record) = serving.filter(|_| !replaced.contains_key(&name)) else { continue };
            if !self.upstream(&name).any(|it| replaced.contains_key(&it)) {
                continue;
            }
            let (definition, is_read) = match self.snapshot.definitions.get(&name) {
                Some(Ok(definition)) => (definition.clone(), true),
                // Nothing is done about an ensemble without a folder.
                Some(Err(LoadFailure::Missing)) => continue,
                Some(Err(failure)) => {
                    broken.insert(name, failure.reason());
                    continue;
                }
                None => match &record.definition {
                    Some(definition) => (definition.clone(), false),
                    None => continue,
                },
            };
            let mut preview = self.preview(&definition, &expected).await;
            if preview.is_err()
                && !is_read
                && let Some(found) = self.changed(&name, &definition).await
                && let Ok(fits) = self.preview(&found, &expected).await
            {
                preview = Ok(fits);
                reread.insert(name.clone(), found);
            }
            match preview {
                Ok(fits) => {
                    expected.insert(name, fits);
                }
                Err(problems) => {
                    broken.insert(name, join_texts(problems.into_iter()));
                }
            }
        }
        (broken, reread)
    }

    /// What an ensemble would be, or why it would not.
    async fn preview(
        &self,
        definition: &Definition,
        steps: &BTreeMap<Arc<str>, Expected>,
    ) -> Result<Expected, Vec<String>> {
        let Content::Ensemble(config, required) = &definition.content else {
            return Err(vec!["it is no ensemble any more".to_owned()]);
        };
        if definition.versions.is_empty() {
            return Err(vec![no_version(definition)]);
        }
        let status_of =
            |name: &str| steps.get(name).map_or(StepStatus::Missing, |it| it.status.clone());
        unmet_steps(self.context, definition, config, &status_of)?;
        let config_of = |it: &RequiredModel| version_of(&steps.get(&it.model)?.configs, it.version);
        let models: Vec<Arc<ModelConfig>> =
            required.iter().filter_map(config_of).cloned().collect();
        let settings = self.context.settings.clone();
        let config =
            completed_ensemble(settings, definition, config.clone(), models.clone()).await?;
        let models: Vec<_> = models.iter().map(|it| Some(&**it)).collect();
        let problems: Vec<Problem> = match &config.ensemble {
            Some(steps) => ensemble::check(&config, steps, &models),
            None => Vec::new(),
        };
        if !problems.is_empty() {
            return Err(problems.iter().map(Problem::message).collect());
        }
        let versions = definition.versions.keys();
        let configs: BTreeMap<_, _> = versions.map(|it| (*it, config.clone())).collect();
        Ok(Expected { status: StepStatus::Loaded(configs.keys().copied().collect()), configs })
    }

    /// The ensemble as it is on disk, if it was changed since it was read and runs nothing that
    /// this operation has not been through.
    async fn changed(&self, name: &Arc<str>, known: &Definition) -> Option<Arc<Definition>> {
        if known.is_override {
            return None;
        }
        let (settings, folders) = (self.context.settings.clone(), self.snapshot.folders.clone());
        let (name, asked) = (name.clone(), name.clone());
        let read = move || definition::read(&settings, &folders, &asked, &Overrides::default());
        let found = spawn_blocking(read).await.ok()?.ok()?;
        let is_changed = found.stamp != known.stamp || found.versions != known.versions;
        let steps = self.graph.steps(&name);
        let is_through = |step: &Arc<str>| {
            let record = self.records.get(step);
            steps.contains(step) || record.is_some_and(|it| it.required().is_empty())
        };
        let is_in_reach = found.required().iter().all(|it| is_through(&it.model));
        (is_changed && is_in_reach).then(|| Arc::new(found))
    }

    /// What a model runs, over any number of ensembles.
    fn upstream(&self, name: &Arc<str>) -> impl Iterator<Item = Arc<str>> + use<> {
        let mut found = BTreeSet::new();
        let mut next = vec![name.clone()];
        while let Some(name) = next.pop() {
            let steps = runs(&name, self.records, self.graph);
            next.extend(steps.into_iter().filter(|step| found.insert(step.clone())));
        }
        found.into_iter()
    }
}

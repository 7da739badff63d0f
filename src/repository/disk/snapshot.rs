//! Reads everything a load or unload is about from disk: its models, and those their ensembles run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    definition::{self, Definition},
    scan::{self, Folders},
};
use crate::{Overrides, Settings, action::Action, failure::LoadFailure};

/// Definitions that came with load requests; they stay until a load says otherwise.
pub(crate) type OverrideDefinitions = BTreeMap<Arc<str>, Arc<Definition>>;

/// What was on disk at one moment; nothing has been changed yet.
#[derive(Default)]
pub(crate) struct DiskSnapshot {
    /// All model folders.
    pub(crate) folders: Arc<Folders>,
    /// Repositories that cannot be read.
    pub(crate) problems: Arc<[String]>,
    /// What was asked for.
    pub(crate) targets: BTreeSet<Arc<str>>,
    /// The targets of a load, and the models they run.
    pub(crate) definitions: BTreeMap<Arc<str>, Result<Arc<Definition>, LoadFailure>>,
    /// Steps that are left as they are: their files came with a load request.
    pub(crate) kept: BTreeSet<Arc<str>>,
}

/// The folders of all repositories, which operations that wait at the same time share.
#[derive(Clone)]
pub(crate) struct FolderScan {
    folders: Arc<Folders>,
    problems: Arc<[String]>,
}

impl FolderScan {
    /// Blocks.
    pub(crate) fn read(settings: &Settings) -> FolderScan {
        let (folders, problems) = scan::folders(&settings.repositories);
        FolderScan { folders: folders.into(), problems: problems.into() }
    }
}

impl DiskSnapshot {
    /// Reads what `action` is about. Blocks.
    pub(crate) fn read(
        settings: &Settings,
        FolderScan { folders, problems }: FolderScan,
        action: &Action,
        overridden: &OverrideDefinitions,
    ) -> DiskSnapshot {
        let mut snapshot = DiskSnapshot { folders, problems, ..DiskSnapshot::default() };
        let mut next: Vec<(Arc<str>, Overrides)> = match action {
            Action::LoadAll => {
                let names = snapshot.folders.keys();
                names.map(|name| (name.clone(), Overrides::default())).collect()
            }
            Action::Load(models) => models.clone(),
            Action::Refresh(names) => {
                names.iter().map(|name| (name.clone(), Overrides::default())).collect()
            }
            Action::Unload { name, .. } => {
                snapshot.targets.insert(name.clone());
                return snapshot;
            }
        };
        snapshot.targets = next.iter().map(|(name, _)| name.clone()).collect();
        while let Some((name, overrides)) = next.pop() {
            if snapshot.definitions.contains_key(&name) || snapshot.kept.contains(&name) {
                continue;
            }
            let is_step = !snapshot.targets.contains(&name);
            let definition = match overridden.get(&name).filter(|_| is_step) {
                Some(definition) => {
                    snapshot.kept.insert(name);
                    Ok(definition.clone())
                }
                None => {
                    let read = definition::read(settings, &snapshot.folders, &name, &overrides);
                    let read = read.map(Arc::new);
                    snapshot.definitions.insert(name, read.clone());
                    read
                }
            };
            let steps = definition.iter().flat_map(|definition| definition.required());
            next.extend(steps.map(|step| (step.model.clone(), Overrides::default())));
        }
        snapshot
    }
}

//! Watches the folders of models, and loads again what has changed: `--watch`.
//!
//! It looks at the files every now and then instead of being told by the kernel: that also works
//! for mounted folders of containers and networks, and needs none of the user's inotify watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use actix::WeakAddr;
use arc_swap::ArcSwap;
use tokio::{task::spawn_blocking, time::sleep};

use super::{
    Catalog, ControlMode, Overrides, Settings,
    action::Action,
    actor::RepositoryActor,
    control::{ClientControl, RepositoryClient},
    disk::scan::{self, Written},
    failure::LoadFailure,
};

/// Between two looks. What two looks see alike is not being written any more.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Looking takes at most one part in so many of the time, however many files there are.
const LOOK_SHARE: u32 = 20;
/// Files named in a line of the log.
const MAX_NAMED_FILES: usize = 3;
/// What people write. Other files that change while their model loads were written by the model.
const SOURCES: [&str; 5] = ["py", "pbtxt", "txt", "onnx", "json"];

/// The files of each model, and when they were written.
pub(super) type WatchedFiles = BTreeMap<Arc<str>, BTreeMap<PathBuf, Written>>;

/// Reads the folders. Blocks.
pub(super) fn look(settings: &Settings) -> WatchedFiles {
    scan::files_of_models(&settings.repositories)
}

fn dangling_links(settings: &Settings) -> BTreeSet<String> {
    settings.repositories.iter().flat_map(|it| scan::dangling_links(it)).collect()
}

/// A repository that is watched; it may end meanwhile.
pub(super) struct Watch {
    settings: Arc<Settings>,
    actor: WeakAddr<RepositoryActor>,
    catalog: Weak<ArcSwap<Catalog>>,
    /// What has been loaded.
    known: WatchedFiles,
    /// Models that ensembles would not work with, unless others change, too.
    unfit: BTreeSet<Arc<str>>,
    /// Links among the folders of models that lead nowhere, and were told of.
    dangling: BTreeSet<String>,
}

/// What became of one model's files.
#[derive(Debug, PartialEq)]
enum Change {
    Added,
    /// Which files.
    Changed(Vec<PathBuf>),
    Removed,
}

impl Watch {
    /// `known` is what was there before the first load.
    pub(super) fn new(
        client: &RepositoryClient,
        settings: Arc<Settings>,
        known: WatchedFiles,
    ) -> Watch {
        let (actor, catalog) = (client.actor.downgrade(), Arc::downgrade(&client.catalog));
        let (unfit, dangling) = (BTreeSet::new(), dangling_links(&settings));
        Watch { settings, actor, catalog, known, unfit, dangling }
    }

    /// Loads what changes, until the repository ends.
    pub(super) async fn run(mut self) {
        let begin = self.look().await;
        let mut last = absorb(&mut self.known, begin);
        let mut interval = LOOK_INTERVAL;
        loop {
            sleep(interval).await;
            let begun = Instant::now();
            let now = self.look().await;
            interval = LOOK_INTERVAL.max(begun.elapsed() * LOOK_SHARE);
            if now != last {
                last = now;
                continue;
            }
            if now == self.known {
                if self.client().is_none() {
                    return;
                }
                continue;
            }
            let changes = changes(&self.known, &now);
            self.known = now;
            if self.apply(changes).await.is_none() {
                return;
            }
            let after = self.look().await;
            last = absorb(&mut self.known, after);
        }
    }

    async fn look(&mut self) -> WatchedFiles {
        let settings = self.settings.clone();
        let found = spawn_blocking(move || (look(&settings), dangling_links(&settings))).await;
        // It only fails if it panics; then nothing has changed.
        let Ok((files, dangling)) = found else { return self.known.clone() };
        for link in dangling.difference(&self.dangling) {
            tracing::warn!("ignore model directory: {link}");
        }
        self.dangling = dangling;
        files
    }

    fn client(&self) -> Option<RepositoryClient> {
        let actor = self.actor.upgrade().filter(|it| it.connected())?;
        let catalog = self.catalog.upgrade()?;
        let control = ClientControl::from(&*self.settings);
        Some(RepositoryClient { actor, control, catalog, within: None })
    }

    /// `None`: the repository has ended.
    async fn apply(&mut self, changes: BTreeMap<Arc<str>, Change>) -> Option<()> {
        let client = self.client()?;
        let loads_all = self.settings.mode == ControlMode::None;
        let (mut added, mut changed, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        for (name, change) in changes {
            match change {
                Change::Added if loads_all => {
                    tracing::info!("`{name}` is new");
                    added.push((name, Overrides::default()));
                }
                Change::Removed if loads_all => {
                    tracing::info!("the folder of `{name}` is gone");
                    removed.push(name);
                }
                Change::Changed(files) => {
                    tracing::info!("`{name}` has changed: {}", named(&files));
                    changed.push(name);
                }
                // In explicit mode clients say which models there are.
                Change::Added | Change::Removed => (),
            }
        }
        if !added.is_empty() {
            client.run(Action::Load(added)).await.ok()?;
        }
        if !changed.is_empty() {
            self.refresh(&client, changed).await?;
        }
        // Last: ensembles that ran them may have changed, too.
        let has_removed = !removed.is_empty();
        for name in removed {
            client.run(Action::Unload { name, dependents: false }).await.ok()?;
        }
        if has_removed && !self.unfit.is_empty() {
            self.refresh(&client, Vec::new()).await?;
        }
        Some(())
    }

    /// Loads what has changed, with what did not fit before: who edits several models saves one
    /// after the other. `None`: the repository has ended.
    async fn refresh(&mut self, client: &RepositoryClient, changed: Vec<Arc<str>>) -> Option<()> {
        let mut names = std::mem::take(&mut self.unfit);
        names.extend(changed);
        let outcome = client.run(Action::Refresh(names.into_iter().collect())).await.ok()?;
        for (name, result) in &outcome.results {
            if result.is_err() && client.catalog.load().get(name, None).is_ok() {
                tracing::warn!("`{name}` goes on as it was loaded before");
            }
            if let Err(LoadFailure::Unfit(_)) = result {
                self.unfit.insert(name.clone());
            }
        }
        Some(())
    }
}

/// Takes over what models wrote while they loaded; what people write meanwhile is a change still.
fn absorb(known: &mut WatchedFiles, now: WatchedFiles) -> WatchedFiles {
    let is_source = |path: &Path| {
        let ending = path.extension().and_then(|it| it.to_str());
        ending.is_some_and(|ending| SOURCES.contains(&ending))
    };
    for (name, files) in known {
        let Some(found) = now.get(name) else { continue };
        let written = found.iter().filter(|(path, _)| !is_source(path));
        let written: Vec<_> = written.map(|(path, written)| (path.clone(), *written)).collect();
        files.retain(|path, _| is_source(path));
        files.extend(written);
    }
    now
}

fn changes(before: &WatchedFiles, now: &WatchedFiles) -> BTreeMap<Arc<str>, Change> {
    let mut changes = BTreeMap::new();
    for (name, files) in now {
        let change = match before.get(name) {
            None => Change::Added,
            Some(known) if known == files => continue,
            Some(known) => Change::Changed(differing(known, files)),
        };
        changes.insert(name.clone(), change);
    }
    let removed = before.keys().filter(|name| !now.contains_key(*name));
    changes.extend(removed.map(|name| (name.clone(), Change::Removed)));
    changes
}

fn differing(
    before: &BTreeMap<PathBuf, Written>,
    now: &BTreeMap<PathBuf, Written>,
) -> Vec<PathBuf> {
    let is_new = |path: &&PathBuf| before.get(*path) != now.get(*path);
    let gone = before.keys().filter(|path| !now.contains_key(*path));
    now.keys().filter(is_new).chain(gone).cloned().collect()
}

/// `a, b, c and 2 more`
fn named(files: &[PathBuf]) -> String {
    let shown = files.iter().take(MAX_NAMED_FILES).map(|it| it.display().to_string());
    let shown = shown.collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(MAX_NAMED_FILES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a/1/model.py=1 a/config.pbtxt=2`
    fn files(text: &str) -> WatchedFiles {
        let mut all = WatchedFiles::new();
        for word in text.split_whitespace() {
            let (path, time) = word.split_once('=').unwrap();
            let (name, file) = path.split_once('/').unwrap();
            let modified_nanos = time.parse().unwrap();
            let written = Written { modified_nanos, ..Written::default() };
            all.entry(name.into()).or_default().insert(file.into(), written);
        }
        all
    }

    #[test]
    fn changes_are_told_by_model_and_file() {
        let before = files("a/1/model.py=1 a/config.pbtxt=1 b/1/model.py=1 c/config.pbtxt=1");
        let now = files("a/1/model.py=2 a/1/helper.py=1 b/1/model.py=1 d/1/model.onnx=1");
        let found = changes(&before, &now);
        let changed = ["1/helper.py", "1/model.py", "config.pbtxt"].map(PathBuf::from).to_vec();
        assert_eq!(found.get("a"), Some(&Change::Changed(changed)));
        assert_eq!(found.get("b"), None);
        assert_eq!(found.get("c"), Some(&Change::Removed));
        assert_eq!(found.get("d"), Some(&Change::Added));
        let files = ["a", "b", "c", "d", "e"].map(PathBuf::from);
        assert_eq!(named(&files), "a, b, c and 2 more");
    }

    #[test]
    fn what_a_model_writes_while_it_loads_is_no_change_but_what_people_write_is() {
        let mut known = files("a/1/model.py=1 a/1/old.bin=1");
        let now = files("a/1/model.py=2 a/1/weights.bin=2");
        let last = absorb(&mut known, now.clone());
        assert_eq!(last, now);
        let model = vec![PathBuf::from("1/model.py")];
        assert_eq!(changes(&known, &now), [("a".into(), Change::Changed(model))].into());
    }
}

//! Runs one operation over the models it has locked: each model is reconciled after its steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};

use super::{
    demand,
    dependents::{self, Dependents, Judgement},
    reconcile::{ReconcileInput, ReconcileOutcome, Replacement, Turn, reconcile},
    record::{ModelRecord, Records},
    versions::{LoadContext, StepModels},
};
use crate::{
    action::Action,
    disk::{definition::Definition, snapshot::DiskSnapshot},
    failure::LoadFailure,
    graph::DependencyGraph,
};
use troupe_base::{failure_log::on_one_line, model::Model};

/// How each of the models an operation was about ended.
pub(crate) type Results = BTreeMap<Arc<str>, Result<(), LoadFailure>>;

/// Every model the operation may touch, given those nobody else is working on.
pub(crate) fn scope(snapshot: &DiskSnapshot, records: &Records) -> BTreeSet<Arc<str>> {
    let mut touched = snapshot.targets.clone();
    touched.extend(snapshot.definitions.keys().cloned());
    touched.extend(snapshot.kept.iter().cloned());
    let steps = |name: &Arc<str>| {
        let (found, record) = (snapshot.definitions.get(name), records.get(name));
        let next = found.and_then(|found| found.as_ref().ok());
        let next = next.into_iter().flat_map(|definition| definition.required());
        let known = record.into_iter().flat_map(ModelRecord::required);
        let mut models: Vec<_> = next.chain(known).map(|step| step.model.clone()).collect();
        models.extend(record.into_iter().flat_map(ModelRecord::running));
        models
    };
    let names: BTreeSet<_> = records.keys().chain(snapshot.definitions.keys()).collect();
    DependencyGraph::new(names.into_iter().map(|name| (name.clone(), steps(name))))
        .related(&touched)
}

/// Does what `action` asks with `records`, which nobody else touches meanwhile.
pub(crate) async fn run(
    context: &LoadContext,
    mut records: Records,
    mut snapshot: DiskSnapshot,
    action: &Action,
) -> (Records, Results) {
    keep_overrides(&mut snapshot, &records);
    for name in snapshot.definitions.keys() {
        records.entry(name.clone()).or_default();
    }
    let graph = graph(&records, &snapshot);
    demand::update(&mut records, &graph, &snapshot, action);
    show_loading(context, &records, &snapshot);
    let mut operation = Operation {
        cycles: graph.cycles(),
        guarded: dependents::guarded(&records, &graph),
        opened: BTreeMap::new(),
        served: records
            .iter()
            .map(|(name, record)| (name.clone(), StepModels::of(record)))
            .collect(),
        waiting: BTreeMap::new(),
        progress: LoadProgress { done: 0, total: snapshot.definitions.len() },
        results: Results::new(),
        unloaded: Vec::new(),
        graph,
    };
    let mut working = FuturesUnordered::new();
    let mut ready: Vec<Arc<str>> = operation.start(&records);
    loop {
        for name in std::mem::take(&mut ready) {
            let Some(record) = records.remove(&name) else { continue };
            let found = snapshot.definitions.remove(&name);
            working.push(operation.reconcile(context, name, record, found));
        }
        match working.next().await {
            Some((name, record, Turn::Done(outcome))) => {
                ready = operation.reconciled(&name, &record, outcome);
                records.insert(name, record);
            }
            Some((name, record, Turn::Opened(replacement))) => {
                records.insert(name.clone(), record);
                operation.opened.insert(name, *replacement);
            }
            None if operation.opened.is_empty() => break,
            None => ready = operation.decide(context, &mut records, &mut snapshot).await,
        }
    }
    let Operation { results, unloaded, .. } = operation;
    for (name, number, model) in unloaded {
        context.publisher.show_unloading(&name, number, model);
    }
    // What cannot be read right now is not gone.
    if snapshot.problems.is_empty() {
        context.publisher.show_folders(&snapshot.folders);
    }
    (records, results)
}

/// Shows what will be loaded, also ensembles whose turn is late.
fn show_loading(context: &LoadContext, records: &Records, snapshot: &DiskSnapshot) {
    let is_wanted = |name: &Arc<str>| records.get(name).is_some_and(ModelRecord::is_wanted);
    let found = snapshot.definitions.iter().filter(|(name, _)| is_wanted(name));
    let found = found.filter_map(|(name, found)| Some((name, found.as_ref().ok()?)));
    let versions = found.flat_map(|(name, it)| it.versions.keys().map(|number| (&**name, *number)));
    context.publisher.show_loading(&versions.collect::<Vec<_>>());
}

/// Steps that a load request brought since the disk was read stay as they are, too.
fn keep_overrides(snapshot: &mut DiskSnapshot, records: &Records) {
    let is_override = |name: &Arc<str>| {
        records.get(name).is_some_and(|record| record.override_definition().is_some())
    };
    let targets = &snapshot.targets;
    snapshot.definitions.retain(|name, _| targets.contains(name) || !is_override(name));
}

/// What needs what, by the newest configs.
fn graph(records: &Records, snapshot: &DiskSnapshot) -> DependencyGraph {
    let steps = |name: &Arc<str>, record: &ModelRecord| -> Vec<Arc<str>> {
        let required = match snapshot.definitions.get(name) {
            Some(Ok(definition)) => definition.required(),
            _ => record.required(),
        };
        required.iter().map(|step| step.model.clone()).collect()
    };
    DependencyGraph::new(records.iter().map(|(name, record)| (name.clone(), steps(name, record))))
}

type Reconciling<'a> = LocalBoxFuture<'a, (Arc<str>, ModelRecord, Turn)>;

/// An operation under way.
struct Operation {
    graph: DependencyGraph,
    cycles: BTreeMap<Arc<str>, String>,
    /// Models that ensembles run which served when it began.
    guarded: BTreeSet<Arc<str>>,
    /// Those of them that are open, and wait for the others to be decided upon together.
    opened: BTreeMap<Arc<str>, Replacement>,
    /// What ensembles see, also of models whose records are being worked on.
    served: BTreeMap<Arc<str>, StepModels>,
    /// Steps each ensemble still waits for.
    waiting: BTreeMap<Arc<str>, usize>,
    progress: LoadProgress,
    results: Results,
    /// Versions that were taken out; requests may still run on them.
    unloaded: Vec<(Arc<str>, i64, Weak<Model>)>,
}

impl Operation {
    /// Models that wait for no other; those of a cycle would wait for ever.
    fn start(&mut self, records: &Records) -> Vec<Arc<str>> {
        let mut ready = Vec::new();
        for name in self.graph.order() {
            let is_known = |step: &Arc<str>| records.contains_key(step);
            let steps = self.graph.steps(&name).iter().filter(|step| is_known(step)).count();
            if steps == 0 || self.cycles.contains_key(&name) {
                ready.push(name);
            } else {
                self.waiting.insert(name, steps);
            }
        }
        ready
    }

    fn reconcile<'a>(
        &self,
        context: &'a LoadContext,
        name: Arc<str>,
        mut record: ModelRecord,
        found: Option<Result<Arc<Definition>, LoadFailure>>,
    ) -> Reconciling<'a> {
        // An ensemble that is read again runs others than the graph knows.
        let read = found.iter().flatten().flat_map(|it| it.required()).map(|it| it.model.clone());
        let steps = self.graph.steps(&name).into_iter().chain(record.running()).chain(read);
        let steps: BTreeSet<_> = steps.collect();
        let served = |step: Arc<str>| {
            let models = self.served.get(&step)?.clone();
            Some((step, models))
        };
        let input = ReconcileInput {
            name: name.clone(),
            found,
            cycle: self.cycles.get(&name).cloned(),
            ensemble: self.graph.only_ensemble(&name),
            steps: steps.into_iter().filter_map(served).collect(),
            is_guarded: self.guarded.contains(&name),
        };
        Box::pin(async move {
            let turn = reconcile(context, input, &mut record).await;
            (name, record, turn)
        })
    }

    /// Puts in place what leaves all ensembles that serve whole, and drops the rest. The ensembles
    /// that waited for the last of these.
    async fn decide(
        &mut self,
        context: &LoadContext,
        records: &mut Records,
        snapshot: &mut DiskSnapshot,
    ) -> Vec<Arc<str>> {
        let opened = std::mem::take(&mut self.opened);
        let previews = opened.iter().filter_map(|(name, replacement)| {
            let preview = replacement.preview(records.get(name)?);
            Some((name.clone(), preview))
        });
        let previews = previews.collect();
        let (graph, served) = (&self.graph, &self.served);
        let dependents = Dependents { context, records, snapshot, graph, served };
        let Judgement { mut refused, reread } = dependents.judge(previews).await;
        self.progress.total += reread.len();
        for (name, definition) in reread {
            tracing::info!("`{name}` has changed, too, and is loaded with the models it runs");
            snapshot.definitions.insert(name, Ok(definition));
        }
        let mut ready = Vec::new();
        for (name, replacement) in opened {
            let Some(record) = records.get_mut(&name) else { continue };
            let outcome = match refused.remove(&name) {
                Some(reason) => replacement.refuse(context, record, reason),
                None => replacement.commit(context, record),
            };
            ready.extend(self.reconciled(&name, record, outcome));
        }
        ready
    }

    /// The ensembles that waited for `name` last.
    fn reconciled(
        &mut self,
        name: &Arc<str>,
        record: &ModelRecord,
        outcome: ReconcileOutcome,
    ) -> Vec<Arc<str>> {
        self.served.insert(name.clone(), StepModels::of(record));
        self.progress.log(name, &outcome);
        let unloaded = outcome.unloaded.into_iter();
        self.unloaded.extend(unloaded.map(|(number, model)| (name.clone(), number, model)));
        self.results.insert(name.clone(), outcome.result);
        let mut ready = Vec::new();
        for ensemble in self.graph.ensembles(name) {
            let Some(steps) = self.waiting.get_mut(&ensemble) else { continue };
            *steps -= 1;
            if *steps == 0 {
                self.waiting.remove(&ensemble);
                ready.push(ensemble);
            }
        }
        ready
    }
}

/// For the log: loading may take minutes.
struct LoadProgress {
    done: usize,
    total: usize,
}

impl LoadProgress {
    fn log(&mut self, name: &str, outcome: &ReconcileOutcome) {
        let count = if outcome.is_read {
            self.done += 1;
            format!(" ({} of {})", self.done, self.total)
        } else {
            String::new()
        };
        let seconds = outcome.begun.elapsed().as_secs_f64();
        match &outcome.result {
            _ if !outcome.is_notable => (),
            Ok(()) if outcome.loaded.is_empty() => (),
            Ok(()) => {
                let versions: Vec<_> = outcome.loaded.iter().map(i64::to_string).collect();
                let versions = versions.join(", ");
                tracing::info!("loaded `{name}` version {versions} in {seconds:.2} s{count}");
            }
            Err(failure @ (LoadFailure::Missing | LoadFailure::Refused(_))) => {
                let reason = on_one_line(&failure.reason());
                tracing::debug!("failed to load `{name}`{count}: {reason}");
            }
            Err(failure) => {
                let reason = failure.reason();
                let reason = on_one_line(reason.trim_end_matches(';'));
                tracing::error!("failed to load `{name}`{count}: {reason}");
            }
        }
    }
}

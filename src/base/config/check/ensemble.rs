//! Checks the steps of an ensemble as they are written, before any model is known.

use std::collections::{BTreeMap, HashMap};

use super::flow::{self, step_path};
use super::report::ConfigReport;
use crate::config::problem::{Problem, SourceMap};
use crate::config::text::MapConflict;
use crate::config::types::{EnsembleConfig, StepConfig};
use troupe_proto::inference::{ModelConfig, ModelEnsembling, model_config::SchedulingChoice};

/// The checked steps, if there are any; problems come in Triton's order.
pub(super) fn check(
    config: &ModelConfig,
    conflicts: &[MapConflict],
    report: &mut ConfigReport<'_>,
) -> Option<EnsembleConfig> {
    let m = report.model;
    let forbidden = [
        ("instance_group", !config.instance_group.is_empty(), "instance group should not"),
        ("optimization", config.optimization.is_some(), "optimization should not"),
        ("batch_input", !config.batch_input.is_empty(), "batch_input can not"),
        ("batch_output", !config.batch_output.is_empty(), "batch_output can not"),
    ];
    for (path, present, text) in forbidden {
        if present {
            report.add(path, format!("{text} be specified for ensemble '{m}'"));
        }
    }
    let Some(SchedulingChoice::EnsembleScheduling(ensembling)) = &config.scheduling_choice else {
        return None;
    };
    if ensembling.step.is_empty() {
        report.add("ensemble_scheduling", format!("must specify 'step' for ensemble '{m}'"));
    }
    let before = report.problems.len();
    complete(ensembling, report);
    let steps = steps(ensembling, report.source_map);
    if report.problems.len() == before && !steps.is_empty() {
        written_once(&steps, report);
        // Where an entry has been lost, every further problem would be a consequence.
        if mapped_once(ensembling, conflicts, report) {
            flow::check(config, &steps, report);
        }
    }
    let max_inflight_requests = ensembling.max_inflight_requests;
    Some(EnsembleConfig { steps, max_inflight_requests })
}

fn complete(ensembling: &ModelEnsembling, report: &mut ConfigReport<'_>) {
    let m = report.model;
    for (index, step) in ensembling.step.iter().enumerate() {
        let required = [
            ("model_name", step.model_name.is_empty()),
            ("input_map", step.input_map.is_empty()),
            ("output_map", step.output_map.is_empty()),
        ];
        for (field, missing) in required {
            if missing {
                let text = format!("must specify '{field}' in step {index} of ensemble '{m}'");
                report.add(&step_path(index), text);
            }
        }
    }
}

fn steps(ensembling: &ModelEnsembling, source_map: &SourceMap) -> Vec<StepConfig> {
    let steps = ensembling.step.iter().enumerate();
    steps
        .map(|(index, step)| StepConfig {
            model: step.model_name.clone(),
            version: step.model_version,
            inputs: in_order(
                &step.input_map,
                &format!("{}.input_map", step_path(index)),
                source_map,
            ),
            outputs: in_order(
                &step.output_map,
                &format!("{}.output_map", step_path(index)),
                source_map,
            ),
        })
        .collect()
}

/// The entries of a map in the order of the file, so that `input_map[0]` is the first one.
fn in_order(
    map: &BTreeMap<String, String>,
    path: &str,
    source_map: &SourceMap,
) -> Vec<(String, String)> {
    let mut entries: Vec<_> = map.iter().map(|(key, it)| (key.clone(), it.clone())).collect();
    entries.sort_by_cached_key(|(key, _)| source_map.position(&format!("{path}[\"{key}\"]")));
    entries
}

fn written_once(steps: &[StepConfig], report: &mut ConfigReport<'_>) {
    let m = report.model;
    let mut written = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        for (entry, (_, tensor)) in step.outputs.iter().enumerate() {
            if let Some(first) = written.insert(tensor, index) {
                let hint = match first == index {
                    true => String::new(),
                    false => {
                        format!(": step {first} (model '{}') writes it, too", steps[first].model)
                    }
                };
                let text = format!(
                    "ensemble tensor '{tensor}' can appear in an output map only once for \
                     ensemble '{m}' step {index}{hint}"
                );
                report.add(&format!("{}.output_map[{entry}]", step_path(index)), text);
            }
        }
    }
}

/// Whether no entry of a map hides another.
///
/// Protobuf would keep the last of two entries and forget the first without a word.
fn mapped_once(
    ensembling: &ModelEnsembling,
    conflicts: &[MapConflict],
    report: &mut ConfigReport<'_>,
) -> bool {
    let m = report.model;
    let mut once = true;
    for (index, step) in ensembling.step.iter().enumerate() {
        let (n, path) = (&step.model_name, step_path(index));
        for MapConflict { map, key, at } in conflicts {
            let kind = match map.strip_prefix(&path) {
                Some(".input_map") => "input",
                Some(".output_map") => "output",
                _ => continue,
            };
            let text = format!(
                "{kind} '{key}' in model '{n}' is mapped to multiple ensemble tensors for \
                 ensemble '{m}' step {index}"
            );
            report.problems.push(Problem { position: report.source_map.at(*at), text });
            once = false;
        }
    }
    once
}

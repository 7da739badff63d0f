//! What an ensemble requires of the models it runs, and why it cannot be made where they lack it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::disk::definition::RequiredModel;
use troupe_base::config::{ModelConfig, Problem, suggesting};

/// What became of a model some ensemble runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StepStatus {
    /// Its loaded versions; never empty.
    Loaded(BTreeSet<i64>),
    /// Not in any repository, or in several.
    Missing,
    /// Its config cannot be used.
    Invalid(String),
    /// Loading failed, or nobody asked for it, or it was unloaded.
    NotLoaded(Option<String>),
}

/// One reason why an ensemble cannot be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnmetRequirement {
    /// Index of the step it is about.
    step: usize,
    /// In Triton's words.
    text: String,
}

impl UnmetRequirement {
    /// With the position where the step was written.
    pub(crate) fn problem(&self, config: &ModelConfig) -> Problem {
        let path = format!("ensemble_scheduling.step[{}].model_name", self.step);
        config.source_map.problem(&path, self.text.as_str())
    }
}

/// Why the ensemble `name` cannot be made of what its steps became; every reason. `known` are the
/// models that a step may have meant.
pub(crate) fn unmet(
    name: &str,
    required: &[RequiredModel],
    known: &[Arc<str>],
    status_of: &dyn Fn(&str) -> StepStatus,
) -> Vec<UnmetRequirement> {
    let mut problems = Vec::new();
    let mut missing = Vec::new();
    for (model, versions) in by_model(required) {
        let step = required.iter().position(|step| step.model == *model).unwrap_or_default();
        let depends = format!("ensemble '{name}' depends on '{model}'");
        let text = match status_of(model) {
            StepStatus::Loaded(loaded) => {
                let lacking =
                    versions.iter().filter(|number| **number != -1 && !loaded.contains(number));
                problems.extend(lacking.map(|version| {
                    let is_it =
                        |step: &RequiredModel| step.model == *model && step.version == *version;
                    let step = required.iter().position(is_it).unwrap_or(step);
                    let text = format!("{depends} whose required version {version} is not loaded.");
                    UnmetRequirement { step, text }
                }));
                continue;
            }
            StepStatus::Missing => {
                missing.push((step, &**model));
                continue;
            }
            StepStatus::Invalid(error) => {
                format!("{depends} which is not valid. Model '{model}' failed with error: {error}")
            }
            StepStatus::NotLoaded(error) => {
                let error = error
                    .map(|error| format!(" Model '{model}' loading failed with error: {error}"));
                format!("{depends} which has no loaded version.{}", error.unwrap_or_default())
            }
        };
        problems.push(UnmetRequirement { step, text });
    }
    if let Some((step, _)) = missing.first() {
        let models: Vec<_> = missing.iter().map(|(_, model)| *model).collect();
        let text = format!(
            "ensemble {name} contains models that are not available or ambiguous: {}",
            models.join(", ")
        );
        let others = || known.iter().map(|it| &**it).filter(|it| !models.contains(it));
        let guess = models.iter().find_map(|model| {
            let told = suggesting(text.clone(), model, others());
            (told != text).then_some(told)
        });
        let is_twice = models.iter().any(|model| known.iter().any(|it| &**it == *model));
        let text = match is_twice {
            true => format!("{text} (a name that several repositories have is ambiguous)"),
            false => guess.unwrap_or(text),
        };
        problems.insert(0, UnmetRequirement { step: *step, text });
    }
    problems
}

fn by_model(required: &[RequiredModel]) -> BTreeMap<&Arc<str>, BTreeSet<i64>> {
    let mut versions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for step in required {
        versions.entry(&step.model).or_default().insert(step.version);
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `b c/2` are the models `b` and version 2 of `c`.
    fn required(steps: &str) -> Vec<RequiredModel> {
        let parse = |step: &str| {
            let (model, version) = step.split_once('/').unwrap_or((step, "-1"));
            RequiredModel { model: model.into(), version: version.parse().unwrap() }
        };
        steps.split_whitespace().map(parse).collect()
    }

    #[test]
    fn every_unmet_requirement_is_reported_in_tritons_words() {
        let status_of = |name: &str| match name {
            "ok" => StepStatus::Loaded([1, 3].into()),
            "bad" => StepStatus::Invalid("no input".into()),
            "broken" => StepStatus::NotLoaded(Some("it raised".into())),
            "idle" => StepStatus::NotLoaded(None),
            _ => StepStatus::Missing,
        };
        let known = ["ok", "broken", "twice"].map(Into::into);
        let check = |line: &str, expected: &[&str]| {
            let (name, steps) = line.split_once(':').unwrap();
            let found = unmet(name, &required(steps), &known, &status_of);
            let found: Vec<_> = found.into_iter().map(|it| it.text).collect();
            assert_eq!(found, expected, "{line}");
        };
        check("e: ok ok/1 ok/3", &[]);
        check("e: ok/2", &["ensemble 'e' depends on 'ok' whose required version 2 is not loaded."]);
        check(
            "e: brokn",
            &[
                "ensemble e contains models that are not available or ambiguous: brokn, did you mean \
                 `broken`?",
            ],
        );
        check(
            "e: twice",
            &[
                "ensemble e contains models that are not available or ambiguous: twice (a name that \
                 several repositories have is ambiguous)",
            ],
        );
        check(
            "e: y idle x y broken bad",
            &[
                "ensemble e contains models that are not available or ambiguous: x, y",
                "ensemble 'e' depends on 'bad' which is not valid. Model 'bad' failed with error: no \
                 input",
                "ensemble 'e' depends on 'broken' which has no loaded version. Model 'broken' \
                 loading failed with error: it raised",
                "ensemble 'e' depends on 'idle' which has no loaded version.",
            ],
        );
    }
}

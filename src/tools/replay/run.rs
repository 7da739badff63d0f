//! Replays one captured request step by step, and compares each tensor with the captured one.

use std::collections::{HashMap, HashSet};

use super::{
    capture::{EdgeTensor, EdgeTensors},
    compare,
    models::{AskFailure, ModelReply, Models},
    report::{Comparison, Kinds, TensorVerdict},
    steps::{self, ScheduledStep},
};
use troupe_base::tap::manifest::{Manifest, ManifestRequest, ManifestStep};

/// A request that runs again.
pub(super) struct RequestReplay<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) request: &'a ManifestRequest,
    pub(super) values: &'a EdgeTensors,
    /// In the order they run.
    pub(super) places: &'a [ScheduledStep],
    /// Each step gets what was captured, not what was made anew.
    pub(super) is_isolated: bool,
    /// What was found.
    pub(super) rows: Vec<Comparison>,
}

/// The tensors written anew that follow from one response of a decoupled step, or from the client's
/// inputs.
type Iteration = HashMap<String, FreshTensor>;

/// What became of a tensor.
enum FreshTensor {
    Is(EdgeTensor),
    /// Its step did not give it.
    Absent,
    /// Its step failed, or could not run.
    Unmade,
}

/// What a step can be asked with.
enum StepInputs {
    Given(Vec<(String, EdgeTensor)>),
    /// A step before it failed.
    Unmade,
    /// The capture does not have them.
    NotCaptured,
}

impl RequestReplay<'_> {
    /// Runs the steps that have their turn; an error is one of the replay, not of a step.
    pub(super) async fn run(&mut self, models: &mut Models) -> Result<(), String> {
        let is_live = steps::live(self.manifest, self.request);
        let places = self.places;
        let mut levels: Vec<Vec<Iteration>> = vec![vec![Iteration::new()]];
        for place in places.iter().filter(|it| is_live[it.index]) {
            let step = &self.manifest.steps[place.index];
            let mut responses = Vec::new();
            let Some(iterations) = levels.get_mut(place.level) else { continue };
            for (number, iteration) in iterations.iter_mut().enumerate().filter(|_| place.runs) {
                let number = (place.level != 0).then_some(number as u64);
                let inputs = self.inputs(step, number, iteration)?;
                let StepInputs::Given(inputs) = inputs else {
                    self.skip(step, number, inputs);
                    unmade(step, iteration);
                    continue;
                };
                let answer = models.infer(step, self.request, inputs).await;
                match self.check(step, number, answer)? {
                    None => unmade(step, iteration),
                    Some(answer) if step.decoupled => {
                        for response in answer.responses {
                            let number = responses.len() as u64;
                            self.compare(step, Some(number), &response, &answer.version);
                            responses.push(fresh(step, response));
                        }
                    }
                    Some(ModelReply { responses, version }) => {
                        for response in responses {
                            self.compare(step, number, &response, &version);
                            iteration.extend(fresh(step, response));
                        }
                    }
                }
            }
            if step.decoupled {
                let captured = self.captured_responses(place);
                if place.runs {
                    self.missing_responses(step, responses.len() as u64);
                }
                if !place.runs || self.is_isolated {
                    responses = std::iter::repeat_with(Iteration::new).take(captured).collect();
                }
                levels.push(responses);
            }
        }
        Ok(())
    }

    fn inputs(
        &self,
        step: &ManifestStep,
        number: Option<u64>,
        iteration: &Iteration,
    ) -> Result<StepInputs, String> {
        let mut given = Vec::new();
        for (input, tensor) in &step.inputs {
            let now = iteration.get(tensor).filter(|_| !self.is_isolated);
            let value = match now {
                Some(FreshTensor::Is(value)) => Some(value),
                Some(FreshTensor::Unmade) => return Ok(StepInputs::Unmade),
                Some(FreshTensor::Absent) => continue,
                None => self.values.get(&(tensor.clone(), number)),
            };
            if let Some(value) = value {
                given.push((input.clone(), value.clone()));
                continue;
            }
            let is_chosen = self.manifest.edges.contains(tensor);
            let why = if self.is_left_out(tensor) {
                "did not fit into the capture"
            } else if !is_chosen {
                "was not to be captured"
            } else if self.is_whole() || self.manifest.inputs.contains(tensor) {
                // Optional, and nobody gave it.
                continue;
            } else {
                return Ok(StepInputs::NotCaptured);
            };
            if self.is_isolated {
                return Ok(StepInputs::NotCaptured);
            }
            return Err(format!(
                "step {} (model '{}') reads '{tensor}', which {why}: replay from an earlier step \
                 (--from), or capture again",
                step.step, step.model
            ));
        }
        Ok(StepInputs::Given(given))
    }

    /// It came to its end without a failure while it was captured.
    fn is_whole(&self) -> bool {
        let ManifestRequest { ended, errors, more_errors, .. } = self.request;
        *ended && errors.is_empty() && *more_errors == 0
    }

    fn is_left_out(&self, tensor: &str) -> bool {
        self.request.left_out.iter().any(|it| it.tensor == tensor)
    }

    /// What a step answered, if it did not fail; its failure is compared here.
    fn check(
        &mut self,
        step: &ManifestStep,
        number: Option<u64>,
        answer: Result<ModelReply, AskFailure>,
    ) -> Result<Option<ModelReply>, String> {
        // A decoupled step's own failures do not say which of its requests failed.
        let is_here = |it: &&_| -> bool {
            let it: &troupe_base::tap::manifest::ManifestFailure = it;
            it.step == step.step && (step.decoupled || it.iteration == number)
        };
        let was: Vec<&str> =
            self.request.errors.iter().filter(is_here).map(|it| &*it.error).collect();
        let text = match answer {
            Ok(answer) => {
                let failed = was.first().filter(|_| !step.decoupled);
                let verdict = failed.map(|it| TensorVerdict::Otherwise(format!("it failed: {it}")));
                if let Some(verdict) = verdict {
                    self.row(step, number, FAILURE, verdict);
                }
                return Ok(Some(answer));
            }
            Err(AskFailure::Model(text)) => text,
            Err(AskFailure::Connection { text, .. }) if was.contains(&&*text) => text,
            Err(AskFailure::Connection { explained, .. }) => {
                return Err(format!("step {} (model '{}'): {explained}", step.step, step.model));
            }
        };
        let verdict = match was.first() {
            _ if was.contains(&&*text) => TensorVerdict::Equal,
            Some(was) => {
                TensorVerdict::Otherwise(format!("it failed: {was}\nnow it fails: {text}"))
            }
            None => TensorVerdict::Otherwise(format!("now it fails: {text}")),
        };
        self.row(step, number, FAILURE, verdict);
        Ok(None)
    }

    /// One row for each tensor of a response.
    fn compare(
        &mut self,
        step: &ManifestStep,
        number: Option<u64>,
        response: &HashMap<String, EdgeTensor>,
        version: &str,
    ) {
        for (_, tensor) in &step.outputs {
            let was = self.values.get(&(tensor.clone(), number)).map(|it| &it.tensor);
            let is = response.get(tensor).map(|it| &it.tensor);
            let is_chosen = self.manifest.edges.contains(tensor) && !self.is_left_out(tensor);
            let verdict = match (was, is) {
                (None, None) => continue,
                (Some(was), Some(is)) => match compare::difference(was, is) {
                    None => TensorVerdict::Equal,
                    Some(difference) => TensorVerdict::Different(difference),
                },
                (Some(_), None) => TensorVerdict::Otherwise("it is not given any more".to_owned()),
                (None, Some(_)) if is_chosen && self.is_whole() => {
                    TensorVerdict::Otherwise("it was not given".to_owned())
                }
                (None, Some(_)) => TensorVerdict::NotCaptured,
            };
            let row = self.row(step, number, tensor, verdict);
            row.kinds = Kinds::of(was, is);
            version.clone_into(&mut row.version_now);
        }
    }

    /// A step that cannot run.
    fn skip(&mut self, step: &ManifestStep, number: Option<u64>, why: StepInputs) {
        for (_, tensor) in &step.outputs {
            // The responses of a decoupled step are looked at when it has run for all.
            let Some(was) = self.values.get(&(tensor.clone(), number)) else { continue };
            let verdict = match why {
                StepInputs::NotCaptured => TensorVerdict::NotCaptured,
                _ => TensorVerdict::Otherwise(
                    "it is not made any more: a step before fails".to_owned(),
                ),
            };
            self.row(step, number, tensor, verdict).kinds = Kinds::of(Some(&was.tensor), None);
        }
    }

    /// Responses that were captured and do not come any more, the first of which would be
    /// `next`.
    fn missing_responses(&mut self, step: &ManifestStep, next: u64) {
        let of_step = |it: &&(String, Option<u64>)| {
            it.1.is_some_and(|it| next <= it) && step.outputs.iter().any(|(_, to)| *to == it.0)
        };
        let mut missing: Vec<_> = self.values.keys().filter(of_step).collect();
        missing.sort_by_key(|it| (it.1, &it.0));
        for key in missing {
            let verdict = TensorVerdict::Otherwise("there is no such response any more".to_owned());
            let was = self.values.get(key).map(|it| &it.tensor);
            self.row(step, key.1, &key.0, verdict).kinds = Kinds::of(was, None);
        }
    }

    /// How many responses of a decoupled step left something in the capture.
    fn captured_responses(&self, place: &ScheduledStep) -> usize {
        let steps = &self.manifest.steps;
        let next = self.places.iter().filter(|it| it.level == place.level + 1);
        let next = next.map(|it| &steps[it.index]).filter(|it| !it.decoupled);
        let all = next.chain([&steps[place.index]]).flat_map(|it| &it.outputs);
        let tensors: HashSet<&str> = all.map(|(_, to)| &**to).collect();
        let numbers = self.values.keys().filter(|it| tensors.contains(&*it.0));
        let most = numbers.filter_map(|it| it.1).max();
        most.map_or(0, |it| it.saturating_add(1).min(MAX_RESPONSES) as usize)
    }

    fn row(
        &mut self,
        step: &ManifestStep,
        iteration: Option<u64>,
        tensor: &str,
        verdict: TensorVerdict,
    ) -> &mut Comparison {
        self.rows.push(Comparison {
            request: self.request.request,
            step: step.step,
            model: step.model.clone(),
            captured_version: step.version.to_string(),
            version_now: String::new(),
            iteration,
            tensor: tensor.to_owned(),
            kinds: Kinds::default(),
            verdict,
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }
}

/// A file may claim any number of responses.
const MAX_RESPONSES: u64 = 1 << 20;
/// What stands for a tensor's name where a step failed.
const FAILURE: &str = "(failure)";

fn fresh(step: &ManifestStep, mut response: HashMap<String, EdgeTensor>) -> Iteration {
    let pair = |(_, name): &(String, String)| {
        let tensor = response.remove(name).map_or(FreshTensor::Absent, FreshTensor::Is);
        (name.clone(), tensor)
    };
    step.outputs.iter().map(pair).collect()
}

fn unmade(step: &ManifestStep, iteration: &mut Iteration) {
    iteration.extend(step.outputs.iter().map(|(_, to)| (to.clone(), FreshTensor::Unmade)));
}

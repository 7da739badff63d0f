//! Follows tensors through an ensemble: each must be written, read and reachable.

use std::collections::{HashMap, HashSet};

use super::report::ConfigReport;
use crate::config::problem::{DID_YOU_MEAN, Problem, suggesting};
use crate::config::types::StepConfig;
use troupe_proto::inference::ModelConfig;

/// Problems that come with a suggestion of what was meant: each compares all names.
const MAX_SUGGESTIONS: usize = 100;

/// Ways round that are longer are not told to their end.
const MAX_CIRCLE_BYTES: usize = 2000;

/// A name that appears in a map of some step.
struct FlowTensor<'a> {
    name: &'a str,
    /// Where it is first mentioned.
    path: String,
    writer: Option<usize>,
    /// Once per input that reads it.
    readers: Vec<usize>,
    ready: bool,
}

/// The tensors of an ensemble and the steps between them, all by number.
#[derive(Default)]
struct TensorFlow<'a> {
    tensors: Vec<FlowTensor<'a>>,
    numbers: HashMap<&'a str, usize>,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
}

/// Reports what is not used, not written or not connected; the order of steps does not matter.
pub(super) fn check(config: &ModelConfig, steps: &[StepConfig], report: &mut ConfigReport<'_>) {
    let (m, from) = (report.model, report.problems.len());
    let mut flow = TensorFlow::default();
    for (index, step) in steps.iter().enumerate() {
        flow.add(index, step);
    }
    let mut ready = Vec::new();
    for (index, input) in config.input.iter().enumerate() {
        let path = format!("input[{index}]");
        let name = &input.name;
        match flow.numbers.get(name.as_str()) {
            None => {
                // Triton's text, quotation mark and all.
                let text = format!("ensemble input '{name}' for ensemble {m}' is not used");
                let unwritten = flow.tensors.iter().filter(|tensor| tensor.writer.is_none());
                let hint = guess(name, unwritten.map(|tensor| tensor.name));
                report.add(&path, format!("{text}: no step reads it{hint}"));
            }
            Some(number) => {
                if let Some(step) = flow.tensors[*number].writer {
                    let text = format!(
                        "ensemble input '{name}' is also written by step {step} of ensemble '{m}': \
                         give what model '{}' writes another name",
                        steps[step].model
                    );
                    report.add(&path, text);
                }
                ready.push(*number);
            }
        }
    }
    flow.advance(ready);
    let mut outputs = HashSet::new();
    for (index, output) in config.output.iter().enumerate() {
        let path = format!("output[{index}]");
        let name = &output.name;
        let Some(number) = flow.numbers.get(name.as_str()) else {
            let text = format!("ensemble output '{name}' for ensemble {m}' is not used");
            let written = flow.tensors.iter().filter(|tensor| tensor.writer.is_some());
            let hint = guess(name, written.map(|tensor| tensor.name));
            report.add(&path, format!("{text}: no step writes it{hint}"));
            continue;
        };
        outputs.insert(*number);
        if !flow.tensors[*number].ready {
            report.add(&path, flow.not_written(*number, m));
        }
    }
    let consequences = report.problems.len();
    flow.unused(config, &outputs, steps, report);
    // What was probably meant is the cause of the rest.
    let is_guess = |problem: &Problem| problem.text.contains(DID_YOU_MEAN);
    let guesses = report.problems[consequences..].iter().filter(|it| is_guess(it)).count();
    report.problems[consequences..].sort_by_key(|it| !is_guess(it));
    report.problems[from..consequences + guesses].rotate_right(guesses);
}

/// What was probably meant by a name.
fn guess<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    suggesting(String::new(), name, candidates)
}

/// The path of a step.
pub(super) fn step_path(index: usize) -> String {
    format!("ensemble_scheduling.step[{index}]")
}

impl<'a> TensorFlow<'a> {
    fn add(&mut self, index: usize, step: &'a StepConfig) {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (entry, (_, name)) in step.inputs.iter().enumerate() {
            let tensor = self.number(name, || format!("{}.input_map[{entry}]", step_path(index)));
            self.tensors[tensor].readers.push(index);
            inputs.push(tensor);
        }
        for (entry, (_, name)) in step.outputs.iter().enumerate() {
            let tensor = self.number(name, || format!("{}.output_map[{entry}]", step_path(index)));
            self.tensors[tensor].writer.get_or_insert(index);
            outputs.push(tensor);
        }
        self.inputs.push(inputs);
        self.outputs.push(outputs);
    }

    fn number(&mut self, name: &'a str, path: impl FnOnce() -> String) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            let path = path();
            let readers = Vec::new();
            self.tensors.push(FlowTensor { name, path, writer: None, readers, ready: false });
            self.tensors.len() - 1
        })
    }

    /// Marks what can be computed once the `ready` tensors are there.
    fn advance(&mut self, mut ready: Vec<usize>) {
        let mut waiting: Vec<usize> = self.inputs.iter().map(Vec::len).collect();
        while let Some(number) = ready.pop() {
            let tensor = &mut self.tensors[number];
            if std::mem::replace(&mut tensor.ready, true) {
                continue;
            }
            for step in &tensor.readers {
                waiting[*step] -= 1;
                if waiting[*step] == 0 {
                    ready.extend(&self.outputs[*step]);
                }
            }
        }
    }

    /// Names the tensor furthest upstream that is missing, unless it is the output itself.
    fn not_written(&self, output: usize, m: &str) -> String {
        let mut text =
            format!("output '{}' for ensemble '{m}' is not written", self.tensors[output].name);
        let mut visited = HashSet::from([output]);
        let mut last = output;
        while let Some(missing) = self.first_missing(last)
            && visited.insert(missing)
        {
            last = missing;
        }
        if last != output {
            let name = self.tensors[last].name;
            text += &format!(": at least one of its depending tensors, '{name}', is not connected");
        }
        text
    }

    /// The first tensor that keeps this one from being written.
    fn first_missing(&self, tensor: usize) -> Option<usize> {
        let inputs = &self.inputs[self.tensors[tensor].writer?];
        inputs.iter().copied().find(|input| !self.tensors[*input].ready)
    }

    /// Of a chain that is not connected only its source is reported: the rest follows from it.
    fn unused(
        &self,
        config: &ModelConfig,
        outputs: &HashSet<usize>,
        steps: &[StepConfig],
        report: &mut ConfigReport<'_>,
    ) {
        let m = report.model;
        let inputs = config.input.iter().map(|input| input.name.as_str());
        let written = self.tensors.iter().filter(|tensor| tensor.writer.is_some());
        let known: Vec<&str> = inputs.chain(written.map(|tensor| tensor.name)).collect();
        let in_circles = self.in_circles();
        for (number, tensor) in self.tensors.iter().enumerate() {
            let nobody_writes = !tensor.ready && tensor.writer.is_none();
            let wrong = tensor.readers.is_empty() || nobody_writes || in_circles[number];
            if !wrong || outputs.contains(&number) {
                continue;
            }
            let mut text = format!("ensemble tensor '{}' is unused in ensemble '{m}'", tensor.name);
            if in_circles[number] {
                text += &self.circle(number, steps);
            }
            if nobody_writes && report.problems.len() < MAX_SUGGESTIONS {
                text = suggesting(text, tensor.name, known.iter().copied());
            }
            report.add(&tensor.path, text);
        }
    }

    /// The way round from a tensor that waits for itself, behind a separator.
    fn circle(&self, start: usize, steps: &[StepConfig]) -> String {
        let name = |tensor: usize| self.tensors[tensor].name;
        let mut way = name(start).to_owned();
        let mut here = start;
        while let (Some(step), Some(before)) = (self.tensors[here].writer, self.first_missing(here))
        {
            way =
                format!("{} -> step {step} (model '{}') -> {way}", name(before), steps[step].model);
            if before == start || MAX_CIRCLE_BYTES < way.len() {
                break;
            }
            here = before;
        }
        format!(": it waits for itself: {way}")
    }

    /// Which tensors wait for themselves, if each waits for its first missing one.
    fn in_circles(&self) -> Vec<bool> {
        let mut found = vec![false; self.tensors.len()];
        let mut walked = vec![None; self.tensors.len()];
        for start in 0..self.tensors.len() {
            let mut here = (!self.tensors[start].ready).then_some(start);
            while let Some(tensor) = here
                && walked[tensor].is_none()
            {
                walked[tensor] = Some(start);
                here = self.first_missing(tensor);
            }
            // Back on a tensor of this very walk: from there on it is a circle.
            let mut here = here.filter(|tensor| walked[*tensor] == Some(start));
            while let Some(tensor) = here
                && !std::mem::replace(&mut found[tensor], true)
            {
                here = self.first_missing(tensor);
            }
        }
        found
    }
}

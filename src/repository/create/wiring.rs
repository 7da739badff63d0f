//! The wiring of an ensemble: which output of an earlier step each input reads, by name and type.

use std::collections::BTreeSet;

use troupe_base::tensor::{DataType, shape_text};

/// An input or output of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepTensor {
    pub(super) name: String,
    pub(super) dtype: DataType,
    /// -1: any size.
    pub(super) dims: Vec<i64>,
    pub(super) is_optional: bool,
}

/// A model that the ensemble runs.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) model: String,
    pub(super) inputs: Vec<StepTensor>,
    pub(super) outputs: Vec<StepTensor>,
}

/// What an input and the output that it reads were matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Name,
    Type,
    /// The types of several do not tell them apart.
    Order,
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// An output of an earlier step: positions of both.
    Output { step: usize, output: usize, found: Found },
    /// An input of the ensemble, by position.
    Input(usize),
    /// It is optional, and nothing fits.
    Absent,
}

/// An ensemble's inputs, outputs and wires.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    pub(super) inputs: Vec<StepTensor>,
    pub(super) outputs: Vec<StepTensor>,
    /// Of each step, of each of its inputs.
    pub(super) sources: Vec<Vec<Source>>,
    /// Of each step, what the ensemble calls each of its outputs.
    pub(super) output_names: Vec<Vec<String>>,
    /// What could not be wired, and what to write.
    pub(super) notes: Vec<String>,
}

/// Wires the steps. An input takes an earlier output of its name, the latest first; else one that
/// only fits it by its type; else it is an input of the ensemble.
pub(super) fn wire(steps: &[Step]) -> Wiring {
    let mut wiring = Wiring::default();
    for index in 0..steps.len() {
        let mut sources: Vec<Option<Source>> =
            steps[index].inputs.iter().map(|it| by_name(steps, index, it)).collect();
        by_type(steps, &wiring, index, &mut sources);
        let sources = sources.into_iter().zip(&steps[index].inputs);
        let sources = sources.map(|(source, input)| match source {
            Some(source) => source,
            None => wiring.open(steps, index, input),
        });
        let sources = sources.collect();
        wiring.sources.push(sources);
    }
    wiring.name_outputs(steps);
    wiring
}

/// The latest output of this name that fits.
fn by_name(steps: &[Step], index: usize, input: &StepTensor) -> Option<Source> {
    let found = Found::Name;
    (0..index).rev().find_map(|step| {
        let mut outputs = steps[step].outputs.iter();
        let output = outputs.position(|it| it.name == input.name && fits(it, input))?;
        Some(Source::Output { step, output, found })
    })
}

/// Of the nearest step with outputs that nobody reads yet: as many as there are inputs that they
/// fit.
fn by_type(steps: &[Step], wiring: &Wiring, index: usize, sources: &mut [Option<Source>]) {
    for position in 0..sources.len() {
        let input = &steps[index].inputs[position];
        if sources[position].is_some() || input.is_optional {
            continue;
        }
        let is_alike = |place: &usize| {
            let other = &steps[index].inputs[*place];
            let is_open = sources[*place].is_none() && !other.is_optional;
            is_open && other.dtype == input.dtype && other.dims == input.dims
        };
        let alike: Vec<usize> = (0..sources.len()).filter(is_alike).collect();
        let free = (0..index).rev().map(|step| free(steps, wiring, step, sources, input));
        let Some(free) = free.into_iter().find(|free| !free.is_empty()) else { continue };
        if free.len() != alike.len() {
            continue;
        }
        let found = if free.len() == 1 { Found::Type } else { Found::Order };
        for (place, (step, output)) in alike.into_iter().zip(free) {
            sources[place] = Some(Source::Output { step, output, found });
        }
    }
}

/// Outputs of a step that fit and that nobody reads.
fn free(
    steps: &[Step],
    wiring: &Wiring,
    step: usize,
    now: &[Option<Source>],
    input: &StepTensor,
) -> Vec<(usize, usize)> {
    let is_read = |output: usize| {
        let mut all = wiring.sources.iter().flatten().chain(now.iter().flatten());
        all.any(|it| matches!(it, Source::Output { step: s, output: o, .. } if (*s, *o) == (step, output)))
    };
    let outputs = steps[step].outputs.iter().enumerate();
    let free = outputs.filter(|(output, it)| fits(it, input) && !is_read(*output));
    free.map(|(output, _)| (step, output)).collect()
}

/// The same type, and no dimension that contradicts.
fn fits(output: &StepTensor, input: &StepTensor) -> bool {
    let mut dims = output.dims.iter().zip(&input.dims);
    output.dtype == input.dtype
        && output.dims.len() == input.dims.len()
        && dims.all(|(a, b)| a == b || *a == -1 || *b == -1)
}

/// `FP32 [-1,16]`.
pub(super) fn form(tensor: &StepTensor) -> String {
    format!("{} {}", tensor.dtype.as_str(), shape_text(&tensor.dims))
}

impl Wiring {
    /// An input of the ensemble: the one that another step reads by this name, or a new one.
    fn open(&mut self, steps: &[Step], index: usize, input: &StepTensor) -> Source {
        if input.is_optional {
            return Source::Absent;
        }
        let model = &steps[index].model;
        let same = self.inputs.iter().position(|it| it.name == input.name);
        if let Some(same) = same.filter(|same| fits(&self.inputs[*same], input)) {
            return Source::Input(same);
        }
        let name = match same {
            Some(_) => format!("{model}_{}", input.name),
            None => input.name.clone(),
        };
        if 0 < index {
            self.notes.push(not_wired(&steps[..index], model, input, &name));
        }
        self.inputs.push(StepTensor { name, ..input.clone() });
        Source::Input(self.inputs.len() - 1)
    }

    /// What nobody reads is an output of the ensemble, under its own name if that is free.
    fn name_outputs(&mut self, steps: &[Step]) {
        let read: BTreeSet<(usize, usize)> = self
            .sources
            .iter()
            .flatten()
            .filter_map(|source| match source {
                Source::Output { step, output, .. } => Some((*step, *output)),
                Source::Input(_) | Source::Absent => None,
            })
            .collect();
        let mut taken: BTreeSet<String> = self.inputs.iter().map(|it| it.name.clone()).collect();
        self.output_names = steps.iter().map(|it| vec![String::new(); it.outputs.len()]).collect();
        // The names that clients see come first.
        for is_read in [false, true] {
            for (index, step) in steps.iter().enumerate() {
                for (output, tensor) in step.outputs.iter().enumerate() {
                    if read.contains(&(index, output)) != is_read {
                        continue;
                    }
                    let name = free_name(&taken, &step.model, &tensor.name);
                    taken.insert(name.clone());
                    self.output_names[index][output].clone_from(&name);
                    if !is_read {
                        self.outputs.push(StepTensor { name, ..tensor.clone() });
                    }
                }
            }
        }
    }
}

fn free_name(taken: &BTreeSet<String>, model: &str, name: &str) -> String {
    let longer = std::iter::once(format!("{model}_{name}"));
    let numbered = (2..).map(|number| format!("{model}_{name}_{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(longer).chain(numbered);
    names.find(|it| !taken.contains(it)).expect("numbers do not end")
}

/// Says that nothing fits an input, what comes nearest, and what to write.
fn not_wired(before: &[Step], model: &str, input: &StepTensor, name: &str) -> String {
    let outputs =
        before.iter().rev().flat_map(|step| step.outputs.iter().map(move |it| (step, it)));
    let near: Vec<_> = outputs.filter(|(_, it)| it.name == input.name || fits(it, input)).collect();
    let begin =
        format!("`{}` of `{model}` ({}) is an input of the ensemble", input.name, form(input));
    let list = |near: &[(&Step, &StepTensor)]| -> String {
        let all = near
            .iter()
            .map(|(step, it)| format!("`{}` of `{}` ({})", it.name, step.model, form(it)));
        all.collect::<Vec<_>>().join(", ")
    };
    let fitting: Vec<_> = near.iter().copied().filter(|(_, it)| fits(it, input)).collect();
    if !fitting.is_empty() {
        return format!(
            "{begin}: more than one wiring is possible with {}. To wire it, write the tensor's name \
             in place of \"{name}\" in its input_map, and take \"{name}\" out of `input`",
            list(&fitting)
        );
    }
    match near.is_empty() {
        true => format!("{begin}: no step before it gives that type"),
        false => format!(
            "{begin}: {} has its name, but another type or shape. Make the models agree, or put one \
             between them",
            list(&near)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::testing::tensors;

    fn steps(models: &[&str]) -> Vec<Step> {
        let one = |text: &&str| {
            let (model, rest) = text.split_once(": ").unwrap();
            let (inputs, outputs) = rest.split_once(" -> ").unwrap();
            Step { model: model.to_owned(), inputs: tensors(inputs), outputs: tensors(outputs) }
        };
        models.iter().map(one).collect()
    }

    /// `a.x=INPUT b.y=a.z`, then the outputs of the ensemble.
    fn shown(steps: &[Step], wiring: &Wiring) -> String {
        let mut words = Vec::new();
        for (step, sources) in steps.iter().zip(&wiring.sources) {
            for (input, source) in step.inputs.iter().zip(sources) {
                let source = match source {
                    Source::Output { step, output, .. } => {
                        format!("{}.{}", steps[*step].model, wiring.output_names[*step][*output])
                    }
                    Source::Input(input) => wiring.inputs[*input].name.clone(),
                    Source::Absent => "-".to_owned(),
                };
                words.push(format!("{}.{}={source}", step.model, input.name));
            }
        }
        let outputs: Vec<_> = wiring.outputs.iter().map(|it| &*it.name).collect();
        format!("{} -> {}", words.join(" "), outputs.join(" "))
    }

    #[test]
    fn outputs_are_wired_by_name_then_by_type_then_in_order() {
        for (models, expected, notes) in [
            // By name; what nobody reads is an output.
            (
                &["a: x:FP32[4] -> y:FP32[4] n:INT64[1]", "b: y:FP32[-1] -> z:FP32[4]"][..],
                "a.x=x b.y=a.y -> n z",
                0,
            ),
            // By type, and an output in the middle gives its name away.
            (
                &["a: text:BYTES[1] -> output:BYTES[1]", "b: text:BYTES[1] -> output:BYTES[1]"],
                "a.text=text b.text=a.a_output -> output",
                0,
            ),
            // Two alike in order.
            (
                &[
                    "add: p:FP32[4] q:FP32[4] -> sum:FP32[4] difference:FP32[4]",
                    "mul: l:FP32[4] r:FP32[4] -> product:FP32[4]",
                ],
                "add.p=p add.q=q mul.l=add.sum mul.r=add.difference -> product",
                0,
            ),
            // One input that two outputs fit stays open.
            (
                &["a: x:FP32[4] -> u:FP32[4] v:FP32[4]", "b: y:FP32[4] -> z:FP32[4]"],
                "a.x=x b.y=y -> u v z",
                1,
            ),
            // The same name, another shape.
            (
                &["a: x:FP32[4] -> y:FP32[32]", "b: y:FP32[16] -> z:FP32[4]"],
                "a.x=x b.y=y -> a_y z",
                1,
            ),
            // An input of the ensemble is shared; optional ones are left out.
            (
                &[
                    "decode: file:UINT8[-1] -> image:UINT8[-1,-1,3]",
                    "boxes: image:UINT8[-1,-1,3] -> boxes:FP32[-1,4] scores:FP32[-1]",
                    "crop: image:UINT8[-1,-1,3] boxes:FP32[-1,4] scale:FP64[1]? -> crops:FP32[-1]",
                ],
                "decode.file=file boxes.image=decode.image crop.image=decode.image \
                 crop.boxes=boxes.boxes crop.scale=- -> scores crops",
                0,
            ),
            (
                &["a: x:FP32[4] -> u:INT32[4]", "b: x:FP32[4] -> v:INT64[4]"],
                "a.x=x b.x=x -> u v",
                0,
            ),
        ] {
            let steps = steps(models);
            let wiring = wire(&steps);
            assert_eq!(shown(&steps, &wiring), expected);
            assert_eq!(wiring.notes.len(), notes, "{models:?}: {:?}", wiring.notes);
        }
    }

    #[test]
    fn what_is_not_wired_is_said_with_what_comes_nearest() {
        for (models, expected) in [
            (
                ["a: x:FP32[4] -> y:FP32[32]", "b: y:FP32[16] -> z:FP32[4]"],
                "`y` of `b` (FP32 [16]) is an input of the ensemble: `y` of `a` (FP32 [32]) has its \
                 name, but another type or shape",
            ),
            (
                ["a: x:FP32[4] -> u:FP32[4] v:FP32[4]", "b: y:FP32[4] -> z:FP32[4]"],
                "more than one wiring is possible with `u` of `a` (FP32 [4]), `v` of `a` (FP32 [4])",
            ),
            (
                ["a: x:FP32[4] -> u:FP32[4]", "b: y:INT8[4] -> z:FP32[4]"],
                "no step before it gives that type",
            ),
        ] {
            let notes = wire(&steps(&models)).notes;
            assert!(notes[0].contains(expected), "{notes:?}");
        }
    }
}

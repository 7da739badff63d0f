//! An ensemble's config against the completed configs of the models it runs.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{graph, stages::stages, window_bytes::window_bytes};
use troupe_base::{
    config::{EnsembleConfig, ModelConfig, Problem, StepConfig},
    tensor::{DataType, shape_text},
};

/// What the first model that mentions a tensor says of it.
struct AgreedTensor {
    by: Arc<str>,
    dtype: DataType,
    dims: Vec<i64>,
    /// With the batch dimension, where that model batches.
    full: Vec<i64>,
}

/// Every disagreement, in Triton's words and where it was written; steps whose model's config is
/// not known agree.
pub fn check(
    config: &ModelConfig,
    ensemble: &EnsembleConfig,
    models: &[Option<&ModelConfig>],
) -> Vec<Problem> {
    let mut found = Agreement { config, tensors: HashMap::new(), problems: Vec::new() };
    for it in &config.inputs {
        found.declare(config, &it.name, it.dtype, it.reshape.as_ref().unwrap_or(&it.dims));
    }
    for it in &config.outputs {
        found.declare(config, &it.name, it.dtype, it.reshape.as_ref().unwrap_or(&it.dims));
    }
    let mut problems: Vec<Problem> = window_bytes(config).err().into_iter().collect();
    for (index, (step, model)) in ensemble.steps.iter().zip(models).enumerate() {
        let Some(model) = model else { continue };
        found.inputs(step, model);
        found.outputs(step, model);
        let path = format!("ensemble_scheduling.step[{index}]");
        let texts = found.problems.drain(..).chain(too_small(config, model));
        problems.extend(texts.map(|it| config.source_map.problem(&path, it)));
    }
    if let Ok(graph) = graph::build(ensemble) {
        let decoupled: Vec<bool> =
            models.iter().map(|it| it.is_some_and(|it| it.decoupled)).collect();
        problems.extend(stages(config, ensemble, &graph, &decoupled).err().into_iter().flatten());
    }
    problems
}

/// A decoupled step cannot run a batch in parts, as other steps do.
fn too_small(config: &ModelConfig, model: &ModelConfig) -> Option<String> {
    let (all, most) = (config.max_batch_size, model.max_batch_size);
    let is_too_small = model.decoupled && most != 0 && most < all;
    is_too_small.then(|| {
        format!(
            "ensemble {} allows maximum batch size {all}, but it contains model {} which only \
             allows maximum batch size to be {most}",
            config.name, model.name
        )
    })
}

struct Agreement<'a> {
    config: &'a ModelConfig,
    tensors: HashMap<String, AgreedTensor>,
    problems: Vec<String>,
}

impl Agreement<'_> {
    fn inputs(&mut self, step: &StepConfig, model: &ModelConfig) {
        let ensemble = &self.config.name;
        for (input, tensor) in &step.inputs {
            match model.input_index(input) {
                None => self.problems.push(format!(
                    "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing \
                     input {input} in model {}",
                    model.name
                )),
                Some(index) => {
                    let input = &model.inputs[index];
                    self.declare(model, tensor, input.dtype, &input.dims);
                }
            }
        }
        for input in &model.inputs {
            let mapped = step.inputs.iter().filter(|(name, _)| **name == *input.name).count();
            if mapped == 0 && !input.optional {
                self.problems.push(format!(
                    "in ensemble {ensemble}, input {} in model {} is not mapped to any ensemble \
                     tensors",
                    input.name, model.name
                ));
            }
            if 1 < mapped {
                self.problems.push(format!(
                    "in ensemble {ensemble}, input {} in model {} is mapped to multiple ensemble \
                     tensors",
                    input.name, model.name
                ));
            }
        }
    }

    fn outputs(&mut self, step: &StepConfig, model: &ModelConfig) {
        let ensemble = &self.config.name;
        for (position, (output, tensor)) in step.outputs.iter().enumerate() {
            if step.outputs[..position].iter().any(|(_, earlier)| earlier == tensor) {
                self.problems.push(format!(
                    "in ensemble {ensemble}, multiple outputs in model {} are mapped to the same \
                     ensemble tensor {tensor}",
                    model.name
                ));
            }
            match model.output_index(output) {
                None => self.problems.push(format!(
                    "in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing \
                     output {output} in model {}",
                    model.name
                )),
                Some(index) => {
                    let output = &model.outputs[index];
                    self.declare(model, tensor, output.dtype, &output.dims);
                }
            }
        }
    }

    /// The first to mention a tensor decides; later ones must agree.
    fn declare(&mut self, model: &ModelConfig, tensor: &str, dtype: DataType, dims: &[i64]) {
        let full = model.with_batch(dims);
        let first = match self.tensors.entry(tensor.to_owned()) {
            Entry::Vacant(free) => {
                let (by, dims) = (model.name.clone(), dims.to_vec());
                free.insert(AgreedTensor { by, dtype, dims, full });
                return;
            }
            Entry::Occupied(first) => first.into_mut(),
        };
        let place = format!("in ensemble {}, ensemble tensor {tensor}", self.config.name);
        if first.dtype != dtype {
            self.problems.push(format!(
                "{place}: inconsistent data type: {} is inferred from model {} while {} is \
                 inferred from model {}",
                first.dtype.config_name(),
                first.by,
                dtype.config_name(),
                model.name
            ));
        }
        if !agree(&first.dims, dims) && !agree(&first.full, &full) {
            self.problems.push(format!(
                "{place}: inconsistent shape: {} is inferred from model {} while {} is inferred \
                 from model {}",
                shape_text(&first.full),
                first.by,
                shape_text(&full),
                model.name
            ));
        }
    }
}

fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a == -1 || *b == -1)
}

//! An ensemble's config against the completed configs of the models it runs.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{graph, stages::stages, window_bytes::window_bytes};
use troupe_base::{
    config::{
        self, Batching, EnsembleConfig, Input, ModelConfig, Output, Problem, StepConfig,
        Uncacheable, instead,
    },
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
    let mut found = Agreement::new(config);
    for it in &config.inputs {
        let dims = it.reshape.as_ref().unwrap_or(&it.dims);
        found.declare(config, &it.name, MappedTensor { field: "", dtype: it.dtype, dims });
    }
    for it in &config.outputs {
        let dims = it.reshape.as_ref().unwrap_or(&it.dims);
        found.declare(config, &it.name, MappedTensor { field: "", dtype: it.dtype, dims });
    }
    let mut problems: Vec<Problem> = window_bytes(config).err().into_iter().collect();
    problems.extend(uncacheable(config, models));
    for (index, (step, model)) in ensemble.steps.iter().zip(models).enumerate() {
        let Some(model) = model else { continue };
        found.path = format!("ensemble_scheduling.step[{index}]");
        found.inputs(step, model);
        found.outputs(step, model);
        problems.append(&mut found.problems);
        problems.extend(too_small(config, model).map(|it| found.problem("", it)));
    }
    if let Ok(graph) = graph::build(ensemble) {
        let decoupled: Vec<bool> =
            models.iter().map(|it| it.is_some_and(|it| it.decoupled)).collect();
        problems.extend(stages(config, ensemble, &graph, &decoupled).err().into_iter().flatten());
    }
    problems
}

/// Why the answers of an ensemble cannot be kept, although its config says that they are to be.
fn uncacheable(config: &ModelConfig, models: &[Option<&ModelConfig>]) -> Option<Problem> {
    config.response_cache?;
    let mut steps = models.iter().flatten();
    let why = match steps.clone().any(|it| matches!(it.batching, Batching::Sequence(_))) {
        true => Uncacheable::Sequences,
        false if steps.any(|it| it.decoupled) => Uncacheable::Decoupled,
        false => return None,
    };
    let text = config::uncacheable(&config.name, why);
    Some(config.source_map.problem("response_cache", text))
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
    /// Of the step that is looked at.
    path: String,
    problems: Vec<Problem>,
}

/// What a model says of a tensor, and the entry of the step's map that says which tensor it is.
struct MappedTensor<'a> {
    field: &'a str,
    dtype: DataType,
    dims: &'a [i64],
}

impl<'a> Agreement<'a> {
    fn new(config: &'a ModelConfig) -> Agreement<'a> {
        let (tensors, path, problems) = (HashMap::new(), String::new(), Vec::new());
        Agreement { config, tensors, path, problems }
    }

    /// A problem of the step, at a field of it.
    fn problem(&self, field: &str, text: String) -> Problem {
        self.config.source_map.problem(&format!("{}{field}", self.path), text)
    }

    fn add(&mut self, field: &str, text: String) {
        self.problems.push(self.problem(field, text));
    }

    fn inputs(&mut self, step: &StepConfig, model: &ModelConfig) {
        let ensemble = &self.config.name;
        for (input, tensor) in &step.inputs {
            let field = &format!(".input_map[\"{input}\"]");
            match model.input_index(input) {
                None => {
                    let text = format!(
                        "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to \
                         non-existing input {input} in model {}",
                        model.name
                    );
                    let names = model.inputs.iter().map(|it| &*it.name);
                    self.add(field, instead(text, input, "inputs", names));
                }
                Some(index) => {
                    let Input { dtype, dims, .. } = &model.inputs[index];
                    self.declare(model, tensor, MappedTensor { field, dtype: *dtype, dims });
                }
            }
        }
        for input in &model.inputs {
            let mapped = step.inputs.iter().filter(|(name, _)| **name == *input.name).count();
            if mapped == 0 && !input.optional {
                let text = format!(
                    "in ensemble {ensemble}, input {} in model {} is not mapped to any ensemble \
                     tensors",
                    input.name, model.name
                );
                self.add("", text);
            }
            if 1 < mapped {
                let text = format!(
                    "in ensemble {ensemble}, input {} in model {} is mapped to multiple ensemble \
                     tensors",
                    input.name, model.name
                );
                self.add("", text);
            }
        }
    }

    fn outputs(&mut self, step: &StepConfig, model: &ModelConfig) {
        let ensemble = &self.config.name;
        for (position, (output, tensor)) in step.outputs.iter().enumerate() {
            let field = &format!(".output_map[\"{output}\"]");
            if step.outputs[..position].iter().any(|(_, earlier)| earlier == tensor) {
                let text = format!(
                    "in ensemble {ensemble}, multiple outputs in model {} are mapped to the same \
                     ensemble tensor {tensor}",
                    model.name
                );
                self.add(field, text);
            }
            match model.output_index(output) {
                None => {
                    let text = format!(
                        "in ensemble {ensemble}, ensemble tensor {tensor} is mapped from \
                         non-existing output {output} in model {}",
                        model.name
                    );
                    let names = model.outputs.iter().map(|it| &*it.name);
                    self.add(field, instead(text, output, "outputs", names));
                }
                Some(index) => {
                    let Output { dtype, dims, .. } = &model.outputs[index];
                    self.declare(model, tensor, MappedTensor { field, dtype: *dtype, dims });
                }
            }
        }
    }

    /// The first to mention a tensor decides; later ones must agree.
    fn declare(&mut self, model: &ModelConfig, tensor: &str, mapped: MappedTensor<'_>) {
        let MappedTensor { field, dtype, dims } = mapped;
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
        let mut texts = Vec::new();
        if first.dtype != dtype {
            texts.push(format!(
                "{place}: inconsistent data type: {} is inferred from model {} while {} is \
                 inferred from model {}",
                first.dtype.config_name(),
                first.by,
                dtype.config_name(),
                model.name
            ));
        }
        if !agree(&first.dims, dims) && !agree(&first.full, &full) {
            texts.push(format!(
                "{place}: inconsistent shape: {} is inferred from model {} while {} is inferred \
                 from model {}",
                shape_text(&first.full),
                first.by,
                shape_text(&full),
                model.name
            ));
        }
        texts.into_iter().for_each(|text| self.add(field, text));
    }
}

/// Where rows are lost: steps whose model does not batch get the batches of this ensemble, and take
/// one row of them at most. Triton allows such ensembles.
pub fn warnings(
    config: &ModelConfig,
    ensemble: &EnsembleConfig,
    models: &[Option<&ModelConfig>],
) -> Vec<Problem> {
    let most = config.max_batch_size;
    if most < 2 {
        return Vec::new();
    }
    // Tensors with a row for each row of the request.
    let dims = |dims: &[i64]| config.with_batch(dims);
    let inputs = config.inputs.iter();
    let mut batched: HashMap<&str, Vec<i64>> = inputs
        .map(|it| (it.name.as_ref(), dims(it.reshape.as_ref().unwrap_or(&it.dims))))
        .collect();
    for (step, model) in ensemble.steps.iter().zip(models) {
        let Some(model) = model.filter(|it| it.max_batch_size != 0) else { continue };
        for (output, tensor) in &step.outputs {
            if let Some(index) = model.output_index(output) {
                batched.insert(tensor, model.with_batch(&model.outputs[index].dims));
            }
        }
    }
    let mut found = Vec::new();
    for (index, (step, model)) in ensemble.steps.iter().zip(models).enumerate() {
        let Some(model) = model.filter(|it| it.max_batch_size == 0) else { continue };
        for (input, tensor) in &step.inputs {
            let (Some(at), Some(full)) = (model.input_index(input), batched.get(&**tensor)) else {
                continue;
            };
            let taken = &model.inputs[at].dims;
            if agree(full, taken) || !agree(&full[1..], taken) {
                continue;
            }
            let text = format!(
                "ensemble {} allows batches of up to {most} rows, but a request with more than one \
                 row can never succeed: step {index}, model {}, does not batch (its max_batch_size \
                 is 0) and takes {} as input {input}, which is one row of tensor {tensor}. Write \
                 'max_batch_size: {most}' into the config of {}, or 'max_batch_size: 0' into this one{}",
                config.name,
                model.name,
                shape_text(taken),
                model.name,
                of_function(model, most),
            );
            let path = format!("ensemble_scheduling.step[{index}].input_map[\"{input}\"]");
            found.push(config.source_map.problem(&path, text));
        }
    }
    found
}

/// What a plain function in Python needs for batches, which a config cannot say.
fn of_function(model: &ModelConfig, most: u32) -> String {
    match &*model.backend {
        "python" => format!(
            ". If {} is a plain function, write '@model(max_batch_size={most})' above it, and \
             'list[…]' where a hint is a single 'str', 'int' or 'float': one for each row",
            model.name
        ),
        _ => String::new(),
    }
}

fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a == -1 || *b == -1)
}

//! Compares a finished config with its model: what is read and written, or every problem.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    dtype,
    graph::{DeclaredTensor, ModelGraph, TensorForm},
};
use troupe_base::{
    config::{ModelConfig, Output, Problem},
    tensor::{DataType, shape_text},
};
use troupe_proto::inference::{ModelOutput, ModelTensorReshape};

/// The tensors of a config, all of which the model has.
#[derive(Debug)]
pub(super) struct Signature {
    /// In the order of the config, then one for each target of `batch_input`.
    pub(super) inputs: Vec<Reads>,
    /// In the order of the config.
    pub(super) outputs: Vec<Writes>,
}

/// An input that the model is given.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) name: Arc<str>,
    pub(super) dtype: DataType,
    /// The config says `[1]` where the model wants no dimension at all.
    pub(super) is_scalar: bool,
}

/// An output that is asked of the model.
#[derive(Debug)]
pub(super) struct Writes {
    pub(super) name: Arc<str>,
    pub(super) dtype: DataType,
    pub(super) dims: ExpectedDims,
}

/// The shape an output must have, without the batch.
#[derive(Debug)]
pub(super) enum ExpectedDims {
    /// What comes out is scattered by `batch_output`.
    Any,
    /// No dimension; clients see these.
    Scalar(Vec<i64>),
    /// -1: any size.
    Dims(Vec<i64>),
}

/// Settles which tensor of the config is which of the model.
pub(super) fn settle(config: &ModelConfig, graph: &ModelGraph) -> Result<Signature, Vec<Problem>> {
    let mut check = SignatureCheck { config, problems: Vec::new() };
    let read = written_inputs(config);
    check.count(&read, graph);
    let known: Vec<&DeclaredTensor> = graph.inputs.iter().chain(&graph.initializers).collect();
    let inputs = read.into_iter().filter_map(|it| check.input(it, &known)).collect();
    let written = written_outputs(config);
    let known: Vec<&DeclaredTensor> = graph.outputs.iter().collect();
    let outputs = written.into_iter().filter_map(|it| check.output(it, &known)).collect();
    if check.problems.is_empty() { Ok(Signature { inputs, outputs }) } else { Err(check.problems) }
}

/// A tensor as the config has it.
struct ConfigTensor {
    /// `input[3]`.
    path: String,
    kind: &'static str,
    name: Arc<str>,
    dtype: DataType,
    shape: Shape,
    optional: bool,
}

/// What the config says of a shape.
enum Shape {
    /// Nothing that can be compared.
    Unsaid,
    /// The rows of a batch one after another, whatever their sizes.
    Ragged,
    /// Without the batch, as the model sees it.
    Dims(Vec<i64>),
}

fn written_inputs(config: &ModelConfig) -> Vec<ConfigTensor> {
    let declared = config.inputs.iter().zip(&config.proto.input).enumerate();
    let inputs = declared.map(|(index, (input, proto))| ConfigTensor {
        path: format!("input[{index}]"),
        kind: "input",
        name: input.name.clone(),
        dtype: input.dtype,
        shape: match proto.allow_ragged_batch {
            true => Shape::Ragged,
            false => Shape::Dims(inner(&input.dims, proto.reshape.as_ref())),
        },
        optional: input.optional,
    });
    let computed = config.proto.batch_input.iter().enumerate().flat_map(|(index, batch)| {
        batch.target_name.iter().map(move |name| ConfigTensor {
            path: format!("batch_input[{index}]"),
            kind: "input",
            name: name.as_str().into(),
            dtype: DataType::from_proto(batch.data_type).unwrap_or(DataType::Int32),
            shape: Shape::Unsaid,
            optional: false,
        })
    });
    let of_sequences = config.inputs.iter().skip(config.proto.input.len());
    let of_sequences =
        of_sequences.map(|it| of_sequence("input", it.name.clone(), it.dtype, &it.dims));
    inputs.chain(of_sequences).chain(computed).collect()
}

/// A tensor that `sequence_batching` adds to the model's own.
fn of_sequence(kind: &'static str, name: Arc<str>, dtype: DataType, dims: &[i64]) -> ConfigTensor {
    let (path, shape) = ("sequence_batching".to_owned(), Shape::Dims(dims.to_vec()));
    ConfigTensor { path, kind, name, dtype, shape, optional: false }
}

fn written_outputs(config: &ModelConfig) -> Vec<ConfigTensor> {
    let scattered: BTreeSet<&str> = config
        .proto
        .batch_output
        .iter()
        .flat_map(|it| it.target_name.iter().map(String::as_str))
        .collect();
    let declared = config.outputs.iter().zip(&config.proto.output).enumerate();
    let output = |(index, (output, proto)): (usize, (&Output, &ModelOutput))| ConfigTensor {
        path: format!("output[{index}]"),
        kind: "output",
        name: output.name.clone(),
        dtype: output.dtype,
        shape: if scattered.contains(&*output.name) {
            Shape::Unsaid
        } else {
            Shape::Dims(inner(&output.dims, proto.reshape.as_ref()))
        },
        optional: false,
    };
    let of_sequences = config.outputs.iter().skip(config.proto.output.len());
    let of_sequences =
        of_sequences.map(|it| of_sequence("output", it.name.clone(), it.dtype, &it.dims));
    declared.map(output).chain(of_sequences).collect()
}

/// The dims the model sees.
fn inner(dims: &[i64], reshape: Option<&ModelTensorReshape>) -> Vec<i64> {
    reshape.map_or_else(|| dims.to_vec(), |it| it.shape.clone())
}

struct SignatureCheck<'a> {
    config: &'a ModelConfig,
    problems: Vec<Problem>,
}

impl SignatureCheck<'_> {
    fn count(&mut self, written: &[ConfigTensor], graph: &ModelGraph) {
        let m = &self.config.name;
        let expected = written.iter().filter(|it| !it.optional).count();
        if expected != graph.inputs.len() {
            let text = format!(
                "unable to load model '{m}', configuration expects {expected} inputs, model \
                 provides {}",
                graph.inputs.len()
            );
            self.problem("input", text);
        }
        for input in graph.inputs.iter().filter(|it| written.iter().all(|w| *w.name != *it.name)) {
            let text = format!(
                "unable to load model '{m}', the model needs input '{}', which the configuration \
                 does not have",
                input.name
            );
            self.problem("input", text);
        }
    }

    fn input(&mut self, written: ConfigTensor, known: &[&DeclaredTensor]) -> Option<Reads> {
        let m = &self.config.name;
        if written.optional && 0 < self.config.max_batch_size {
            let text = format!(
                "unable to load model '{m}', optional input '{}' is not supported for models that \
                 support batching",
                written.name
            );
            self.problem(&format!("{}.optional", written.path), text);
        }
        let form = self.same(&written, known)?;
        let text = match &written.shape {
            Shape::Unsaid => None,
            Shape::Ragged if written.optional => Some(format!(
                "unable to load model '{m}', configuration expects model provides input with \
                 shape [-1] for ragged input '{}', which is not supported for optional input",
                written.name
            )),
            Shape::Ragged => (form.dims != [-1]).then(|| {
                format!(
                    "unable to load model '{m}', configuration expects model provides input with \
                     shape [-1]  for ragged input '{}', model provides {}",
                    written.name,
                    shape_text(&form.dims)
                )
            }),
            Shape::Dims(dims) => {
                let fits = |model: i64, dim: i64| model == -1 || model == dim;
                self.unlike(&written.name, form, dims, fits)
            }
        };
        if let Some(text) = text {
            self.problem(&format!("{}.dims", written.path), text);
        }
        let is_scalar = form.dims.is_empty();
        Some(Reads { name: written.name, dtype: written.dtype, is_scalar })
    }

    fn output(&mut self, written: ConfigTensor, known: &[&DeclaredTensor]) -> Option<Writes> {
        let form = self.same(&written, known)?;
        let dims = match written.shape {
            Shape::Unsaid | Shape::Ragged => ExpectedDims::Any,
            Shape::Dims(dims) => {
                let text = self.unlike(&written.name, form, &dims, |model, dim| model == dim);
                if let Some(text) = text {
                    self.problem(&format!("{}.dims", written.path), text);
                }
                if form.dims.is_empty() {
                    ExpectedDims::Scalar(dims)
                } else {
                    ExpectedDims::Dims(dims)
                }
            }
        };
        Some(Writes { name: written.name, dtype: written.dtype, dims })
    }

    /// The model's tensor of that name, if it is one that requests can carry.
    fn same<'a>(
        &mut self,
        written: &ConfigTensor,
        known: &[&'a DeclaredTensor],
    ) -> Option<&'a TensorForm> {
        let ConfigTensor { path, kind, name, .. } = written;
        let Some(declared) = known.iter().find(|it| *it.name == **name) else {
            let names: BTreeSet<&str> = known.iter().map(|it| it.name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let text = format!(
                "unexpected inference {kind} '{name}', allowed {kind}s are: {}",
                names.join(", ")
            );
            self.problem(&format!("{path}.name"), text);
            return None;
        };
        let form = declared.form().map_err(|text| self.problem(path, text)).ok()?;
        if form.element != dtype::to_onnx(written.dtype) {
            let text = format!(
                "unable to load model '{}', configuration expects datatype {} for {kind} '{name}', \
                 model provides TYPE_{}",
                self.config.name,
                written.dtype.config_name(),
                dtype::name(form.element)
            );
            self.problem(&format!("{path}.data_type"), text);
        }
        Some(form)
    }

    /// How the dims of the config and of the model differ, in Triton's words.
    fn unlike(
        &self,
        name: &str,
        form: &TensorForm,
        dims: &[i64],
        fits: impl Fn(i64, i64) -> bool,
    ) -> Option<String> {
        let (m, model) = (&self.config.name, &form.dims);
        let batches = 0 < self.config.max_batch_size;
        if batches && model.first() != Some(&-1) {
            return Some(format!(
                "model '{m}', tensor '{name}': for the model to support batching the shape should \
                 have at least 1 dimension and the first dimension must be -1; but shape expected \
                 by the model is {}",
                shape_text(model)
            ));
        }
        if model.is_empty() {
            return dims.iter().any(|it| *it != 1).then(|| {
                format!(
                    "unable to load model '{m}', scalar tensor '{name}', should only provide 1 in \
                     the model configuration when the model doesn't support batching. Model \
                     configuration provided: {}.",
                    shape_text(dims)
                )
            });
        }
        let full = self.config.with_batch(dims);
        if full.len() == model.len() && model.iter().zip(&full).all(|(a, b)| fits(*a, *b)) {
            return None;
        }
        let specified = if batches {
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
             shape, making complete shape"
        } else {
            "shape"
        };
        // Triton's text counts dimensions even where they differ in size.
        let is_other = |(a, b): (&i64, &i64)| !fits(*a, *b);
        let other =
            model.iter().zip(&full).position(is_other).filter(|_| full.len() == model.len());
        let hint = other.map(|at| {
            format!(
                ": dimension {at} (from 0) is {} in the model and {} in the configuration",
                model[at], full[at]
            )
        });
        Some(format!(
            "model '{m}', tensor '{name}': the model expects {} dimensions (shape {}) but the \
             model configuration specifies {} dimensions ({specified} {}){}",
            model.len(),
            shape_text(model),
            full.len(),
            shape_text(&full),
            hint.unwrap_or_default()
        ))
    }

    fn problem(&mut self, path: &str, text: String) {
        self.problems.push(self.config.source_map.problem(path, text));
    }
}

//! Checks the inputs and outputs of a model.

use std::collections::HashSet;
use std::path::{Component, Path};

use super::report::ConfigReport;
use crate::config::types::{Input, Output};
use crate::tensor::DataType;
use troupe_proto::inference::{ModelConfig, ModelTensorReshape, model_input::Format};

/// What inputs and outputs have in common.
struct WrittenTensor<'a> {
    /// `input[3]`.
    path: String,
    /// `input` or `output`, in messages.
    kind: &'static str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
    batches: bool,
}

/// The checked inputs; those with problems may be missing.
pub(super) fn inputs(config: &ModelConfig, report: &mut ConfigReport<'_>) -> Vec<Input> {
    let mut names = HashSet::new();
    let mut inputs = Vec::new();
    for (index, input) in config.input.iter().enumerate() {
        let written = WrittenTensor {
            path: format!("input[{index}]"),
            kind: "input",
            name: &input.name,
            data_type: input.data_type,
            dims: &input.dims,
            reshape: input.reshape.as_ref(),
            batches: config.max_batch_size > 0,
        };
        let dtype = written.check(&mut names, report);
        if matches!(input.format(), Format::Nhwc | Format::Nchw) && input.dims.len() != 3 {
            let text = format!("model input NHWC/NCHW require 3 dims for {}", report.model);
            report.add(&format!("{}.format", written.path), text);
        }
        if input.is_shape_tensor {
            written.refuse_shape_tensor(report);
        }
        if input.is_non_linear_format_io {
            written.refuse_non_linear_format(report);
        }
        inputs.extend(dtype.map(|dtype| Input {
            name: input.name.as_str().into(),
            dtype,
            dims: input.dims.clone(),
            reshape: input.reshape.as_ref().map(|reshape| reshape.shape.clone()),
            optional: input.optional,
            ragged: input.allow_ragged_batch,
        }));
    }
    inputs
}

/// The checked outputs; those with problems may be missing.
pub(super) fn outputs(config: &ModelConfig, report: &mut ConfigReport<'_>) -> Vec<Output> {
    let mut names = HashSet::new();
    let mut outputs = Vec::new();
    for (index, output) in config.output.iter().enumerate() {
        let written = WrittenTensor {
            path: format!("output[{index}]"),
            kind: "output",
            name: &output.name,
            data_type: output.data_type,
            dims: &output.dims,
            reshape: output.reshape.as_ref(),
            batches: config.max_batch_size > 0,
        };
        let dtype = written.check(&mut names, report);
        if output.is_shape_tensor {
            written.refuse_shape_tensor(report);
        }
        if output.is_non_linear_format_io {
            written.refuse_non_linear_format(report);
        }
        if !stays_inside(&output.label_filename) {
            let text = format!(
                "label file path '{}' for output '{}' in model '{}' is outside model directory",
                output.label_filename, output.name, report.model
            );
            report.add(&format!("{}.label_filename", written.path), text);
        }
        outputs.extend(dtype.map(|dtype| Output {
            name: output.name.as_str().into(),
            dtype,
            dims: output.dims.clone(),
            reshape: output.reshape.as_ref().map(|reshape| reshape.shape.clone()),
            label_filename: output.label_filename.clone(),
            scatter: None,
        }));
    }
    outputs
}

/// A relative path that never climbs above where it starts.
pub(super) fn stays_inside(path: &str) -> bool {
    let mut depth = 0_i64;
    for component in Path::new(path).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth -= 1,
            Component::RootDir | Component::Prefix(_) => return false,
        }
        if depth < 0 {
            return false;
        }
    }
    true
}

impl<'a> WrittenTensor<'a> {
    fn check(
        &self,
        names: &mut HashSet<&'a str>,
        report: &mut ConfigReport<'_>,
    ) -> Option<DataType> {
        if self.name.is_empty() {
            let text = format!("model {} must specify 'name' for {}", self.kind, report.model);
            report.add(&self.path, text);
            return None;
        }
        if !names.insert(self.name) {
            self.problem("name", "is specified more than once", report);
        }
        let dtype = DataType::from_proto(self.data_type);
        if dtype.is_none() {
            self.problem("data_type", "must specify 'data_type'", report);
        }
        if self.dims.is_empty() {
            self.problem("dims", "must specify 'dims'", report);
        }
        let wrong = "must be integer >= 1, or -1 to indicate a variable-size dimension";
        if self.dims.iter().any(|dim| !is_dimension(*dim)) {
            self.problem("dims", &format!("dimension {wrong}"), report);
        }
        if let Some(reshape) = self.reshape {
            if !self.batches && reshape.shape.is_empty() {
                let text = "cannot have empty reshape for non-batching model as scalar tensors \
                            are not supported";
                self.problem("reshape", text, report);
            }
            if reshape.shape.iter().any(|dim| !is_dimension(*dim)) {
                self.problem("reshape.shape", &format!("reshape dimensions {wrong}"), report);
            } else if let Err(text) = reshapes(self.dims, &reshape.shape) {
                self.problem("reshape", text, report);
            }
        }
        dtype
    }

    fn refuse_shape_tensor(&self, report: &mut ConfigReport<'_>) {
        let m = report.model;
        let text = format!("shape tensors are only supported for TensorRT platform for {m}");
        report.add(&format!("{}.is_shape_tensor", self.path), text);
    }

    fn refuse_non_linear_format(&self, report: &mut ConfigReport<'_>) {
        let m = report.model;
        let text =
            format!("Non-linear IO format is only supported for the TensorRT platform for {m}");
        report.add(&format!("{}.is_non_linear_format_io", self.path), text);
    }

    fn problem(&self, field: &str, text: &str, report: &mut ConfigReport<'_>) {
        let text = format!("model {} '{}' {text} for {}", self.kind, self.name, report.model);
        report.add(&format!("{}.{field}", self.path), text);
    }
}

/// A size, or -1 for any.
pub(super) fn is_dimension(dim: i64) -> bool {
    dim >= 1 || dim == -1
}

/// Both shapes must have the same elements between their variable-size dimensions.
fn reshapes(dims: &[i64], shape: &[i64]) -> Result<(), &'static str> {
    let runs = |dims: &[i64]| -> Vec<Option<i64>> {
        let product = |run: &[i64]| run.iter().try_fold(1_i64, |all, dim| all.checked_mul(*dim));
        dims.split(|dim| *dim == -1).map(product).collect()
    };
    let (dims, shape) = (runs(dims), runs(shape));
    let varies = |runs: &[Option<i64>]| runs.len() > 1;
    if varies(&dims) && varies(&shape) && dims.len() != shape.len() {
        Err("has different number of variable-size dimensions for dims and reshape")
    } else if dims != shape {
        Err("has different size for dims and reshape")
    } else {
        Ok(())
    }
}

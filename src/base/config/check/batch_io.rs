//! Checks what is computed of a whole batch: `batch_input` and `batch_output`.

use std::collections::HashSet;

use super::report::ConfigReport;
use crate::config::types::{BatchInput, BatchInputKind, Output};
use crate::tensor::DataType;
use troupe_proto::inference::{self, ModelConfig, batch_input::Kind, batch_output};

/// The checked batch inputs; those with problems may be missing.
pub(super) fn inputs(config: &ModelConfig, report: &mut ConfigReport<'_>) -> Vec<BatchInput> {
    let mut names: HashSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let mut checked = Vec::new();
    for (index, written) in config.batch_input.iter().enumerate() {
        let path = format!("batch_input[{index}]");
        let mut add = |field: &str, text: String| {
            let text = format!("{text} for {}", report.model);
            report.add(&format!("{path}.{field}"), text);
        };
        let kind = kind(written, config.max_batch_size).map_err(|text| add("kind", text)).ok();
        let dtype = DataType::from_proto(written.data_type)
            .filter(|dtype| matches!(dtype, DataType::Int32 | DataType::Fp32));
        if dtype.is_none() {
            let text = "batch input data type must be TYPE_INT32 or TYPE_FP32";
            add("data_type", text.to_owned());
        }
        let source = source(config, "input", kind_name(written), &written.source_input);
        let source = source.map_err(|text| add("source_input", text)).ok();
        if written.target_name.is_empty() {
            let kind = kind_name(written);
            add("target_name", format!("batch input kind '{kind}' expects a target name, got 0"));
        }
        for name in &written.target_name {
            if !names.insert(name) {
                add("target_name", format!("batch input '{name}' is specified more than once"));
            }
        }
        if let (Some(kind), Some(dtype), Some(source)) = (kind, dtype, source) {
            let names = written.target_name.iter().map(|name| name.as_str().into()).collect();
            checked.push(BatchInput { kind, names, dtype, source });
        }
    }
    checked
}

/// Marks the outputs that are scattered.
pub(super) fn outputs(config: &ModelConfig, outputs: &mut [Output], report: &mut ConfigReport<'_>) {
    let mut names = HashSet::new();
    for (index, written) in config.batch_output.iter().enumerate() {
        let path = format!("batch_output[{index}]");
        let mut add = |field: &str, text: String| {
            let text = format!("{text} for {}", report.model);
            report.add(&format!("{path}.{field}"), text);
        };
        let Ok(kind) = batch_output::Kind::try_from(written.kind) else {
            add("kind", format!("unknown batch output kind '{}'", written.kind));
            continue;
        };
        let kind = kind.as_str_name();
        let source = source(config, "output", kind, &written.source_input);
        let source = source.map_err(|text| add("source_input", text)).ok();
        if written.target_name.is_empty() {
            add("target_name", format!("batch output kind '{kind}' expects a target name, got 0"));
        }
        for name in &written.target_name {
            if !config.output.iter().any(|output| output.name == *name) {
                add("target_name", format!("unknown target output name '{name}'"));
            } else if !names.insert(name) {
                let text = format!("target output name '{name}' can only be specified once");
                add("target_name", text);
            } else if let Some(output) = outputs.iter_mut().find(|output| *output.name == **name) {
                output.scatter = source;
            }
        }
    }
}

fn kind(written: &inference::BatchInput, max_batch_size: i32) -> Result<BatchInputKind, String> {
    let kind = Kind::try_from(written.kind)
        .map_err(|_| format!("unknown batch input kind '{}'", written.kind))?;
    let is_per_row = matches!(kind, Kind::BatchItemShape | Kind::BatchItemShapeFlatten);
    if is_per_row && max_batch_size == 0 {
        let name = kind.as_str_name();
        return Err(format!("batch input kind '{name}' expects 'max_batch_size' > 0, got 0"));
    }
    Ok(match kind {
        Kind::BatchElementCount => BatchInputKind::ElementCount,
        Kind::BatchAccumulatedElementCount => BatchInputKind::AccumulatedElementCount,
        Kind::BatchAccumulatedElementCountWithZero => {
            BatchInputKind::AccumulatedElementCountWithZero
        }
        Kind::BatchMaxElementCountAsShape => BatchInputKind::MaxElementCountAsShape,
        Kind::BatchItemShape => BatchInputKind::ItemShape,
        Kind::BatchItemShapeFlatten => BatchInputKind::ItemShapeFlatten,
    })
}

fn kind_name(written: &inference::BatchInput) -> &'static str {
    written.kind().as_str_name()
}

/// The index of the one source; `side` is `input` or `output`.
fn source(
    config: &ModelConfig,
    side: &str,
    kind: &str,
    sources: &[String],
) -> Result<usize, String> {
    let [name] = sources else {
        let count = sources.len();
        return Err(format!("batch {side} kind '{kind}' expects 1 source input, got {count}"));
    };
    let index = config.input.iter().position(|input| input.name == *name);
    index.ok_or_else(|| format!("unknown source input name '{name}'"))
}

//! Auto-completion of a config from the model's file.

use super::{
    dtype,
    graph::{DeclaredTensor, ModelGraph, TensorForm},
};
use troupe_base::{
    backend::Settings,
    config::{AutoComplete, CompletionSource},
    error::{Error, Result},
};
use troupe_proto::inference::{
    ModelConfig, ModelInput, ModelOutput, ModelTensorReshape, model_config::SchedulingChoice,
};

/// Rows of a batch for a model that takes any number, when nobody says how many.
const DEFAULT_MAX_BATCH_SIZE: i32 = 4;

/// Nothing is left to be found out.
pub(super) fn is_complete(config: &ModelConfig) -> bool {
    let inputs = config.input.iter().map(|it| (it.data_type, &it.dims));
    let outputs = config.output.iter().map(|it| (it.data_type, &it.dims));
    let reads = !config.input.is_empty() || !config.batch_input.is_empty();
    reads
        && !config.output.is_empty()
        && inputs.chain(outputs).all(|(dtype, dims)| dtype != 0 && !dims.is_empty())
}

/// Reads the tensors off the model, and whether it batches.
pub(super) fn found(
    settings: &Settings,
    config: &ModelConfig,
    graph: &ModelGraph,
) -> Result<AutoComplete> {
    let max_batch_size = max_batch_size(settings, config, graph)?;
    let batches = 0 < max_batch_size;
    let form = |it: &DeclaredTensor, kind| {
        let (data_type, dims, reshape) = found_form(config, it, kind)?.of(batches);
        Ok((it.name.clone(), data_type, dims, reshape))
    };
    let input = |it: &DeclaredTensor| -> Result<ModelInput> {
        let (name, data_type, dims, reshape) = form(it, "input")?;
        Ok(ModelInput { name, data_type, dims, reshape, ..Default::default() })
    };
    let output = |it: &DeclaredTensor| -> Result<ModelOutput> {
        let (name, data_type, dims, reshape) = form(it, "output")?;
        Ok(ModelOutput { name, data_type, dims, reshape, ..Default::default() })
    };
    let made = made_by_sequences(config);
    // Outputs nobody asks for may be of any kind.
    let is_asked = |it: &&DeclaredTensor| match config.output.is_empty() {
        true => !made.contains(&&*it.name),
        false => config.output.iter().any(|written| written.name == it.name),
    };
    Ok(AutoComplete {
        source: CompletionSource::ModelFile,
        inputs: graph
            .inputs
            .iter()
            .filter(|it| !made.contains(&&*it.name))
            .map(input)
            .collect::<Result<_>>()?,
        outputs: graph.outputs.iter().filter(is_asked).map(output).collect::<Result<_>>()?,
        max_batch_size: Some(max_batch_size),
        dynamic_batching: 1 < max_batch_size && !is_whole(config),
        decoupled: None,
    })
}

/// The control inputs and the states of sequences, which no client sends or sees.
fn made_by_sequences(config: &ModelConfig) -> Vec<&str> {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else {
        return Vec::new();
    };
    let controls = batching.control_input.iter().map(|it| &*it.name);
    let states = batching.state.iter().flat_map(|it| [&*it.input_name, &*it.output_name]);
    controls.chain(states).collect()
}

/// Both sides are there; Triton leaves the batching of such a model alone.
fn is_whole(config: &ModelConfig) -> bool {
    !config.input.is_empty() && !config.output.is_empty()
}

/// Element type and full dims.
struct FoundTensor(i32, Vec<i64>);

impl FoundTensor {
    fn of(self, batches: bool) -> (i32, Vec<i64>, Option<ModelTensorReshape>) {
        let FoundTensor(dtype, mut dims) = self;
        if batches && !dims.is_empty() {
            dims.remove(0);
        }
        if !dims.is_empty() {
            return (dtype, dims, None);
        }
        // A config cannot say "no dimensions".
        (dtype, vec![1], batches.then(ModelTensorReshape::default))
    }
}

fn found_form(config: &ModelConfig, declared: &DeclaredTensor, kind: &str) -> Result<FoundTensor> {
    let TensorForm { element, dims } = declared.form().map_err(Error::unsupported)?;
    let dtype = dtype::from_onnx(*element).ok_or_else(|| {
        Error::unsupported(format!(
            "unsupported datatype TYPE_{} for {kind} '{}' for model '{}'",
            dtype::name(*element),
            declared.name,
            config.name
        ))
    })?;
    Ok(FoundTensor(dtype.to_proto(), dims.clone()))
}

fn max_batch_size(settings: &Settings, config: &ModelConfig, graph: &ModelGraph) -> Result<i32> {
    let (m, written) = (&config.name, config.max_batch_size);
    let all = graph.inputs.iter().chain(&graph.outputs);
    let dims = |it: &DeclaredTensor| it.kind.as_ref().map_or(&[][..], |form| &form.dims).to_vec();
    let can_batch = all.clone().all(|it| dims(it).first() == Some(&-1));
    if written != 0 && !is_whole(config) && !can_batch {
        return Err(Error::invalid(format!(
            "autofill failed for model '{m}': model does not support batching while non-zero \
             max_batch_size is specified"
        )));
    }
    if written != 0 || is_whole(config) || !can_batch {
        return Ok(written);
    }
    // Dims that were written tell whether they are meant to be whole.
    let inputs = config.input.iter().map(|it| (&it.name, &it.dims, it.reshape.is_some()));
    let outputs = config.output.iter().map(|it| (&it.name, &it.dims, it.reshape.is_some()));
    let hints: Vec<bool> = inputs
        .chain(outputs)
        .filter(|(_, dims, reshaped)| !dims.is_empty() && !reshaped)
        .filter_map(|(name, written, _)| {
            let rank = dims(all.clone().find(|it| it.name == **name)?).len();
            (rank.abs_diff(written.len()) <= 1).then_some(written.len() < rank)
        })
        .collect();
    match (hints.contains(&true), hints.contains(&false)) {
        (true, true) => Err(Error::invalid(format!(
            "unable to autofill for '{m}', model tensor configurations are contradicting each \
             other in terms of whether batching is supported"
        ))),
        (false, true) => Ok(0),
        _ => default_max_batch_size(settings, m),
    }
}

fn default_max_batch_size(settings: &Settings, model: &str) -> Result<i32> {
    let key = "default-max-batch-size";
    let size = match settings.get("onnxruntime", key) {
        None => DEFAULT_MAX_BATCH_SIZE,
        Some(text) => text.parse().ok().filter(|it| 0 <= *it).ok_or_else(|| {
            Error::invalid(format!(
                "--backend-config=onnxruntime,{key} is '{text}', expected a number from 0"
            ))
        })?,
    };
    tracing::info!(
        "autofilled max_batch_size to {size} for model '{model}' since batching is supported but \
         no max_batch_size is specified in model configuration"
    );
    Ok(size)
}

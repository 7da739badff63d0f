//! Merges what a backend found out about its model into what was written.

use super::draft::Draft;
use super::problem::Problem;
use troupe_proto::inference::model_config::SchedulingChoice;
use troupe_proto::inference::{
    DataType, ModelDynamicBatching, ModelInput, ModelOutput, ModelTransactionPolicy,
};

/// What a backend found out; nothing else may be filled in by one.
#[derive(Clone, Debug, Default)]
pub struct AutoComplete {
    pub source: CompletionSource,
    pub inputs: Vec<ModelInput>,
    pub outputs: Vec<ModelOutput>,
    /// `None`: the backend does not say.
    pub max_batch_size: Option<i32>,
    /// The model may get dynamic batching when no scheduler was written.
    pub dynamic_batching: bool,
    /// `None`: the backend does not say.
    pub decoupled: Option<bool>,
}

/// Who completes, which decides what happens where the file and the backend disagree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionSource {
    /// Fills gaps only; its backend compares the finished configuration with the file itself.
    #[default]
    ModelFile,
    /// `auto_complete_config` of a Python model: contradictions are problems, tensors are added.
    Python,
}

impl Draft {
    /// Fills in what was not written; what contradicts it is a problem in Triton's words.
    pub fn auto_complete(&mut self, found: AutoComplete) -> Result<(), Vec<Problem>> {
        let mut merge = ConfigMerge { draft: self, source: found.source, problems: Vec::new() };
        merge.max_batch_size(found.max_batch_size);
        if found.dynamic_batching {
            merge.dynamic_batching();
        }
        merge.inputs(found.inputs);
        merge.outputs(found.outputs);
        merge.decoupled(found.decoupled);
        if merge.problems.is_empty() { Ok(()) } else { Err(merge.problems) }
    }
}

struct ConfigMerge<'a> {
    draft: &'a mut Draft,
    source: CompletionSource,
    problems: Vec<Problem>,
}

/// The parts of a written tensor that may be filled.
struct FillableTensor<'a> {
    name: &'a str,
    data_type: &'a mut i32,
    dims: &'a mut Vec<i64>,
}

impl ConfigMerge<'_> {
    fn max_batch_size(&mut self, found: Option<i32>) {
        let Some(found) = found else { return };
        let written = self.draft.proto.max_batch_size;
        match self.source {
            CompletionSource::Python if written > found => {
                let text = format!(
                    "configuration specified max_batch_size {written}, but in \
                     auto-complete-config function for model '{}' specified max_batch_size {found}",
                    self.draft.proto.name
                );
                self.problem("max_batch_size", text);
            }
            CompletionSource::ModelFile if written != 0 => {}
            _ => self.draft.proto.max_batch_size = found,
        }
    }

    fn dynamic_batching(&mut self) {
        let written = match &self.draft.proto.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(_)) => return,
            Some(SchedulingChoice::SequenceBatching(_)) => "sequence_batching",
            Some(SchedulingChoice::EnsembleScheduling(_)) => "ensemble_scheduling",
            None => {
                let batching = ModelDynamicBatching::default();
                let choice = SchedulingChoice::DynamicBatching(batching);
                self.draft.proto.scheduling_choice = Some(choice);
                return;
            }
        };
        if self.source == CompletionSource::Python {
            let text = format!(
                "Configuration specified scheduling_choice as '{written}', but \
                 auto-complete-config function for model '{}' tries to set scheduling_choice as \
                 'dynamic_batching'",
                self.draft.proto.name
            );
            self.problem(written, text);
        }
    }

    fn inputs(&mut self, found: Vec<ModelInput>) {
        let mut written = std::mem::take(&mut self.draft.proto.input);
        let add = written.is_empty() || self.source == CompletionSource::Python;
        for input in found {
            let Some(index) = written.iter().position(|written| written.name == input.name) else {
                written.extend(add.then_some(input));
                continue;
            };
            let ours = &mut written[index];
            // A message cannot tell "not optional" from "not said".
            if self.source == CompletionSource::Python && input.optional && !ours.optional {
                let text = format!(
                    "model '{}', tensor '{}': the model expects optional True but the model \
                     configuration specifies optional False",
                    self.draft.proto.name, input.name
                );
                self.problem(&format!("input[{index}]"), text);
            }
            let ours = FillableTensor {
                name: &ours.name,
                data_type: &mut ours.data_type,
                dims: &mut ours.dims,
            };
            self.merge(&format!("input[{index}]"), ours, input.data_type, input.dims);
        }
        self.draft.proto.input = written;
    }

    fn outputs(&mut self, found: Vec<ModelOutput>) {
        let mut written = std::mem::take(&mut self.draft.proto.output);
        let add = written.is_empty() || self.source == CompletionSource::Python;
        for output in found {
            let Some(index) = written.iter().position(|written| written.name == output.name) else {
                written.extend(add.then_some(output));
                continue;
            };
            let ours = &mut written[index];
            let ours = FillableTensor {
                name: &ours.name,
                data_type: &mut ours.data_type,
                dims: &mut ours.dims,
            };
            self.merge(&format!("output[{index}]"), ours, output.data_type, output.dims);
        }
        self.draft.proto.output = written;
    }

    /// Fills the type and dimensions of a tensor both sides name.
    fn merge(&mut self, path: &str, ours: FillableTensor<'_>, data_type: i32, dims: Vec<i64>) {
        let model = &self.draft.proto.name;
        let python = self.source == CompletionSource::Python;
        let (our_type, their_type) = (type_name(*ours.data_type), type_name(data_type));
        if *ours.data_type == 0 {
            *ours.data_type = data_type;
        } else if python && *ours.data_type != data_type {
            let text = format!(
                "unable to load model '{model}', configuration expects datatype {our_type} for \
                 {} '{}', model provides {their_type}",
                path.split('[').next().unwrap_or(path),
                ours.name
            );
            self.problems.push(self.draft.source_map.problem(&format!("{path}.data_type"), text));
        }
        if ours.dims.is_empty() {
            *ours.dims = dims;
        } else if python && *ours.dims != dims {
            let text = format!(
                "model '{model}', tensor '{}': the model expects dims {:?} but the model \
                 configuration specifies dims {:?}",
                ours.name, dims, ours.dims
            );
            self.problems.push(self.draft.source_map.problem(&format!("{path}.dims"), text));
        }
    }

    fn decoupled(&mut self, found: Option<bool>) {
        let Some(found) = found else { return };
        match &self.draft.proto.model_transaction_policy {
            Some(written)
                if written.decoupled != found && self.source == CompletionSource::Python =>
            {
                let text = format!(
                    "trying to change decoupled property in auto-complete-config for model '{}', \
                     which is already set to '{}'",
                    self.draft.proto.name,
                    python(written.decoupled)
                );
                self.problem("model_transaction_policy.decoupled", text);
            }
            Some(_) => {}
            None => {
                let policy = ModelTransactionPolicy { decoupled: found };
                self.draft.proto.model_transaction_policy = Some(policy);
            }
        }
    }

    fn problem(&mut self, path: &str, text: String) {
        self.problems.push(self.draft.source_map.problem(path, text));
    }
}

fn type_name(number: i32) -> &'static str {
    DataType::try_from(number).unwrap_or_default().as_str_name()
}

/// A boolean as Python prints it.
fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

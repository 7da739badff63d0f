//! Checks the implicit state of sequences: `state` of a `sequence_batching`.

use std::collections::HashSet;

use super::{
    report::ConfigReport,
    tensors::{is_dimension, stays_inside},
};
use crate::config::sequence::{InitialState, SequenceState};
use crate::tensor::DataType;
use troupe_proto::inference::{
    ModelConfig, ModelSequenceBatching,
    model_sequence_batching::{self as proto, State, initial_state::StateData},
};

/// The checked states; those with problems may be missing. `names` are those of all other inputs.
pub(super) fn states<'a>(
    config: &ModelConfig,
    written: &'a ModelSequenceBatching,
    names: &mut HashSet<&'a str>,
    report: &mut ConfigReport<'_>,
) -> Vec<SequenceState> {
    let mut states: Vec<SequenceState> = Vec::new();
    for (index, state) in written.state.iter().enumerate() {
        let path = format!("sequence_batching.state[{index}]");
        let input = &state.input_name;
        if states.iter().any(|it| *it.input == **input) {
            let text = format!("State input name '{input}' specified more than once.");
            report.add(&format!("{path}.input_name"), text);
            continue;
        }
        if !input.is_empty() && !names.insert(input) {
            let text = format!(
                "state input '{input}' is kept by the server, so it cannot be another input too"
            );
            report.add(&format!("{path}.input_name"), text);
        }
        if states.iter().any(|it| *it.output == *state.output_name) {
            let text = format!("state output '{}' is specified more than once", state.output_name);
            report.add(&format!("{path}.output_name"), text);
        }
        match checked(config, state, &path, report) {
            Ok(state) => states.push(state),
            Err((field, text)) => report.add(&format!("{path}.{field}"), text),
        }
    }
    states
}

/// A field, and what is wrong with it.
type Wrong = (&'static str, String);

fn checked(
    config: &ModelConfig,
    written: &State,
    path: &str,
    report: &mut ConfigReport<'_>,
) -> Result<SequenceState, Wrong> {
    let (input, output) = (&written.input_name, &written.output_name);
    let m = report.model;
    let state = format!("state '{input}' of model '{m}'");
    for (field, name) in [("input_name", input), ("output_name", output)] {
        if name.is_empty() {
            return Err((field, format!("{state} must specify '{field}'")));
        }
    }
    let dtype = DataType::from_proto(written.data_type)
        .ok_or_else(|| ("data_type", format!("{state} must specify 'data_type'")))?;
    if !written.dims.iter().all(|it| is_dimension(*it)) {
        let text = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension";
        return Err(("dims", format!("{state} {text}")));
    }
    let seen = config.output.iter().find(|it| it.name == *output);
    if let Some(seen) = seen.filter(|it| it.data_type != written.data_type) {
        let of_output = DataType::from_proto(seen.data_type).map_or("none", DataType::config_name);
        let dtype = dtype.config_name();
        let text = format!("{state} is {dtype}, but its output '{output}' is {of_output}");
        return Err(("data_type", text));
    }
    if let Some(seen) = seen.filter(|it| it.reshape.is_some()) {
        let text = format!("{state} is kept as output '{}', which must have no reshape", seen.name);
        return Err(("output_name", text));
    }
    if written.use_growable_memory {
        report.add(&format!("{path}.use_growable_memory"), growable(written));
    }
    let [] = &*written.initial_state else {
        return with_initial(written, dtype);
    };
    let initial_dims = written.dims.iter().map(|it| (*it).max(1)).collect();
    Ok(of(written, dtype, initial_dims, InitialState::Zero))
}

/// Memory that grows in place is virtual memory of a GPU.
fn growable(written: &State) -> String {
    if !written.use_same_buffer_for_input_output {
        let name = &written.input_name;
        return format!(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state \
             input name '{name}'."
        );
    }
    "'use_growable_memory' can only work with KIND_GPU model instances right now. Without it a \
     state grows too: each request may leave a larger one"
        .to_owned()
}

fn with_initial(written: &State, dtype: DataType) -> Result<SequenceState, Wrong> {
    let x = &written.input_name;
    let wrong = |text: String| ("initial_state", text);
    let [initial] = &*written.initial_state else {
        let found = written.initial_state.len();
        return Err(wrong(format!(
            "initial_state field for state input '{x}' must contain exactly one or zero element. \
             Found '{found}' elements."
        )));
    };
    if initial.data_type != written.data_type {
        return Err(wrong(format!(
            "The data type used for 'initial_state' field of state '{x}' does not match the state \
             data type."
        )));
    }
    if initial.name.is_empty() {
        return Err(wrong(format!(
            "Field 'name' must be set when using initial_state for state input '{x}'."
        )));
    }
    dims(written, initial).map_err(wrong)?;
    let data = match &initial.state_data {
        // As in Triton, writing the field asks for it, whatever its value.
        Some(StateData::ZeroData(_)) => InitialState::Zero,
        Some(StateData::DataFile(file)) if stays_inside(file) => InitialState::File(file.clone()),
        Some(StateData::DataFile(file)) => {
            return Err(wrong(format!(
                "initial_state file path '{file}' of state '{x}' is outside the model's \
                 initial_state directory"
            )));
        }
        None => {
            let text = format!("initial_state setting expects state'{x}' to have state_data set");
            return Err(wrong(text));
        }
    };
    Ok(of(written, dtype, initial.dims.clone(), data))
}

fn dims(written: &State, initial: &proto::InitialState) -> Result<(), String> {
    let x = &written.input_name;
    let (of_initial, of_state) = (initial.dims.len(), written.dims.len());
    if of_initial != of_state {
        return Err(format!(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions \
             for state input '{x}'. {of_initial} != {of_state}"
        ));
    }
    if initial.dims.iter().any(|it| *it < 0) {
        return Err(format!(
            "'initial_state' field for state input name '{x}' contains variable dimensions."
        ));
    }
    let mut pairs = initial.dims.iter().zip(&written.dims);
    match pairs.find(|(initial, dim)| **dim != -1 && initial != dim) {
        Some((initial, dim)) => Err(format!(
            "'initial_state' dim for input name '{x}' doesn't match 'state' dim description. \
             {initial} != {dim}"
        )),
        None => Ok(()),
    }
}

fn of(
    written: &State,
    dtype: DataType,
    initial_dims: Vec<i64>,
    initial: InitialState,
) -> SequenceState {
    SequenceState {
        input: written.input_name.as_str().into(),
        output: written.output_name.as_str().into(),
        dtype,
        dims: written.dims.clone(),
        initial_dims,
        initial,
    }
}

//! Reads what sequences begin with: zeros, or files of the folder `initial_state`.

use std::path::Path;

use bytes::Bytes;

use super::raw_file;
use troupe_base::{
    config::{InitialState, ModelConfig, Problem, SequenceState},
    model::warmup::ReadLimit,
    request::{MAX_INITIAL_BYTES, zero_bytes},
    tensor::{DataType, check_strings, element_count},
};

/// In a model's directory; holds raw tensors.
const FOLDER: &str = "initial_state";

/// The bytes of each state, in the order of the config, or every problem they have. Blocks.
pub(crate) fn read(config: &ModelConfig, model_dir: &Path) -> Result<Vec<Bytes>, Vec<Problem>> {
    let folder = model_dir.join(FOLDER);
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    for (index, state) in config.states().iter().enumerate() {
        match bytes(state, &folder) {
            Ok(bytes) => read.push(bytes),
            Err(text) => {
                let path = format!("sequence_batching.state[{index}].initial_state");
                problems.push(config.source_map.problem(&path, text));
            }
        }
    }
    if problems.is_empty() { Ok(read) } else { Err(problems) }
}

fn bytes(state: &SequenceState, folder: &Path) -> Result<Bytes, String> {
    let dims = &state.initial_dims;
    let zeros = zero_bytes(state.dtype, dims);
    let zeros = zeros.map_err(|error| format!("state '{}': {error}", state.input))?;
    let InitialState::File(file) = &state.initial else { return Ok(zeros) };
    let failed = |error: String| format!("state '{}' from '{file}': {error}", state.input);
    if state.dtype == DataType::Bytes {
        let limit = ReadLimit::AtMost(MAX_INITIAL_BYTES);
        let bytes = raw_file::read_first(folder, file, limit, FOLDER)?;
        let elements = element_count(dims).map_err(|error| failed(error.to_string()))?;
        check_strings(&bytes, elements).map_err(|error| failed(error.to_string()))?;
        return Ok(bytes);
    }
    let wanted = zeros.len();
    let bytes = raw_file::read_first(folder, file, ReadLimit::Exactly(wanted), FOLDER)?;
    match bytes.len() < wanted {
        // Without a blank before `only`, as Triton says it.
        true => Err(format!(
            "initial_state setting expects {wanted} bytes, but the data provided from {file}only \
             has {} bytes.",
            bytes.len()
        )),
        false => Ok(bytes),
    }
}

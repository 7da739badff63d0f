//! A config as executors see it: with the inputs and outputs that sequences add.

use super::{
    sequence::{SequenceBatching, SequenceState},
    types::{Batching, Input, ModelConfig, Output},
};

impl ModelConfig {
    /// Its sequence batching, if it has one.
    #[inline]
    pub fn sequences(&self) -> Option<&SequenceBatching> {
        match &self.batching {
            Batching::Sequence(batching) => Some(batching),
            _ => None,
        }
    }

    /// The states that the server keeps for each sequence.
    #[inline]
    pub fn states(&self) -> &[SequenceState] {
        self.sequences().map_or(&[], |batching| &batching.states)
    }

    /// The config as executors see it: behind the inputs of clients come the control inputs, then
    /// the state inputs; behind their outputs those of states that clients do not see. `None` where
    /// that is the same. `proto` stays what clients see.
    pub fn for_executor(&self) -> Option<ModelConfig> {
        let batching = self.sequences()?;
        let mut config = self.clone();
        let controls = batching.controls.iter().map(|it| (&it.name, it.dtype, vec![1]));
        let states = batching.states.iter();
        let state_inputs = states.clone().map(|it| (&it.input, it.dtype, it.dims.clone()));
        config.inputs.extend(controls.chain(state_inputs).map(|(name, dtype, dims)| Input {
            name: name.clone(),
            dtype,
            dims,
            reshape: None,
            optional: false,
            ragged: false,
        }));
        for state in states {
            if config.output_index(&state.output).is_none() {
                config.outputs.push(Output {
                    name: state.output.clone(),
                    dtype: state.dtype,
                    dims: state.dims.clone(),
                    reshape: None,
                    label_filename: String::new(),
                    scatter: None,
                });
            }
        }
        Some(config)
    }
}

//! Turns config.pbtxt into a checked `ModelConfig`, or into every problem it has.
//!
//! In a line: `text` (protobuf text format) or JSON → `draft` (what was written, what the model's
//! folder says and what its backend completes) → `normalise` (defaults) → `check` (every problem at
//! once) → [`ModelConfig`] in `types`. [`Draft::finish`] runs the last three.

mod auto_complete;
mod backend;
mod backend_traits;
mod bytes;
mod check;
mod draft;
mod executor_config;
mod features;
mod finish;
pub mod json;
mod normalise;
mod priorities;
mod problem;
mod sequence;
#[cfg(test)]
mod tests;
mod text;
mod types;

pub use self::{
    auto_complete::{AutoComplete, CompletionSource},
    backend::{meant_backend, usual_file},
    backend_traits::BackendTraits,
    bytes::parse_bytes,
    check::{Uncacheable, scheduling_warnings, stays_in_model, uncacheable},
    draft::{Draft, read_json, read_text},
    features::{MINIMUM_CAPABILITY, ServerFeatures},
    priorities::{PriorityLevels, QueuePolicy},
    problem::{
        Problem, SourceMap, SourcePosition, did_you_mean, instead, join_messages, join_texts,
        suggesting,
    },
    sequence::{
        ControlKind, DirectSequences, InitialState, OldestSequences, SequenceBatching,
        SequenceControl, SequenceFlag, SequenceState, SequenceStrategy, slots,
    },
    types::{
        BatchInput, BatchInputKind, Batching, DynamicBatching, EnsembleConfig, Input,
        InstanceGroup, InstanceKind, InstanceScaling, ModelConfig, Output, RateLimits,
        RateResource, ResponseCachePolicy, StepConfig, VersionPolicy, Warmup, WarmupData,
        WarmupInput,
    },
};

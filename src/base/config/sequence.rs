//! The checked `sequence_batching` of a model: strategy, control inputs, implicit state, iterations.

use std::{sync::Arc, time::Duration};

use crate::tensor::DataType;

/// How the requests of a sequence reach one instance, in their order, and what they bring along.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatching {
    pub strategy: SequenceStrategy,
    /// A sequence without requests for this long is forgotten.
    pub max_idle: Duration,
    /// In the order of the config; no client sends them.
    pub controls: Vec<SequenceControl>,
    /// In the order of the config; the server keeps them from one request to the next.
    pub states: Vec<SequenceState>,
    /// A request without an id begins a sequence, and goes on in it for as long as the model
    /// reschedules it.
    pub is_iterative: bool,
}

impl SequenceBatching {
    /// Sequences that an instance has at a time, of a model with this `max_batch_size`.
    pub fn slots(&self, max_batch_size: u32) -> u32 {
        match &self.strategy {
            SequenceStrategy::Direct(_) => slots(0, max_batch_size),
            SequenceStrategy::Oldest(oldest) => slots(oldest.max_candidates, max_batch_size),
        }
    }
}

/// Sequences that an instance has at a time: as many as `max_candidates`, or where there is none (0) as
/// a batch has rows.
pub fn slots(max_candidates: u32, max_batch_size: u32) -> u32 {
    if max_candidates == 0 { max_batch_size.max(1) } else { max_candidates }
}

/// Which requests of the sequences of one instance are executed together.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// Each sequence has a row of the batch for itself.
    Direct(DirectSequences),
    /// The oldest requests, one of each sequence, in any rows.
    Oldest(OldestSequences),
}

/// `direct` of a `sequence_batching`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectSequences {
    pub max_queue_delay: Duration,
    /// From 0 to 1: the part of the rows that need not wait for others; 0: no row waits.
    pub minimum_slot_utilization: f32,
}

/// `oldest` of a `sequence_batching`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OldestSequences {
    /// Sequences of each instance; 0: as many as a batch has rows.
    pub max_candidates: u32,
    pub preferred: Vec<u32>,
    pub max_queue_delay: Duration,
    pub preserve_ordering: bool,
}

/// An input of shape `[1]` that says where in its sequence a request is.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceControl {
    pub name: Arc<str>,
    pub dtype: DataType,
    pub kind: ControlKind,
}

/// What a control input says.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlKind {
    /// The bytes of its one element where this is not so, and where it is.
    Flag(SequenceFlag, [Vec<u8>; 2]),
    /// The sequence's id: a string, or as much of a number as the data type holds.
    CorrelationId,
}

/// A fact about a request that a control input tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceFlag {
    /// It is the first of its sequence.
    Start,
    /// There is a request: false in a row that has none.
    Ready,
    /// It is the last of its sequence.
    End,
}

/// A tensor that the server keeps for each sequence: what the model writes as `output` it reads as
/// `input` with the next request.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceState {
    pub input: Arc<str>,
    pub output: Arc<str>,
    pub dtype: DataType,
    /// -1: any size; without the batch dimension.
    pub dims: Vec<i64>,
    /// What a sequence begins with has these dims, none of which is -1.
    pub initial_dims: Vec<i64>,
    pub initial: InitialState,
}

/// What a sequence begins with.
#[derive(Clone, Debug, PartialEq)]
pub enum InitialState {
    Zero,
    /// Relative to the folder `initial_state` in the model's directory, and inside it.
    File(String),
}

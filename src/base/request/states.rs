//! Implicit state: tensors that the server keeps for each sequence from one request to the next.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Request, SEQUENCE_START, Wanted};
use crate::{
    budget::{Budget, ByteBudget, Kept, Kind, Reason, Reserved},
    config::{ModelConfig, SequenceState},
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor, element_count, shape_text},
};

/// States up to so many bytes are copied out of what the model answered: sharing one would keep
/// what was answered beside it.
const MAX_COPIED_BYTES: usize = 64 << 10;
/// Bytes that one state of a sequence may begin with.
pub const MAX_INITIAL_BYTES: usize = 2 << 30;

/// The states of a model: where they are among its tensors, and what a sequence begins with.
pub struct StateSet {
    model: Arc<str>,
    /// The position of the first one among the inputs of executors; the others follow it.
    first_input: usize,
    /// How many of the executors' outputs clients see; they come first.
    seen_outputs: usize,
    batches: bool,
    /// Rows of several sequences may be answered as one tensor.
    joins: bool,
    places: Vec<StatePlace>,
    /// What all sequences of the model may hold.
    share: Arc<Budget>,
    budget: Arc<ByteBudget>,
}

/// One state of a model.
struct StatePlace {
    output: Arc<str>,
    /// The position among the outputs of executors.
    position: usize,
    /// One row, where the model batches.
    initial: Tensor,
}

/// The states of one sequence. Lives as long as the sequence, or a request of it, does.
pub struct SequenceStates {
    set: Arc<StateSet>,
    /// In the order of the set; `None` as long as it is the initial one.
    kept: Mutex<Vec<Option<KeptState>>>,
}

/// A state, and the bytes that are held for it.
struct KeptState {
    tensor: Tensor,
    held: Arc<HeldBytes>,
}

struct HeldBytes {
    of_share: Reserved,
    _of_budget: Kept,
}

/// Takes the states out of what is answered to one request.
pub struct StateKeeper {
    states: Arc<SequenceStates>,
    /// What the client asked for.
    wanted: Wanted,
}

impl StateSet {
    /// Of a model whose config is as executors see it; `initial` has the bytes that a sequence
    /// begins with, of one state after the other. `None` if the model has no states.
    pub fn new(
        config: &ModelConfig,
        initial: Vec<Bytes>,
        budget: &Arc<ByteBudget>,
    ) -> Result<Option<Arc<StateSet>>> {
        let states = config.states();
        if states.is_empty() {
            return Ok(None);
        }
        let batches = config.max_batch_size > 0;
        let place = |(state, initial): (&SequenceState, Bytes)| {
            let batch = batches.then_some(1);
            let shape: Shape = batch.into_iter().chain(state.initial_dims.clone()).collect();
            let position = config.output_index(&state.output);
            let position = position.ok_or_else(|| Error::internal("a state without an output"))?;
            let initial = Tensor::new(state.dtype, shape, initial)?.of_counted();
            Ok(StatePlace { output: state.output.clone(), position, initial })
        };
        Ok(Some(Arc::new(StateSet {
            model: config.name.clone(),
            first_input: config.inputs.len() - states.len(),
            seen_outputs: config.proto.output.len(),
            batches,
            joins: config.max_batch_size > 1,
            places: states.iter().zip(initial).map(place).collect::<Result<_>>()?,
            share: budget.model_share(),
            budget: budget.clone(),
        })))
    }

    /// The states of a sequence that begins.
    pub fn begin(self: &Arc<StateSet>) -> Arc<SequenceStates> {
        let kept = self.places.iter().map(|_| None).collect();
        Arc::new(SequenceStates { set: self.clone(), kept: Mutex::new(kept) })
    }

    /// States of zeros, for rows without a request, as large as those of `like`; of the initial size
    /// if there is no other row.
    pub fn zeros(&self, like: Option<&Request>) -> Vec<Option<Tensor>> {
        let zeros = |(index, place): (usize, &StatePlace)| {
            let other = like.and_then(|it| it.inputs.get(self.first_input + index)?.as_ref());
            Some(other.unwrap_or(&place.initial).zeros_like())
        };
        self.places.iter().enumerate().map(zeros).collect()
    }

    /// Puts such zeros behind the other inputs of a request.
    pub fn feed_zeros(&self, request: &mut Request, zeros: &[Option<Tensor>]) {
        request.inputs.resize(self.first_input, None);
        request.inputs.extend_from_slice(zeros);
    }

    /// Can the states of these requests be joined into one execution?
    pub fn are_alike(&self, one: &Request, other: &Request) -> bool {
        let states = |it: &Request| {
            let states = it.inputs.get(self.first_input..).unwrap_or_default();
            states
                .iter()
                .flatten()
                .map(|it| (it.dtype(), Shape::from(it.shape())))
                .collect::<Vec<_>>()
        };
        states(one) == states(other)
    }

    /// Holds the bytes of a state; RESOURCE_EXHAUSTED if there is no room for them.
    fn hold(&self, bytes: usize) -> Result<Arc<HeldBytes>> {
        let of_share = self.share.reserve(bytes).map_err(|exceeded| {
            self.budget.count_refusal(Reason::ModelBytes);
            Error::exhausted(format!(
                "the sequences of model '{}' hold {} bytes of state, and {bytes} more are no room \
                 for: at most {}, three eighths of --max-inflight-bytes",
                self.model, exceeded.in_use, exceeded.cap
            ))
        })?;
        Ok(Arc::new(HeldBytes { of_share, _of_budget: self.budget.keep(Kind::Tensors, bytes) }))
    }
}

impl SequenceStates {
    /// Puts the states behind the other inputs of a request that is about to be executed, in place
    /// of those it was given before. The first request of a sequence gets the initial ones.
    pub fn feed(&self, request: &mut Request) {
        let mut kept = self.kept.lock();
        if request.context.flags & SEQUENCE_START != 0 {
            kept.iter_mut().for_each(|it| *it = None);
        }
        request.inputs.resize(self.set.first_input, None);
        let states = kept.iter().zip(&self.set.places);
        let states = states.map(|(kept, place)| match kept {
            Some(kept) => kept.tensor.clone(),
            None => place.initial.clone(),
        });
        request.inputs.extend(states.map(Some));
    }

    /// How many bytes the next request of the sequence is given.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.lock();
        let states = kept.iter().zip(&self.set.places);
        states
            .map(|(kept, place)| kept.as_ref().map_or(&place.initial, |it| &it.tensor).data().len())
            .sum()
    }

    /// Whoever answers this request keeps its states. The request asks for them from now on.
    pub fn keeper(self: &Arc<SequenceStates>, request: &mut Request) -> StateKeeper {
        let wanted = request.wanted.clone();
        if let Wanted::Only(some) = &mut request.wanted {
            let positions = self.set.places.iter().map(|it| it.position as u16);
            some.extend(positions.filter(|it| !wanted.has(usize::from(*it))));
        }
        StateKeeper { states: self.clone(), wanted }
    }
}

impl StateKeeper {
    /// The states of the request's sequence.
    pub fn states(&self) -> &Arc<SequenceStates> {
        &self.states
    }

    /// Keeps the states among the outputs, and leaves what the client asked for. A state that the
    /// model has not written stays as it is, and all of them do where this fails.
    pub fn keep(&self, outputs: &mut Vec<Option<Tensor>>) -> Result<()> {
        let set = &self.states.set;
        let mut kept = self.states.kept.lock();
        let mut written = Vec::with_capacity(set.places.len());
        for (place, kept) in set.places.iter().zip(kept.iter()) {
            let Some(tensor) = outputs.get(place.position).and_then(Option::as_ref) else {
                written.push(None);
                continue;
            };
            if set.batches && tensor.rows() != 1 {
                let (output, model) = (&place.output, &set.model);
                let shape = shape_text(tensor.shape());
                let text = format!("state output '{output}' of model '{model}' has shape {shape}");
                return Err(Error::internal(format!("{text}, expected 1 row")));
            }
            let bytes = tensor.data().len();
            let held = match kept {
                Some(kept) if kept.held.of_share.bytes() == bytes => kept.held.clone(),
                _ => set.hold(bytes)?,
            };
            written.push(Some(KeptState { tensor: own(tensor, set.joins)?, held }));
        }
        for (kept, written) in kept.iter_mut().zip(written) {
            if written.is_some() {
                *kept = written;
            }
        }
        drop(kept);
        for place in &set.places {
            if let Some(output) = outputs.get_mut(place.position)
                && !self.wanted.has(place.position)
            {
                *output = None;
            }
        }
        outputs.truncate(set.seen_outputs);
        Ok(())
    }
}

impl fmt::Debug for StateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSet").field("model", &self.model).finish_non_exhaustive()
    }
}

/// The same tensor, in memory of its own if it is small, or if it may be a row of a batch: those
/// would be kept as a whole. A worker's segment has no rows of other requests.
fn own(tensor: &Tensor, joins: bool) -> Result<Tensor> {
    let is_row = joins && tensor.segment().is_none();
    if !is_row && MAX_COPIED_BYTES < tensor.data().len() {
        return Ok(tensor.clone().of_counted());
    }
    let data = Bytes::copy_from_slice(tensor.data());
    Ok(Tensor::new(tensor.dtype(), tensor.shape().into(), data)?.of_counted())
}

/// The bytes of a tensor of zeros, `MAX_INITIAL_BYTES` at most; a string without characters is the
/// four bytes of its length.
pub fn zero_bytes(dtype: DataType, dims: &[i64]) -> Result<Bytes> {
    let size = element_count(dims)?.checked_mul(dtype.size().unwrap_or(4));
    let size = size.filter(|it| *it <= MAX_INITIAL_BYTES).ok_or_else(|| {
        let shape = shape_text(dims);
        Error::invalid(format!("shape {shape} takes more than {MAX_INITIAL_BYTES} bytes"))
    })?;
    Ok(vec![0; size].into())
}

#[cfg(test)]
mod tests;

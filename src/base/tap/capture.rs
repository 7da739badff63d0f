//! The tensors and failures that a tap has captured, within its byte limit.

use super::{CaptureEnd, CaptureSpec};
use crate::{
    request::{Context, Correlation, Parameter, Parameters, Request, Wanted},
    tensor::Tensor,
};

/// Bytes counted for each tensor, error and request beside its own: about what its entries here, in
/// the manifest and in the archive take.
const ENTRY_BYTES: usize = 1024;

/// Everything captured so far.
#[derive(Debug, Default)]
pub struct Capture {
    /// In the order they began.
    pub requests: Vec<CapturedRequest>,
    /// What is held counts as so many bytes.
    pub bytes: usize,
    /// Bytes of tensors that did not fit.
    pub left_out_bytes: usize,
    /// Why it is over, if that is known here.
    pub(super) ended: Option<CaptureEnd>,
    wanted: usize,
    most: usize,
    slots: usize,
    in_flight: usize,
}

/// One captured request.
#[derive(Debug, Default)]
pub struct CapturedRequest {
    /// The client's id.
    pub id: String,
    /// The client's parameters, those for the server left out.
    pub parameters: Parameters,
    /// Its sequence as parameters; empty if it belongs to none.
    pub sequence: Parameters,
    /// The outputs it asked for.
    pub wanted: Wanted,
    /// Its batch size; 0: the ensemble does not batch.
    pub batch: u32,
    /// What it left on its way.
    pub edges: Vec<CapturedTensor>,
    /// What did not fit, by slot.
    pub left_out: Vec<OmittedTensors>,
    /// Steps that failed.
    pub failed: Vec<StepFailure>,
    /// More failures, whose texts did not fit.
    pub more_failed: usize,
    /// It was through when the tap ended.
    pub has_ended: bool,
    /// There was no room even for its id and parameters: nothing of it was kept.
    pub is_left_out: bool,
}

/// A tensor between two steps.
#[derive(Clone, Debug)]
pub struct CapturedTensor {
    /// Which of the ensemble's tensors it is.
    pub slot: usize,
    /// Which response of a decoupled step it follows from.
    pub iteration: Option<u64>,
    /// The batch size of the request that made it; 0: its maker does not batch.
    pub batch: u32,
    /// As its maker made it.
    pub tensor: Tensor,
}

/// Tensors that did not fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct OmittedTensors {
    /// So many.
    pub count: usize,
    /// Of so many bytes together.
    pub bytes: usize,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFailure {
    /// Its position in the config.
    pub step: usize,
    /// Which response of a decoupled step it worked on.
    pub iteration: Option<u64>,
    /// What its model said.
    pub text: String,
}

impl Capture {
    pub(super) fn new(wish: &CaptureSpec, slots: usize) -> Capture {
        let (wanted, most) = (wish.requests.clamp(1, super::MAX_REQUESTS), wish.max_bytes);
        Capture { wanted, most, slots, ..Capture::default() }
    }

    /// Tensors held.
    pub fn tensors(&self) -> usize {
        self.requests.iter().map(|it| it.edges.len()).sum()
    }

    /// Tensors that did not fit.
    pub fn left_out(&self) -> usize {
        self.requests.iter().flat_map(|it| &it.left_out).map(|it| it.count).sum()
    }

    /// One more request: its number, and whether it is the last. `None` if there are enough.
    pub(super) fn begin(&mut self, request: &Request) -> Option<(usize, bool)> {
        let number = self.requests.len();
        if self.wanted <= number {
            return None;
        }
        let Request { context, wanted, batch, .. } = request;
        let parameters: usize = context.parameters.iter().map(|it| it.0.len() + size(&it.1)).sum();
        let mut tapped =
            CapturedRequest { is_left_out: true, batch: *batch, ..CapturedRequest::default() };
        tapped.left_out.resize(self.slots, OmittedTensors::default());
        if self.has_room(context.id.len() + parameters) {
            tapped.is_left_out = false;
            tapped.id.clone_from(&context.id);
            tapped.parameters.clone_from(&context.parameters);
            tapped.sequence = sequence(context);
            tapped.wanted = wanted.clone();
        }
        self.requests.push(tapped);
        self.in_flight += 1;
        Some((number, self.requests.len() == self.wanted))
    }

    pub(super) fn keep(&mut self, request: usize, edge: CapturedTensor) {
        let bytes = edge.tensor.data().len();
        let fits = !self.requests[request].is_left_out && self.has_room(bytes);
        let tapped = &mut self.requests[request];
        if fits {
            tapped.edges.push(edge);
            return;
        }
        let left_out = &mut tapped.left_out[edge.slot];
        left_out.count += 1;
        left_out.bytes = left_out.bytes.saturating_add(bytes);
        self.left_out_bytes = self.left_out_bytes.saturating_add(bytes);
    }

    pub(super) fn failed(&mut self, request: usize, failed: StepFailure) {
        let fits = !self.requests[request].is_left_out && self.has_room(failed.text.len());
        let tapped = &mut self.requests[request];
        if fits { tapped.failed.push(failed) } else { tapped.more_failed += 1 }
    }

    /// A request is through; says whether that was the last.
    pub(super) fn end(&mut self, request: usize) -> bool {
        self.requests[request].has_ended = true;
        self.in_flight -= 1;
        self.in_flight == 0 && self.requests.len() == self.wanted
    }

    /// Takes room for so many bytes, if there is some.
    fn has_room(&mut self, bytes: usize) -> bool {
        let after = self.bytes.saturating_add(bytes).saturating_add(ENTRY_BYTES);
        let fits = after <= self.most;
        if fits {
            self.bytes = after;
        }
        fits
    }
}

fn size(parameter: &Parameter) -> usize {
    if let Parameter::String(it) = parameter { it.len() } else { 8 }
}

/// What the client said of a sequence, as it said it.
fn sequence(context: &Context) -> Parameters {
    let id = match &context.correlation {
        Correlation::None => None,
        Correlation::Number(id) => Some(Parameter::Uint(*id)),
        Correlation::Text(id) => Some(Parameter::String(id.clone())),
    };
    let flag = |name, bit| (context.flags & bit != 0).then_some((name, Parameter::Bool(true)));
    let id = id.map(|it| ("sequence_id", it));
    let said = [id, flag("sequence_start", 1), flag("sequence_end", 2)];
    said.into_iter().flatten().map(|(name, it)| (name.into(), it)).collect()
}

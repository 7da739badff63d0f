//! Encodes requests into one frame: heads that repeat, then bytes; large ones lie in segments.

use std::sync::Arc;

use serde::Serialize;

use super::{frames::FRAME_LIMIT, kinds};
use crate::python::memory::segments::Segments;
use troupe_base::{
    budget::Kind,
    error::{Error, Result},
    request::{Context, Correlation, Parameter, Parameters, Request, Wanted},
    tensor::{DataType, Lease, SegmentPool, Tensor, element_count},
};

/// Larger tensors travel in shared segments. `encode.py` has the same number for outputs.
pub(crate) const INLINE_LIMIT: usize = 16 << 10;
/// Asks the worker to free what it does not use.
pub(crate) const TRIM: u16 = 1;

/// Beside the size of a group: it is empty because it was answered already. `decode.py` has the
/// same.
const LEFT_OUT: usize = 1;

const WANTED: u32 = 1;
const EXTRA: u32 = 2;
const IN_SEGMENT: u8 = 128;

/// A tensor in a segment, to find out whether the worker is its only reader.
pub(crate) struct PlacedTensor {
    lease: *const Lease,
    start: usize,
    end: usize,
    /// Where the frame says whether the worker may write to it.
    flag_at: usize,
    tensors: usize,
}

/// The `EXECUTE` frame of `groups`, written over `frame`. Tensors may move into segments.
///
/// A group whose tensors could not and are too much for a frame is left out, and the worker passes
/// over it: answers those, and why.
pub(crate) fn execute(
    frame: &mut Vec<u8>,
    sequence: u32,
    groups: &mut [Vec<Request>],
    segments: &mut Segments,
) -> Vec<(usize, Error)> {
    frame.clear();
    frame.resize(24, 0);
    let mut placed = Vec::new();
    let mut failures = Vec::new();
    for (index, group) in groups.iter_mut().enumerate() {
        let (start, placed_before) = (frame.len(), placed.len());
        put_u32(frame, group.len());
        put_u32(frame, 0);
        let mut requests = group.iter_mut();
        if let Err(error) =
            requests.try_for_each(|it| put_request(frame, it, segments, &mut placed))
        {
            frame.truncate(start);
            put_u32(frame, 0);
            put_u32(frame, LEFT_OUT);
            placed.truncate(placed_before);
            failures.push((index, error));
        }
    }
    mark_sole_readers(frame, &placed);
    finish(frame, sequence, groups.len(), segments, 0);
    failures
}

/// A frame without requests, which only says what happened to segments.
pub(crate) fn segment_updates(frame: &mut Vec<u8>, segments: &mut Segments, flags: u16) {
    frame.clear();
    frame.resize(24, 0);
    finish(frame, 0, 0, segments, flags);
}

/// Fills in the first 24 bytes, and after them what happened to segments.
fn finish(frame: &mut Vec<u8>, sequence: u32, groups: usize, segments: &mut Segments, flags: u16) {
    let mut counts = [0, 0, 0];
    if segments.has_updates() {
        // What does not fit into the counters goes with the next frame.
        let most = usize::from(u16::MAX);
        let mut updates = Vec::new();
        let new = std::mem::take(&mut segments.new);
        let rest = segments.forgotten.split_off(segments.forgotten.len().min(most));
        let forgotten = std::mem::replace(&mut segments.forgotten, rest);
        let released = segments.released();
        counts = [new.len(), forgotten.len(), released.len()];
        updates.extend(new.into_iter().flat_map(|(id, size)| [id, size]));
        updates.extend(forgotten);
        updates.extend(released);
        let bytes: Vec<u8> = updates.into_iter().flat_map(u64::to_le_bytes).collect();
        frame.splice(24..24, bytes);
    }
    let size = frame.len() as u32;
    frame[0..4].copy_from_slice(&size.to_le_bytes());
    frame[4] = kinds::EXECUTE;
    frame[8..12].copy_from_slice(&sequence.to_le_bytes());
    frame[12..16].copy_from_slice(&(groups as u32).to_le_bytes());
    for (at, count) in [16, 18, 20].into_iter().zip(counts) {
        frame[at..at + 2].copy_from_slice(&(count as u16).to_le_bytes());
    }
    frame[22..24].copy_from_slice(&flags.to_le_bytes());
}

fn put_request(
    frame: &mut Vec<u8>,
    request: &mut Request,
    segments: &mut Segments,
    placed: &mut Vec<PlacedTensor>,
) -> Result<()> {
    let start = frame.len();
    frame.resize(start + 8, 0);
    let inputs = request.inputs.iter().flatten().count();
    let extra = extra(request);
    let wanted: &[u16] = match &request.wanted {
        Wanted::All => &[],
        Wanted::Only(some) => some,
    };
    let mut flags = if request.wanted == Wanted::All { 0 } else { WANTED };
    if extra.is_some() {
        flags |= EXTRA;
    }
    put_u32(frame, request.batch as usize);
    frame.extend_from_slice(&(inputs as u16).to_le_bytes());
    frame.extend_from_slice(&(wanted.len() as u16).to_le_bytes());
    frame.extend_from_slice(&flags.to_le_bytes());
    let owner = request.context.owner.get();
    put_u32(frame, owner.number() as usize);
    frame.extend(wanted.iter().flat_map(|it| it.to_le_bytes()));
    pad(frame);
    for (index, tensor) in request.inputs.iter_mut().enumerate() {
        if let Some(tensor) = tensor {
            place(tensor, segments, &request.context)?;
            put_head(frame, index, tensor, is_placed(tensor));
        }
    }
    let head = frame.len() - start - 8;
    let mut copied = 0;
    for tensor in request.inputs.iter().flatten() {
        match tensor.segment().filter(|_| is_placed(tensor)) {
            Some((lease, offset)) => {
                put_place(frame, tensor, lease, offset, placed);
                put_lengths(frame, tensor)?;
            }
            None => {
                check_room(frame, tensor.data().len())?;
                frame.extend_from_slice(tensor.data());
                copied += tensor.data().len();
                pad(frame);
            }
        }
    }
    segments.copied.to_worker(copied);
    if let Some(extra) = extra {
        check_room(frame, extra.len())?;
        frame.extend_from_slice(&(extra.len() as u64).to_le_bytes());
        frame.extend_from_slice(&extra);
        pad(frame);
    }
    let data = frame.len() - start - 8 - head;
    frame[start..start + 4].copy_from_slice(&(head as u32).to_le_bytes());
    frame[start + 4..start + 8].copy_from_slice(&(data as u32).to_le_bytes());
    Ok(())
}

/// Before anything is copied, and far below what the 32 bits of a length can say.
pub(crate) fn check_room(frame: &[u8], more: usize) -> Result<()> {
    if more <= FRAME_LIMIT.saturating_sub(frame.len()) {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the requests' tensors found no shared memory, and {} bytes are more than a frame can \
         hold, which is {FRAME_LIMIT}",
        frame.len() + more
    )))
}

fn put_head(frame: &mut Vec<u8>, index: usize, tensor: &Tensor, is_placed: bool) {
    let code = tensor.dtype().to_proto() as u8;
    let (code, size) = if is_placed {
        (code | IN_SEGMENT, string_lengths(tensor))
    } else {
        (code, tensor.data().len())
    };
    frame.extend_from_slice(&(index as u16).to_le_bytes());
    frame.extend_from_slice(&[code, tensor.shape().len() as u8]);
    put_u32(frame, size);
    for dim in tensor.shape() {
        frame.extend_from_slice(&dim.to_le_bytes());
    }
}

pub(crate) fn put_place(
    frame: &mut Vec<u8>,
    tensor: &Tensor,
    lease: &Arc<Lease>,
    offset: usize,
    placed: &mut Vec<PlacedTensor>,
) {
    let size = tensor.data().len();
    for number in [lease.segment().id(), offset as u64, size as u64, 0] {
        frame.extend_from_slice(&number.to_le_bytes());
    }
    placed.push(PlacedTensor {
        lease: Arc::as_ptr(lease),
        start: offset,
        end: offset + size,
        flag_at: frame.len() - 8,
        tensors: lease.tensors(),
    });
}

/// How many lengths of strings are sent beside a tensor in a segment: none or all. Python finds
/// the elements by them several times faster, unless they are few or long.
fn string_lengths(tensor: &Tensor) -> usize {
    const LONG: usize = 128;
    if tensor.dtype() != DataType::Bytes {
        return 0;
    }
    let count = element_count(tensor.shape()).unwrap_or(0);
    let is_worth_it = (64..1 << 20).contains(&count) && tensor.data().len() / count < LONG;
    if is_worth_it { count } else { 0 }
}

fn put_lengths(frame: &mut Vec<u8>, tensor: &Tensor) -> Result<()> {
    let size = 4 * string_lengths(tensor);
    if size == 0 {
        return Ok(());
    }
    check_room(frame, size)?;
    let end = frame.len() + size;
    frame.extend(tensor.strings().take(size / 4).flat_map(|it| (it.len() as u32).to_le_bytes()));
    // As many as the head says, even if a worker has spoiled the memory since it was checked.
    frame.resize(end, 0);
    pad(frame);
    Ok(())
}

/// A worker may write to memory that only this frame's tensors lie in, each in a part of its own.
pub(crate) fn mark_sole_readers(frame: &mut [u8], placed: &[PlacedTensor]) {
    for one in placed {
        let others = || placed.iter().filter(|it| it.lease == one.lease);
        let overlaps = others().filter(|it| it.start < one.end && one.start < it.end).count();
        if others().count() == one.tensors && overlaps == 1 {
            frame[one.flag_at] = 1;
        }
    }
}

/// Large, and in a segment the worker knows.
pub(crate) fn is_placed(tensor: &Tensor) -> bool {
    INLINE_LIMIT < tensor.data().len() && tensor.segment().is_some()
}

/// Sees to it that a large tensor of a request lies in a segment the worker knows; else it stays in
/// the frame, unless the user limited the memory.
pub(crate) fn place(tensor: &mut Tensor, segments: &mut Segments, context: &Context) -> Result<()> {
    if tensor.data().len() <= INLINE_LIMIT {
        return Ok(());
    }
    if tensor.segment().is_none() {
        match into_segment(tensor, &segments.pool, context) {
            Ok(moved) => {
                segments.copied.to_worker(moved.data().len());
                *tensor = moved;
            }
            Err(full) if segments.pool.sizes().most < usize::MAX => return Err(full),
            Err(_) => (),
        }
    }
    let owner = context.owner.get();
    let is_shown = tensor.segment().is_none_or(|(lease, _)| segments.show(lease.segment(), owner));
    if !is_shown
        && let Ok(plain) = Tensor::new(tensor.dtype(), tensor.shape().into(), tensor.data().clone())
    {
        *tensor = plain;
    }
    Ok(())
}

/// A copy in a segment of the pool, for a request, which is charged for it.
pub(crate) fn into_segment(
    tensor: &Tensor,
    pool: &Arc<SegmentPool>,
    context: &Context,
) -> Result<Tensor> {
    let size = tensor.data().len();
    let mut segment = pool.take(size, context.owner.get())?;
    segment.bytes_mut()[..size].copy_from_slice(tensor.data());
    let mut hold = context.charge.hold(Kind::Tensors);
    hold.grow_beyond(size);
    let lease = segment.freeze_counted(hold);
    let copy = Tensor::in_segment(tensor.dtype(), tensor.shape().into(), &lease, 0..size)?;
    Ok(copy.of_counted())
}

/// What most requests do not have, as JSON the worker decodes only when asked; without what it takes
/// for granted where nothing is said.
#[derive(Serialize)]
struct RequestExtra<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<Number<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(skip_serializing_if = "is_zero")]
    timeout: u64,
    #[serde(skip_serializing_if = "is_zero")]
    priority: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<String>,
    /// Its span, by which its own calls name it, and what it may hand on.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<(String, Option<String>)>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Number<'a> {
    Number(u64),
    Text(&'a str),
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

fn extra(request: &Request) -> Option<Vec<u8>> {
    let context = &*request.context;
    let is_plain = context.id.is_empty()
        && context.parameters.is_empty()
        && context.correlation == Correlation::None
        && context.flags == 0
        && context.timeout_us == 0
        && context.priority == 0
        && context.span.is_none();
    if is_plain {
        return None;
    }
    let extra = RequestExtra {
        id: &context.id,
        correlation_id: match &context.correlation {
            Correlation::None => None,
            Correlation::Number(number) => Some(Number::Number(*number)),
            Correlation::Text(text) => Some(Number::Text(text)),
        },
        flags: context.flags,
        timeout: context.timeout_us,
        priority: context.priority,
        parameters: (!context.parameters.is_empty()).then(|| parameters_json(&context.parameters)),
        trace: context.span.as_ref().map(|it| (format!("{:016x}", it.id()), it.context())),
    };
    // Strings and numbers always have a JSON form.
    serde_json::to_vec(&extra).ok()
}

/// Parameters as models see them.
pub(crate) fn parameters_json(parameters: &Parameters) -> String {
    let values = parameters.iter().map(|(name, value)| {
        let value = match value {
            Parameter::Bool(it) => (*it).into(),
            Parameter::Int(it) => (*it).into(),
            Parameter::Uint(it) => (*it).into(),
            Parameter::Double(it) => (*it).into(),
            Parameter::String(it) => it.clone().into(),
        };
        (name.to_string(), value)
    });
    serde_json::Value::Object(values.collect()).to_string()
}

fn put_u32(frame: &mut Vec<u8>, number: usize) {
    frame.extend_from_slice(&(number as u32).to_le_bytes());
}

pub(crate) fn pad(frame: &mut Vec<u8>) {
    frame.resize(frame.len().next_multiple_of(8), 0);
}

//! Decodes answers out of a frame. Nothing a worker says is believed before it is checked.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::python::memory::segments::Segments;
use troupe_base::{
    config::{ModelConfig, Output},
    error::{Error, ErrorKind, Result},
    request::{Parameter, Parameters, Request, Response},
    statistics::Timing,
    tensor::{DataType, Lease, Shape, Tensor, shape_text},
};

/// Tags of a result; a response has none of them. `encode.py` has the same.
const FAILED: u8 = 1;
const LATER: u8 = 2;
const AGAIN: u8 = 3;
/// Failed by a mistake of the model, not on purpose.
const MISTAKE: u8 = 4;

/// Where a tensor lies, `encode.py` has the same: in the frame.
const INLINE: u32 = 0;
/// In a segment that the worker made.
const OWN: u32 = 1;
/// In a segment of the server, where an input of the same group lies.
const THEIRS: u32 = 2;
/// In a segment of the server, where the reply to a call lies.
const HELD: u32 = 3;

/// What one group of requests became.
pub(crate) struct GroupAnswer {
    /// One verdict per request, or Python's text for all.
    pub(crate) results: Result<Vec<RequestOutcome>, String>,
    pub(crate) timing: Timing,
}

/// What became of one request.
pub(crate) enum RequestOutcome {
    Result(Result<Response>),
    /// The model has answered, but not what its config promises.
    Wrong(Error),
    /// It is answered apart from its group.
    Later,
    /// It is to be executed anew.
    Again,
}

/// Which answer a frame holds.
pub(crate) struct AnswerHead {
    pub(crate) sequence: u32,
    pub(crate) group: usize,
}

/// Reads a frame from its start; every read may find it too short.
pub(crate) struct Cursor<'a> {
    frame: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// After the length and the kind.
    pub(crate) fn new(frame: &'a Bytes) -> Cursor<'a> {
        Cursor { frame, at: 8 }
    }

    /// From somewhere on.
    pub(crate) fn at(frame: &'a Bytes, at: usize) -> Cursor<'a> {
        Cursor { frame, at }
    }

    /// Where it is.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.frame.get(self.at..).and_then(|it| it.first_chunk::<N>());
        self.at += N;
        bytes.copied().ok_or_else(|| "a frame that ends too early".into())
    }

    pub(crate) fn u8(&mut self) -> Result<u8, String> {
        self.take::<1>().map(|it| it[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, String> {
        self.take().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next byte, left where it is.
    fn peek(&self) -> Option<u8> {
        self.frame.get(self.at).copied()
    }

    fn end(&self, size: u64) -> Result<usize, String> {
        let end = usize::try_from(size).ok().and_then(|it| self.at.checked_add(it));
        let end = end.filter(|it| self.at <= self.frame.len() && *it <= self.frame.len());
        end.ok_or_else(|| "bytes past the frame's end".into())
    }

    /// So many bytes, shared with the frame, and the padding after them.
    pub(crate) fn bytes(&mut self, size: u64) -> Result<Bytes, String> {
        let end = self.end(size)?;
        let bytes = self.frame.slice(self.at..end);
        self.at = end.next_multiple_of(8);
        Ok(bytes)
    }

    /// Passes over as many.
    pub(crate) fn skip(&mut self, size: u64) -> Result<(), String> {
        self.at = self.end(size)?.next_multiple_of(8);
        Ok(())
    }

    /// So many bytes of text, and the padding after them.
    pub(crate) fn name(&mut self, size: u64) -> Result<Cow<'a, str>, String> {
        let name = self.unpadded_name(size);
        self.at = self.at.next_multiple_of(8);
        name
    }

    /// The same without padding.
    pub(crate) fn unpadded_name(&mut self, size: u64) -> Result<Cow<'a, str>, String> {
        let end = self.end(size)?;
        let name = String::from_utf8_lossy(&self.frame[self.at..end]);
        self.at = end;
        Ok(name)
    }

    pub(crate) fn text(&mut self, size: u64) -> Result<String, String> {
        self.bytes(size).map(|it| String::from_utf8_lossy(&it).into_owned())
    }

    /// Nothing left?
    pub(crate) fn is_at_end(&self) -> bool {
        self.frame.len() <= self.at
    }
}

/// The first fields of an `ANSWER` frame.
pub(crate) fn answer_head(cursor: &mut Cursor<'_>) -> Result<AnswerHead, String> {
    Ok(AnswerHead { sequence: cursor.u32()?, group: cursor.u32()? as usize })
}

/// The rest of it, as the answer to `requests`.
pub(crate) fn answer(
    cursor: &mut Cursor<'_>,
    config: &ModelConfig,
    requests: &[Request],
    segments: &mut Segments,
) -> Result<GroupAnswer, String> {
    let mut time = || cursor.u64().map(Duration::from_nanos);
    let timing = Timing {
        queue: Duration::ZERO,
        compute_input: time()?,
        compute_infer: time()?,
        compute_output: time()?,
    };
    let (count, held) = (cursor.u32()? as usize, cursor.u16()?);
    let (is_failure, _) = (cursor.u8()? != 0, cursor.u8()?);
    for _ in 0..held {
        if let Some(lease) = lease_of(requests, cursor.u64()?) {
            lease.retain();
        }
    }
    if is_failure {
        let size = cursor.u64()?;
        return Ok(GroupAnswer { results: Err(cursor.text(size)?), timing });
    }
    if count != requests.len() {
        return Err(format!("{count} answers to {} requests", requests.len()));
    }
    let mut results = Vec::with_capacity(count);
    for _ in requests {
        results.push(outcome(cursor, config, requests, segments)?);
    }
    Ok(GroupAnswer { results: Ok(results), timing })
}

/// What became of one request; the memory of all `requests` may be referred to.
pub(crate) fn outcome(
    cursor: &mut Cursor<'_>,
    config: &ModelConfig,
    requests: &[Request],
    segments: &mut Segments,
) -> Result<RequestOutcome, String> {
    Ok(match cursor.peek() {
        Some(tag @ (LATER | AGAIN)) => {
            cursor.u64()?;
            if tag == LATER { RequestOutcome::Later } else { RequestOutcome::Again }
        }
        Some(FAILED) => RequestOutcome::Result(result(cursor, config, requests, segments)?),
        _ => match result(cursor, config, requests, segments)? {
            Err(error) if error.kind() == ErrorKind::Internal => RequestOutcome::Wrong(error),
            result => RequestOutcome::Result(result),
        },
    })
}

/// Errors in the frame are the outer ones, those of the model the inner ones.
fn result(
    cursor: &mut Cursor<'_>,
    config: &ModelConfig,
    requests: &[Request],
    segments: &mut Segments,
) -> Result<Result<Response>, String> {
    let (tag, code, count, size) = (cursor.u8()?, cursor.u8()?, cursor.u16()?, cursor.u32()?);
    let text = if size == 0 { String::new() } else { cursor.text(u64::from(size))? };
    if matches!(tag, FAILED | MISTAKE) {
        return Ok(Err(Error::new(kind_of(code), text)));
    }
    let mut response =
        Response { outputs: vec![None; config.outputs.len()], ..Response::default() };
    if 0 < size {
        response.parameters = parameters(&text)?;
    }
    let mut wrong = None;
    let mut memory = Memory { requests, segments };
    for _ in 0..count {
        let index = usize::from(cursor.u16()?);
        let output = config.outputs.get(index).ok_or("an output the model does not have")?;
        match tensor(cursor, &mut memory)?.and_then(|it| check(config, output, it)) {
            Ok(tensor) => response.outputs[index] = Some(tensor),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    Ok(wrong.map_or(Ok(response), Err))
}

fn tensor(cursor: &mut Cursor<'_>, memory: &mut Memory<'_>) -> Result<Result<Tensor>, String> {
    let (code, rank, place) = (cursor.u8()?, cursor.u8()?, cursor.u32()?);
    let size = cursor.u64()?;
    let mut shape = Shape::new();
    for _ in 0..rank {
        shape.push(cursor.u64()? as i64);
    }
    let dtype =
        DataType::from_proto(i32::from(code)).ok_or_else(|| format!("element type {code}"))?;
    memory.tensor(cursor, dtype, shape, place, size)
}

/// Where tensors that are not in the frame can lie.
pub(crate) struct Memory<'a> {
    /// Whose inputs the worker has been shown.
    pub(crate) requests: &'a [Request],
    pub(crate) segments: &'a mut Segments,
}

impl Memory<'_> {
    /// A tensor that lies where `place` says: its bytes come next, or the number of its memory and
    /// the offset in it.
    pub(crate) fn tensor(
        &mut self,
        cursor: &mut Cursor<'_>,
        dtype: DataType,
        shape: Shape,
        place: u32,
        size: u64,
    ) -> Result<Result<Tensor>, String> {
        if place == INLINE {
            let data = cursor.bytes(size)?;
            self.segments.copied.from_worker(data.len());
            return Ok(Tensor::new(dtype, shape, data));
        }
        let (number, offset) = (cursor.u64()?, cursor.u64()?);
        let unknown = || format!("memory {number} of kind {place}, which it has not");
        let (lease, offset) = match place {
            OWN => (self.segments.lease(number), offset),
            THEIRS => (lease_of(self.requests, number).cloned(), offset),
            HELD => {
                let (lease, start) =
                    self.segments.held(number).and_then(Tensor::segment).ok_or_else(unknown)?;
                (Some(lease.clone()), offset.saturating_add(start as u64))
            }
            _ => (None, 0),
        };
        let lease = lease.ok_or_else(unknown)?;
        let end = offset.checked_add(size).ok_or("a segment without end")?;
        if place == OWN
            && let Err(full) = self.segments.pool.check_room()
        {
            return Ok(Err(full));
        }
        // `in_segment` checks the range.
        let tensor = Tensor::in_segment(dtype, shape, &lease, offset as usize..end as usize);
        if place == OWN && tensor.is_ok() {
            self.segments.copied.from_worker(size as usize);
        }
        Ok(tensor)
    }
}

/// The segment `id` among those of the inputs.
fn lease_of(requests: &[Request], id: u64) -> Option<&Arc<Lease>> {
    let inputs = requests.iter().flat_map(|it| &it.inputs).flatten();
    inputs.filter_map(|it| it.segment()).map(|it| it.0).find(|it| it.segment().id() == id)
}

/// Type and dimensions as the config promises them. Each request has a response of its own, so a
/// model that batches may answer with any number of rows, or without the batch dimension.
fn check(config: &ModelConfig, output: &Output, tensor: Tensor) -> Result<Tensor> {
    if tensor.dtype() != output.dtype {
        return Err(Error::internal(format!(
            "output '{}' of model '{}' has data-type '{}', expected '{}'",
            output.name,
            config.name,
            tensor.dtype().as_str(),
            output.dtype.as_str()
        )));
    }
    let dims = output.reshape.as_ref().unwrap_or(&output.dims);
    let fits = |got: &[i64]| {
        got.len() == dims.len()
            && got.iter().zip(dims).all(|(got, want)| *want == -1 || got == want)
    };
    let shape = tensor.shape();
    let is_batched = 0 < config.max_batch_size;
    if fits(shape) || is_batched && shape.split_first().is_some_and(|(_, rest)| fits(rest)) {
        return Ok(tensor);
    }
    Err(Error::internal(format!(
        "output '{}' of model '{}' has shape {}, expected {}",
        output.name,
        config.name,
        shape_text(shape),
        shape_text(&config.with_batch(dims))
    )))
}

/// Parameters as models write them, a JSON object.
pub(crate) fn parameters(text: &str) -> Result<Parameters, String> {
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("wrong parameters: {error}"))?;
    let parameter = |value: serde_json::Value| match value {
        serde_json::Value::Bool(it) => Parameter::Bool(it),
        serde_json::Value::Number(it) => match (it.as_i64(), it.as_u64()) {
            (Some(it), _) => Parameter::Int(it),
            (None, Some(it)) => Parameter::Uint(it),
            (None, None) => Parameter::Double(it.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(it) => Parameter::String(it),
        other => Parameter::String(other.to_string()),
    };
    Ok(values.into_iter().map(|(name, value)| (name.into(), parameter(value))).collect())
}

/// The other way round.
pub(crate) fn code_of(kind: ErrorKind) -> u8 {
    // A model is told that its request was cancelled, whatever the reason.
    let kind = match kind {
        kind if kind.is_abandoned() => ErrorKind::Cancelled,
        ErrorKind::Crashed => ErrorKind::Unavailable,
        kind => kind,
    };
    (0..=7).find(|code| kind_of(*code) == kind).unwrap_or(1)
}

/// The codes of `pb_utils.TritonError`.
fn kind_of(code: u8) -> ErrorKind {
    match code {
        0 => ErrorKind::Unknown,
        2 => ErrorKind::NotFound,
        3 => ErrorKind::InvalidArg,
        4 => ErrorKind::Unavailable,
        5 => ErrorKind::Unsupported,
        6 => ErrorKind::AlreadyExists,
        7 => ErrorKind::Cancelled,
        _ => ErrorKind::Internal,
    }
}

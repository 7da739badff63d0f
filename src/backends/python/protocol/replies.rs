//! Encodes replies to calls: heads that repeat, then bytes; large ones lie in segments.

use std::sync::Arc;

use super::{
    decode::code_of,
    encode::{
        PlacedTensor, check_room, is_placed, mark_sole_readers, pad, parameters_json, place,
        put_place,
    },
    kinds,
};
use crate::python::memory::segments::Segments;
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    request::{Context, Credit, Part, Response},
    tensor::Tensor,
};

/// Flags of a reply; `replies.py` has the same.
const LAST: u8 = 1;
const FAILED: u8 = 2;
const GIVEN: u8 = 4;
/// Where the head begins.
const HEAD: usize = 32;
const IN_SEGMENT: u8 = 128;

/// A reply to a call, or a part of it.
pub(crate) enum CallReply {
    /// A response that others or the end will follow.
    Part(Part),
    /// The last or only response.
    Last(Result<Response>),
    /// There is none, or none after the last `Part`.
    End,
}

impl CallReply {
    pub(crate) fn is_last(&self) -> bool {
        !matches!(self, CallReply::Part(_))
    }
    pub(crate) fn response(&mut self) -> Option<&mut Response> {
        match self {
            CallReply::Part(Part { result: Ok(response), .. }) | CallReply::Last(Ok(response)) => {
                Some(response)
            }
            _ => None,
        }
    }
    /// What lets its maker go on once the caller has it.
    pub(crate) fn take_credit(&mut self) -> Option<Arc<Credit>> {
        match self {
            CallReply::Part(part) => part.credit.take(),
            CallReply::Last(_) | CallReply::End => None,
        }
    }
}

/// The call that a reply is for.
pub(crate) struct Replied<'a> {
    /// Its number.
    pub(crate) call: u64,
    /// The config of the model that was called, if it was found.
    pub(crate) config: Option<&'a ModelConfig>,
    /// Whose shared memory the reply may lie in, and who is charged for it.
    pub(crate) context: &'a Context,
}

/// Appends the frame of a reply. Answers how many bytes it makes the worker hold.
///
/// Tensors may move into segments that the worker has to be told of first.
pub(crate) fn encode_reply(
    frame: &mut Vec<u8>,
    replied: &Replied<'_>,
    reply: CallReply,
    segments: &mut Segments,
) -> u64 {
    let start = frame.len();
    let mut flags = if reply.is_last() { LAST } else { 0 };
    let result = match reply {
        CallReply::Part(part) => Some(part.result),
        CallReply::Last(result) => Some(result),
        CallReply::End => None,
    };
    frame.resize(start + HEAD, 0);
    let written = match (result, replied.config) {
        (None, _) => Ok(WrittenReply::default()),
        (Some(Err(error)), _) => Err(error),
        (Some(Ok(response)), Some(config)) => {
            flags |= GIVEN;
            put_response(
                frame,
                response,
                config,
                ReplyMemory { context: replied.context, segments },
            )
        }
        (Some(Ok(_)), None) => Err(Error::internal("a response whose model is unknown")),
    };
    let (code, written) = match written {
        Ok(written) => (0, written),
        Err(error) => {
            frame.truncate(start + HEAD);
            flags = flags & LAST | FAILED;
            let text = error.to_string();
            put_text(frame, &text);
            (code_of(error.kind()), WrittenReply { text: text.len(), ..WrittenReply::default() })
        }
    };
    let size = (frame.len() - start) as u32;
    let head = &mut frame[start..start + HEAD];
    head[..4].copy_from_slice(&size.to_le_bytes());
    head[4] = kinds::RESPONSE;
    head[8..16].copy_from_slice(&replied.call.to_le_bytes());
    head[16..18].copy_from_slice(&[flags, code]);
    head[18..20].copy_from_slice(&written.outputs.to_le_bytes());
    head[20..24].copy_from_slice(&written.head.to_le_bytes());
    head[24..32].copy_from_slice(&(written.text as u64).to_le_bytes());
    u64::from(size) + written.large
}

#[derive(Default)]
struct WrittenReply {
    outputs: u16,
    head: u32,
    text: usize,
    /// Bytes in segments.
    large: u64,
}

/// Where large tensors go.
struct ReplyMemory<'a> {
    context: &'a Context,
    segments: &'a mut Segments,
}

/// An error means that what could not be placed is too much for a frame.
fn put_response(
    frame: &mut Vec<u8>,
    mut response: Response,
    config: &ModelConfig,
    destination: ReplyMemory<'_>,
) -> Result<WrittenReply> {
    let ReplyMemory { context, segments } = destination;
    // After the head, which is there already.
    let start = frame.len() - HEAD;
    let mut written = WrittenReply::default();
    let outputs = || config.outputs.iter().map(|it| &*it.name);
    for (name, tensor) in outputs().zip(&mut response.outputs) {
        if let Some(tensor) = tensor {
            // Without room in shared memory it stays in the frame.
            let _ = place(tensor, segments, context);
            put_head(frame, name, tensor);
            written.outputs += 1;
        }
    }
    written.head = (frame.len() - start - HEAD) as u32;
    if !response.parameters.is_empty() {
        let text = parameters_json(&response.parameters);
        check_room(&frame[start..], text.len())?;
        put_text(frame, &text);
        written.text = text.len();
    }
    let inline = response.outputs.iter().flatten().filter(|it| !is_placed(it));
    check_room(&frame[start..], inline.map(|it| it.data().len() + 8).sum())?;
    let mut placed: Vec<PlacedTensor> = Vec::new();
    for tensor in response.outputs.into_iter().take(config.outputs.len()).flatten() {
        match tensor.segment().filter(|_| is_placed(&tensor)) {
            Some((lease, offset)) => {
                written.large += tensor.data().len() as u64;
                put_place(frame, &tensor, lease, offset, &mut placed);
                let hold = segments.hold(tensor);
                frame.extend_from_slice(&hold.to_le_bytes());
            }
            None => {
                frame.extend_from_slice(tensor.data());
                pad(frame);
            }
        }
    }
    mark_sole_readers(frame, &placed);
    Ok(written)
}

fn put_head(frame: &mut Vec<u8>, name: &str, tensor: &Tensor) {
    let code = tensor.dtype().to_proto() as u8;
    let (code, size) =
        if is_placed(tensor) { (code | IN_SEGMENT, 0) } else { (code, tensor.data().len()) };
    frame.extend_from_slice(&(name.len() as u16).to_le_bytes());
    frame.extend_from_slice(&[code, tensor.shape().len() as u8]);
    frame.extend_from_slice(&(size as u32).to_le_bytes());
    for dim in tensor.shape() {
        frame.extend_from_slice(&dim.to_le_bytes());
    }
    put_text(frame, name);
}

fn put_text(frame: &mut Vec<u8>, text: &str) {
    frame.extend_from_slice(text.as_bytes());
    pad(frame);
}

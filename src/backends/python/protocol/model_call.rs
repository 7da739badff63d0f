//! Decodes calls of other models (BLS) out of a frame. Nothing is believed unchecked.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use smallvec::SmallVec;

use super::decode::{Cursor, Memory, parameters};
use crate::python::memory::segments::Segments;
use troupe_base::{
    budget::Charge,
    error::{Error, Result},
    model::{Model, pick_outputs, place_inputs},
    request::{CallChain, Context, Correlation, Request},
    tensor::{DataType, Shape, Tensor, charge_inputs},
    trace::Span,
};

/// Flags of a call; `calls.py` has the same.
const TAKES_MANY: u32 = 1;
const EXTRA: u32 = 2;
const BLOCKS: u32 = 4;
/// Where the head begins.
const HEAD: usize = 40;

/// The first fields of a `CALL` frame.
pub(crate) struct ModelCallHead {
    /// The worker's number for it.
    pub(crate) call: u64,
    /// For which group: the frame it came in, and its place there.
    pub(crate) group: (u32, u32),
    /// Any number of responses, or exactly one?
    pub(crate) takes_many: bool,
    /// The worker's main thread waits for the answer.
    pub(crate) blocks: bool,
    has_extra: bool,
    size: usize,
    inputs: usize,
}

/// A call as the worker wrote it.
pub(crate) struct ModelCall<'a> {
    pub(crate) model: Cow<'a, str>,
    /// `None`: the highest that is ready.
    pub(crate) version: Option<i64>,
    wanted: SmallVec<[Cow<'a, str>; 4]>,
    inputs: SmallVec<[(Cow<'a, str>, Tensor); 4]>,
    /// The first tensor that is none.
    wrong: Option<Error>,
    extra: Option<CallExtra>,
    /// Where it is noted, if the request it is made for is traced.
    pub(crate) span: Option<Span>,
    /// The charge of the request it is made for.
    pub(crate) charge: Charge,
}

/// What `calls.py` says beside names and tensors.
#[derive(Deserialize)]
#[serde(default)]
struct CallExtra {
    id: String,
    correlation_id: Id,
    flags: u32,
    timeout: u64,
    /// JSON in JSON, as models see it.
    parameters: String,
    /// The span of the request it is made for.
    under: Option<String>,
}

impl Default for CallExtra {
    fn default() -> CallExtra {
        let parameters = "{}".to_owned();
        let correlation_id = Id::Number(0);
        CallExtra {
            id: String::new(),
            correlation_id,
            flags: 0,
            timeout: 0,
            parameters,
            under: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Text(String),
}

/// Reads the frame as far as its head.
pub(crate) fn call_head(cursor: &mut Cursor<'_>) -> Result<ModelCallHead, String> {
    let (call, group) = (cursor.u64()?, (cursor.u32()?, cursor.u32()?));
    let (flags, size, inputs) = (cursor.u32()?, cursor.u32()? as usize, cursor.u64()? as usize);
    let has = |flag: u32| flags & flag != 0;
    let (takes_many, blocks, has_extra) = (has(TAKES_MANY), has(BLOCKS), has(EXTRA));
    Ok(ModelCallHead { call, group, takes_many, blocks, has_extra, size, inputs })
}

/// Reads the rest; tensors may lie in inputs of `requests`.
pub(crate) fn read_model_call<'a>(
    head: &ModelCallHead,
    frame: &'a Bytes,
    requests: &[Request],
    segments: &mut Segments,
) -> Result<ModelCall<'a>, String> {
    let mut names = Cursor::at(frame, HEAD);
    let mut bodies = Cursor::at(frame, HEAD.saturating_add(head.size));
    let version = names.u64()? as i64;
    let (length, count, size) = (names.u16()?, names.u16()?, names.u32()?);
    let model = names.name(u64::from(length))?;
    let mut wanted = SmallVec::new();
    let mut outputs = Cursor::at(frame, names.position());
    names.skip(u64::from(size))?;
    for _ in 0..count {
        let length = outputs.u16()?;
        wanted.push(outputs.unpadded_name(u64::from(length))?);
    }
    let version = (version != -1).then_some(version);
    let inputs = SmallVec::new();
    let mut call = ModelCall {
        model,
        version,
        wanted,
        inputs,
        wrong: None,
        extra: None,
        span: None,
        charge: Charge::default(),
    };
    let mut memory = Memory { requests, segments };
    for _ in 0..head.inputs {
        let length = names.u16()?;
        let (code, rank, place) = (names.u8()?, names.u8()?, names.u32()?);
        let size = names.u64()?;
        let shape = (0..rank).map(|_| names.u64().map(|it| it as i64));
        let shape = shape.collect::<Result<Shape, String>>()?;
        let name = names.name(u64::from(length))?;
        let dtype =
            DataType::from_proto(i32::from(code)).ok_or_else(|| format!("element type {code}"))?;
        match memory.tensor(&mut bodies, dtype, shape, place, size)? {
            Ok(tensor) => call.inputs.push((name, tensor)),
            Err(error) => {
                let text = format!("input '{name}': {error}");
                call.wrong = call.wrong.or(Some(Error::new(error.kind(), text)));
            }
        }
    }
    if head.has_extra {
        let size = bodies.u64()?;
        let text = bodies.bytes(size)?;
        let extra = serde_json::from_slice(&text);
        call.extra = Some(extra.map_err(|error| format!("a call of wrong JSON: {error}"))?);
    }
    Ok(call)
}

impl ModelCall<'_> {
    /// The span of the request it is made for, if it names one.
    pub(crate) fn under(&self) -> Option<u64> {
        u64::from_str_radix(self.extra.as_ref()?.under.as_deref()?, 16).ok()
    }

    /// The same in the model's positions.
    ///
    /// `asks`: the request that it is asked for, if that is one: with it the call is cancelled.
    pub(crate) fn resolve(
        self,
        model: &Model,
        caller: CallChain,
        asks: Option<&Context>,
    ) -> Result<Request> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let mut context = context(self.extra.unwrap_or_default())?;
        context.call_chain = Some(caller.into());
        if let Some(asks) = asks {
            context = context.on_behalf_of(asks);
        }
        context.span = self.span;
        context.charge = self.charge;
        let mut inputs = place_inputs(&model.config, self.inputs, &context)?;
        charge_inputs(&mut inputs, &context.charge)?;
        let wanted = pick_outputs(&model.config, &self.wanted, &context)?;
        Ok(Request { context: context.into(), inputs, wanted, batch: 0 })
    }
}

fn context(extra: CallExtra) -> Result<Context> {
    let parameters = parameters(&extra.parameters).map_err(Error::invalid)?;
    let correlation = match extra.correlation_id {
        Id::Number(number) => Correlation::of_number(number),
        Id::Text(text) => Correlation::of_text(text)?,
    };
    Ok(Context {
        id: extra.id,
        parameters,
        correlation,
        flags: extra.flags,
        timeout_us: extra.timeout,
        ..Context::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::{metrics::Metrics, tensor::SegmentPool};

    fn segments() -> Segments {
        let (passing, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Segments::new(passing.into(), SegmentPool::new(0), Metrics::new().copied_bytes("m").into())
    }

    fn padded(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// As `calls.py` writes it: two inputs of the model `other`, one of them a string.
    fn frame(place: u32) -> Bytes {
        let extra =
            r#"{"id":"7","correlation_id":"s","flags":1,"timeout":9,"parameters":"{\"a\":1}"}"#;
        let mut head = Vec::new();
        head.extend(3i64.to_le_bytes());
        head.extend([5u16, 1].iter().flat_map(|it| it.to_le_bytes()));
        head.extend(4u32.to_le_bytes());
        head.extend(padded("other"));
        head.extend([2, 0, b'y', b'1', 0, 0, 0, 0]);
        for (name, dtype, place, size, dim) in
            [("x", DataType::Fp32, 0, 8u64, 2i64), ("text", DataType::Bytes, place, 6, 1)]
        {
            head.extend((name.len() as u16).to_le_bytes());
            head.extend([dtype.to_proto() as u8, 1]);
            head.extend(u32::to_le_bytes(place));
            head.extend(size.to_le_bytes());
            head.extend(dim.to_le_bytes());
            head.extend(padded(name));
        }
        let mut frame = vec![0; 8];
        frame.extend(11u64.to_le_bytes());
        for number in [1, 2, TAKES_MANY | EXTRA, head.len() as u32] {
            frame.extend(number.to_le_bytes());
        }
        frame.extend(2u64.to_le_bytes());
        frame.extend(head);
        frame.extend([1f32, 2.0].iter().flat_map(|it| it.to_le_bytes()));
        frame.extend([2, 0, 0, 0, b'h', b'i', 0, 0]);
        if place != 0 {
            frame.extend(0u64.to_le_bytes());
        }
        frame.extend((extra.len() as u64).to_le_bytes());
        frame.extend(padded(extra));
        frame.into()
    }

    fn read(frame: &Bytes) -> Result<ModelCall<'_>, String> {
        let head = call_head(&mut Cursor::new(frame))?;
        read_model_call(&head, frame, &[], &mut segments())
    }

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let frame = frame(0);
        let head = call_head(&mut Cursor::new(&frame)).unwrap();
        assert_eq!((head.call, head.group, head.takes_many), (11, (1, 2), true));
        let asked = read(&frame).unwrap();
        assert_eq!((&*asked.model, asked.version, &*asked.wanted[0]), ("other", Some(3), "y1"));
        let tensors = asked.inputs.iter().map(|(name, it)| (&**name, it.shape(), it.data().len()));
        assert_eq!(tensors.collect::<Vec<_>>(), [("x", &[2][..], 8), ("text", &[1], 6)]);
        let context = context(asked.extra.unwrap()).unwrap();
        assert_eq!((&*context.id, context.flags, context.timeout_us), ("7", 1, 9));
        assert_eq!(context.correlation, Correlation::Text("s".into()));
        assert_eq!(context.parameters.len(), 1);
    }

    #[test]
    fn memory_the_worker_has_not_is_refused() {
        for place in 1..5 {
            let error = read(&frame(place)).err().unwrap();
            assert!(error.starts_with("memory 1"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_an_error_and_no_panic() {
        let whole = frame(0);
        for end in (0..whole.len()).step_by(8) {
            assert!(read(&whole.slice(..end)).is_err(), "{end}");
        }
        for at in 8..whole.len() {
            for byte in [0, 1, 127, 255] {
                let mut frame = whole.to_vec();
                frame[at] = byte;
                // Some of them make sense.
                let _ = read(&frame.into());
            }
        }
    }
}

//! Calls out of a frame: what a model asks of another, in names. Nothing is believed unchecked.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use smallvec::SmallVec;

use super::{
    decode::{Cursor, Memory, parameters},
    segments::Segments,
};
use crate::{
    error::{Error, Result},
    model::{Model, pick_outputs, place_inputs},
    request::{Caller, Context, Correlation, Request},
    tensor::{DataType, Shape, Tensor},
};

/// Flags of a call; `calls.py` has the same.
const TAKES_MANY: u32 = 1;
const EXTRA: u32 = 2;
/// Where the head begins.
const HEAD: usize = 40;

/// The first fields of a `CALL` frame.
pub(super) struct CallHead {
    /// The worker's number for it.
    pub(super) call: u64,
    /// For which group: the frame it came in, and its place there.
    pub(super) group: (u32, u32),
    /// Any number of responses, or exactly one?
    pub(super) takes_many: bool,
    has_extra: bool,
    size: usize,
    inputs: usize,
}

/// A call as the worker wrote it.
pub(super) struct Asked<'a> {
    pub(super) model: Cow<'a, str>,
    /// `None`: the highest that is ready.
    pub(super) version: Option<i64>,
    wanted: SmallVec<[Cow<'a, str>; 4]>,
    inputs: SmallVec<[(Cow<'a, str>, Tensor); 4]>,
    /// The first tensor that is none.
    wrong: Option<Error>,
    extra: Option<Extra>,
}

/// What `calls.py` says beside names and tensors.
#[derive(Deserialize)]
#[serde(default)]
struct Extra {
    id: String,
    correlation_id: Id,
    flags: u32,
    timeout: u64,
    /// JSON in JSON, as models see it.
    parameters: String,
}

impl Default for Extra {
    fn default() -> Extra {
        let parameters = "{}".to_owned();
        Extra { id: String::new(), correlation_id: Id::Number(0), flags: 0, timeout: 0, parameters }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Text(String),
}

/// Reads the frame as far as its head.
pub(super) fn call_head(cursor: &mut Cursor<'_>) -> Result<CallHead, String> {
    let (call, group) = (cursor.u64()?, (cursor.u32()?, cursor.u32()?));
    let (flags, size, inputs) = (cursor.u32()?, cursor.u32()? as usize, cursor.u64()? as usize);
    let (takes_many, has_extra) = (flags & TAKES_MANY != 0, flags & EXTRA != 0);
    Ok(CallHead { call, group, takes_many, has_extra, size, inputs })
}

/// Reads the rest; tensors may lie in inputs of `requests`.
pub(super) fn asked<'a>(
    head: &CallHead,
    frame: &'a Bytes,
    requests: &[Request],
    segments: &mut Segments,
) -> Result<Asked<'a>, String> {
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
    let mut asked =
        Asked { model, version, wanted, inputs: SmallVec::new(), wrong: None, extra: None };
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
        match memory.tensor(&mut bodies, (dtype, shape), (place, size))? {
            Ok(tensor) => asked.inputs.push((name, tensor)),
            Err(error) => {
                let text = format!("input '{name}': {error}");
                asked.wrong = asked.wrong.or(Some(Error::new(error.kind(), text)));
            }
        }
    }
    if head.has_extra {
        let size = bodies.u64()?;
        let text = bodies.bytes(size)?;
        let extra = serde_json::from_slice(&text);
        asked.extra = Some(extra.map_err(|error| format!("a call of wrong JSON: {error}"))?);
    }
    Ok(asked)
}

impl Asked<'_> {
    /// The same in the model's positions.
    pub(super) fn resolve(self, model: &Model, caller: Caller) -> Result<Request> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let mut context = context(self.extra.unwrap_or_default())?;
        context.caller = Some(caller.into());
        let inputs = place_inputs(&model.config, self.inputs, &context)?;
        let wanted = pick_outputs(&model.config, &self.wanted, &context)?;
        Ok(Request { context: context.into(), inputs, wanted, batch: 0 })
    }
}

fn context(extra: Extra) -> Result<Context> {
    let parameters = parameters(&extra.parameters).map_err(Error::invalid)?;
    let correlation = match extra.correlation_id {
        Id::Number(0) => Correlation::None,
        Id::Number(number) => Correlation::Number(number),
        Id::Text(text) if text.is_empty() => Correlation::None,
        Id::Text(text) => Correlation::Text(text),
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

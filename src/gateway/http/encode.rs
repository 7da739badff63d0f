//! Writes an answer: JSON, and behind it the outputs that were asked for as bytes.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    HttpResponse,
    body::{BodySize, MessageBody},
    http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue},
};
use bytes::Bytes;

use super::{
    coding::{self, Coding},
    elements::{append, max_text_bytes, write},
};
use crate::inference::{Deliveries, Delivery, Encoding};
use troupe_base::{
    budget::Charge,
    error::Result,
    model::Model,
    request::{Parameter, Response, Wanted},
    tensor::Tensor,
};

pub(super) const HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
/// Up to here copying is cheaper than sending in parts.
const MAX_COPIED_BYTES: usize = 64 << 10;
/// The connection copies each part it is given, and keeps a buffer of that size until it is idle.
pub(super) const MAX_PART_BYTES: usize = 256 << 10;

/// An answer and all that its text depends on.
pub(super) struct InferAnswer<'a> {
    pub(super) model: &'a Model,
    pub(super) id: &'a str,
    pub(super) response: &'a Response,
    /// Outputs to write.
    pub(super) wanted: &'a Wanted,
    /// How to write them.
    pub(super) deliveries: &'a Deliveries,
}

/// An answer as bytes, not yet one body.
pub(super) struct EncodedBody {
    /// The JSON, then the tensors.
    parts: Vec<Bytes>,
    /// Bytes of JSON, if there is more than JSON.
    header: Option<usize>,
    /// What the parts were made of, if they are compressed.
    coding: Coding,
}

impl InferAnswer<'_> {
    fn outputs(&self) -> impl Iterator<Item = (usize, &str, &Tensor)> {
        let names = self.model.config.outputs.iter();
        let tensors = names.zip(&self.response.outputs).enumerate();
        tensors.filter_map(|(index, (output, tensor))| {
            let tensor = tensor.as_ref().filter(|_| self.wanted.has(index))?;
            Some((index, &*output.name, tensor))
        })
    }

    fn encoding(&self, output: usize) -> Option<Encoding> {
        self.deliveries.of(output).encoding()
    }

    /// Tensors that have to be turned into text.
    fn as_text(&self) -> impl Iterator<Item = &Tensor> {
        let as_text = self.outputs().filter(|it| self.encoding(it.0) == Some(Encoding::Text));
        as_text.map(|(_, _, tensor)| tensor)
    }

    /// How many bytes they have.
    pub(super) fn text_size(&self) -> usize {
        self.as_text().map(|tensor| tensor.data().len()).sum()
    }

    /// Bytes of tensors in all.
    pub(super) fn size(&self) -> usize {
        let sent = self.outputs().filter(|it| self.encoding(it.0).is_some());
        sent.map(|(_, _, tensor)| tensor.data().len()).sum()
    }

    /// Writes the JSON and lines the binary outputs up behind it. `charge` counts the JSON before
    /// there is any, as text can be six times longer than its tensor; RESOURCE_EXHAUSTED if there is
    /// no room for it.
    pub(super) fn encode(&self, charge: &Charge) -> Result<EncodedBody> {
        let most = 256 + self.id.len() + self.as_text().map(max_text_bytes).sum::<usize>();
        let mut hold = charge.reserve_answer(most)?;
        let mut json = Vec::with_capacity(most);
        let mut parts = Vec::new();
        json.push(b'{');
        if !self.id.is_empty() {
            json.extend_from_slice(b"\"id\":");
            append(self.id, &mut json);
            json.push(b',');
        }
        json.extend_from_slice(b"\"model_name\":");
        append(&**self.model.name(), &mut json);
        json.extend_from_slice(b",\"model_version\":\"");
        append(&self.model.version, &mut json);
        json.push(b'"');
        if !self.response.parameters.is_empty() {
            self.parameters(&mut json);
        }
        json.extend_from_slice(b",\"outputs\":[");
        let mut has_binary = false;
        for (position, (index, name, tensor)) in self.outputs().enumerate() {
            if position != 0 {
                json.push(b',');
            }
            describe(name, tensor, &mut json);
            match self.deliveries.of(index) {
                // As Triton does it: its client in C++ takes any parameters here for those of bytes
                // that follow.
                Delivery::Region(_) => json.push(b'}'),
                Delivery::Inline(Encoding::Bytes) | Delivery::Classes(_, Encoding::Bytes) => {
                    has_binary = true;
                    json.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
                    append(&tensor.data().len(), &mut json);
                    json.extend_from_slice(b"}}");
                    parts.push(tensor.data().clone());
                }
                Delivery::Inline(Encoding::Text) | Delivery::Classes(_, Encoding::Text) => {
                    json.extend_from_slice(b",\"data\":");
                    write(name, tensor, &mut json)?;
                    json.push(b'}');
                }
            }
        }
        json.extend_from_slice(b"]}");
        let header = has_binary.then_some(json.len());
        hold.settle(json.len());
        parts.insert(0, hold.over(json.into()));
        Ok(EncodedBody { parts, header, coding: Coding::Identity })
    }

    fn parameters(&self, json: &mut Vec<u8>) {
        json.extend_from_slice(b",\"parameters\":{");
        for (position, (key, value)) in self.response.parameters.iter().enumerate() {
            if position != 0 {
                json.push(b',');
            }
            append(key, json);
            json.push(b':');
            append_parameter(value, json);
        }
        json.push(b'}');
    }
}

/// Appends a parameter's value.
pub(super) fn append_parameter(value: &Parameter, json: &mut Vec<u8>) {
    match value {
        Parameter::Bool(it) => append(it, json),
        Parameter::Int(it) => append(it, json),
        Parameter::Uint(it) => append(it, json),
        Parameter::Double(it) => append(it, json),
        Parameter::String(it) => append(it, json),
    }
}

fn describe(name: &str, tensor: &Tensor, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"name\":");
    append(name, json);
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(tensor.dtype().as_str().as_bytes());
    json.extend_from_slice(b"\",\"shape\":");
    append(tensor.shape(), json);
}

impl EncodedBody {
    /// Compresses the whole body; leaves it as it is if that fails, or there is no memory for it.
    pub(super) fn compress(mut self, coding: Coding, charge: &Charge) -> EncodedBody {
        let total = self.parts.iter().map(Bytes::len).sum();
        let Ok(mut hold) = charge.reserve_answer(total) else { return self };
        if let Some(compressed) = coding::deflate(coding, &self.parts) {
            hold.settle(compressed.len());
            self.parts = vec![hold.over(compressed.into())];
            self.coding = coding;
        }
        self
    }

    /// 200 with this body.
    pub(super) fn into_response(self) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        let content_type = match self.header {
            Some(length) => {
                response.insert_header((HEADER_LENGTH, length));
                "application/octet-stream"
            }
            None => "application/json",
        };
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static(content_type)));
        if self.coding != Coding::Identity {
            let name = HeaderValue::from_static(self.coding.as_str());
            response.insert_header((CONTENT_ENCODING, name));
        }
        let total: usize = self.parts.iter().map(Bytes::len).sum();
        match <[Bytes; 1]>::try_from(self.parts) {
            Ok([only]) if only.len() <= MAX_PART_BYTES => response.body(only),
            Ok(only) => response.body(BodyParts { parts: only.into(), total: total as u64 }),
            Err(parts) if total <= MAX_COPIED_BYTES => response.body(parts.concat()),
            Err(parts) => response.body(BodyParts { parts: parts.into(), total: total as u64 }),
        }
    }
}

/// A body that is sent part by part without being joined first.
struct BodyParts {
    parts: VecDeque<Bytes>,
    total: u64,
}

impl MessageBody for BodyParts {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.total)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        // An empty part would be taken for the end.
        while self.parts.front().is_some_and(Bytes::is_empty) {
            self.parts.pop_front();
        }
        let Some(front) = self.parts.front_mut() else { return Poll::Ready(None) };
        let part = front.split_to(front.len().min(MAX_PART_BYTES));
        Poll::Ready(Some(Ok(part)))
    }
}

//! Answers as frames of a body: the head is encoded, large tensors follow it without a copy.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use futures_util::stream::{BoxStream, StreamExt};
use http_body::Frame;
use prost::{Message, encode_length_delimiter, length_delimiter_len};
use smallvec::{IntoIter, SmallVec};
use tonic::{
    Status,
    body::Body,
    codegen::http::{
        HeaderMap, HeaderValue, Response,
        header::{CONTENT_TYPE, HeaderName},
    },
};

use super::{
    compress::compress,
    prefix::{MAX_MESSAGE_BYTES, PREFIX_BYTES, Prefix},
};
use crate::inference::Sending;
use troupe_base::budget::{Charge, Kind};
use troupe_proto::inference::{ModelInferResponse, ModelStreamInferResponse};

/// Below this copying is cheaper than sending a part of its own.
const MIN_PART_BYTES: usize = 16 << 10;
/// Answers of a stream that are ready are sent together up to this.
const MAX_JOINED_BYTES: usize = 32 << 10;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Keys of fields of length-delimited type.
const ERROR_MESSAGE: u8 = key(1);
const INFER_RESPONSE: u8 = key(2);
const RAW_OUTPUT_CONTENTS: u8 = key(6);

const fn key(number: u8) -> u8 {
    number << 3 | 2
}

/// The whole response of a call with one answer. `charge` is what its memory is counted by until it
/// is sent, `sending` is dropped once it is on its way.
pub(crate) fn unary(
    answer: ModelInferResponse,
    charge: Charge,
    sending: Option<Sending>,
) -> Result<Response<Body>, Status> {
    let parts = encoded(answer, &charge)?;
    Ok(response(UnaryBody { parts, is_ended: false, _charge: charge, _sending: sending }))
}

/// The same with an answer that is compressed by gzip.
pub(crate) async fn unary_compressed(
    answer: ModelInferResponse,
    level: Compression,
    charge: Charge,
    sending: Option<Sending>,
) -> Result<Response<Body>, Status> {
    let parts = encoded(answer, &charge)?.collect();
    let parts = SmallVec::from_vec(compress(parts, level, &charge).await?).into_iter();
    let body = UnaryBody { parts, is_ended: false, _charge: charge, _sending: sending };
    let mut response = response(body);
    response.headers_mut().insert(ENCODING, HeaderValue::from_static("gzip"));
    Ok(response)
}

fn encoded(answer: ModelInferResponse, charge: &Charge) -> Result<PartQueue, Status> {
    let mut parts = Parts { charge: charge.clone(), ..Parts::default() };
    parts.answer(answer)?;
    Ok(parts.finish())
}

/// The whole response of a call with many answers.
pub(crate) fn streaming(
    answers: BoxStream<'static, Result<ModelStreamInferResponse, Status>>,
) -> Response<Body> {
    response(StreamBody {
        answers,
        ready: SmallVec::new().into_iter(),
        trailers: None,
        is_ended: false,
    })
}

fn response<B>(body: B) -> Response<Body>
where
    B: http_body::Body<Data = Bytes, Error = Status> + Send + 'static,
{
    let mut response = Response::new(Body::new(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}

/// Parts that are still to be sent; most answers are one.
type PartQueue = IntoIter<[Bytes; 4]>;

/// Messages with their prefixes, as parts that are sent one after the other.
#[derive(Default)]
struct Parts {
    done: SmallVec<[Bytes; 4]>,
    /// What the next part is made of.
    open: BytesMut,
    /// Counts what is copied into parts; large tensors are counted by whoever made them.
    charge: Charge,
}

impl Parts {
    /// One answer of a call that has one.
    fn answer(&mut self, answer: ModelInferResponse) -> Result<(), Status> {
        let size = AnswerSize::of(&answer);
        self.prefix(size.total, &size)?;
        self.body(answer)
    }

    /// One answer of a stream.
    fn stream_answer(&mut self, it: ModelStreamInferResponse) -> Result<(), Status> {
        let answer = it.infer_response.unwrap_or_default();
        let size = AnswerSize::of(&answer);
        let text = it.error_message.as_bytes();
        let text_size = if text.is_empty() { 0 } else { delimited_len(text.len()) };
        self.prefix(text_size + delimited_len(size.total), &size)?;
        if !text.is_empty() {
            self.delimiter(ERROR_MESSAGE, text.len())?;
            self.open.put_slice(text);
        }
        self.delimiter(INFER_RESPONSE, size.total)?;
        self.body(answer)
    }

    fn prefix(&mut self, length: usize, size: &AnswerSize) -> Result<(), Status> {
        if MAX_MESSAGE_BYTES < length {
            return Err(Status::out_of_range(format!(
                "Error, encoded message length too large: found {length} bytes, the limit is: \
                 {MAX_MESSAGE_BYTES} bytes"
            )));
        }
        self.open.reserve(PREFIX_BYTES + length - size.large);
        self.open.put_slice(&Prefix { is_compressed: false, length }.bytes());
        Ok(())
    }

    fn body(&mut self, mut answer: ModelInferResponse) -> Result<(), Status> {
        let raw = std::mem::take(&mut answer.raw_output_contents);
        answer.encode(&mut self.open).map_err(too_small)?;
        for content in raw {
            self.delimiter(RAW_OUTPUT_CONTENTS, content.len())?;
            if content.len() < MIN_PART_BYTES {
                self.open.put_slice(&content);
            } else {
                self.close();
                self.done.push(content);
            }
        }
        Ok(())
    }

    fn delimiter(&mut self, key: u8, length: usize) -> Result<(), Status> {
        self.open.put_u8(key);
        encode_length_delimiter(length, &mut self.open).map_err(too_small)
    }

    /// Is there so much that it should be sent?
    fn is_full(&self) -> bool {
        !self.done.is_empty() || MAX_JOINED_BYTES <= self.open.len()
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let part = self.open.split().freeze();
            self.done.push(self.charge.over(Kind::Responses, part));
        }
    }

    fn finish(mut self) -> PartQueue {
        self.close();
        self.done.into_iter()
    }
}

/// Buffers grow, so this does not happen.
fn too_small(error: prost::EncodeError) -> Status {
    Status::internal(error.to_string())
}

/// Bytes of an encoded answer.
struct AnswerSize {
    total: usize,
    /// Of them those in parts of their own.
    large: usize,
}

impl AnswerSize {
    fn of(answer: &ModelInferResponse) -> AnswerSize {
        let lengths = answer.raw_output_contents.iter().map(Bytes::len);
        let large = lengths.filter(|it| MIN_PART_BYTES <= *it).sum();
        AnswerSize { total: answer.encoded_len(), large }
    }
}

/// A field's key, its length and what it holds.
fn delimited_len(length: usize) -> usize {
    1 + length_delimiter_len(length) + length
}

struct UnaryBody {
    parts: PartQueue,
    is_ended: bool,
    _charge: Charge,
    _sending: Option<Sending>,
}

impl http_body::Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(part) = self.parts.next() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if std::mem::replace(&mut self.is_ended, true) {
            return Poll::Ready(None);
        }
        let trailers = HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))]);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

struct StreamBody {
    answers: BoxStream<'static, Result<ModelStreamInferResponse, Status>>,
    ready: PartQueue,
    /// How the call ends, once it is known.
    trailers: Option<HeaderMap>,
    is_ended: bool,
}

impl StreamBody {
    /// Encodes what is ready, and waits only if nothing is.
    fn poll_parts(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut parts = Parts::default();
        while !parts.is_full() {
            let encoded = match self.answers.poll_next_unpin(cx) {
                Poll::Pending if parts.open.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(None) => Err(Status::ok("")),
                Poll::Ready(Some(Err(status))) => Err(status),
                Poll::Ready(Some(Ok(answer))) => parts.stream_answer(answer),
            };
            if let Err(status) = encoded {
                self.trailers = Some(trailers(&status));
                break;
            }
        }
        self.ready = parts.finish();
        Poll::Ready(())
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // A text that no header can hold; the code says enough.
        trailers.insert(STATUS, HeaderValue::from(status.code() as u16));
    }
    trailers
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = self.get_mut();
        loop {
            if let Some(part) = body.ready.next() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if let Some(trailers) = body.trailers.take() {
                body.is_ended = true;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            if body.is_ended {
                return Poll::Ready(None);
            }
            std::task::ready!(body.poll_parts(cx));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_proto::inference::model_infer_response::InferOutputTensor;

    fn answer(lengths: &[usize]) -> ModelInferResponse {
        let output = |name: &usize| InferOutputTensor {
            name: name.to_string(),
            datatype: "UINT8".to_owned(),
            shape: vec![*name as i64],
            ..InferOutputTensor::default()
        };
        ModelInferResponse {
            model_name: "m".to_owned(),
            id: "7".to_owned(),
            outputs: lengths.iter().map(output).collect(),
            raw_output_contents: lengths.iter().map(|it| vec![*it as u8; *it].into()).collect(),
            ..ModelInferResponse::default()
        }
    }

    fn prefixed(message: &impl Message) -> Vec<u8> {
        let bytes = message.encode_to_vec();
        [&[0][..], &(bytes.len() as u32).to_be_bytes(), &bytes].concat()
    }

    #[test]
    fn an_answer_is_what_generated_code_writes() {
        for lengths in
            [&[][..], &[0], &[3, 0, 200], &[MIN_PART_BYTES], &[1, 70_000, 2, MIN_PART_BYTES, 5]]
        {
            let mut parts = Parts::default();
            parts.answer(answer(lengths)).unwrap();
            assert_eq!(parts.finish().collect::<Vec<_>>().concat(), prefixed(&answer(lengths)));
            for error_message in [String::new(), "it broke".to_owned()] {
                let infer_response = Some(answer(lengths));
                let it = ModelStreamInferResponse { error_message, infer_response };
                let mut parts = Parts::default();
                parts.stream_answer(it.clone()).unwrap();
                assert_eq!(parts.finish().collect::<Vec<_>>().concat(), prefixed(&it));
            }
        }
    }

    #[test]
    fn large_tensors_are_not_copied() {
        let answer = answer(&[1, 70_000, 5]);
        let tensor = answer.raw_output_contents[1].as_ptr();
        let mut parts = Parts::default();
        parts.answer(answer).unwrap();
        let parts: Vec<_> = parts.finish().collect();
        assert_eq!(
            parts.iter().map(|it| 1000 < it.len()).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(parts[1].as_ptr(), tensor);
    }

    #[tokio::test]
    async fn answers_that_are_ready_are_sent_together() {
        let one = || ModelStreamInferResponse {
            infer_response: Some(answer(&[3])),
            ..Default::default()
        };
        let answers = [Ok(one()), Ok(one()), Err(Status::aborted("enough")), Ok(one())];
        let mut body = streaming(futures_util::stream::iter(answers).boxed()).into_body();
        let mut frames = Vec::new();
        while let Some(frame) =
            std::future::poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx)).await
        {
            frames.push(frame.unwrap());
        }
        assert_eq!(frames.len(), 2);
        assert_eq!(*frames[0].data_ref().unwrap(), [prefixed(&one()), prefixed(&one())].concat());
        let trailers = frames[1].trailers_ref().unwrap();
        assert_eq!(
            (&trailers[STATUS], &trailers["grpc-message"]),
            (&"10".parse().unwrap(), &"enough".parse().unwrap())
        );
    }
}

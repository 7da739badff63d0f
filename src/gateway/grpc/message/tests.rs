//! Messages as generated code writes them, in chunks of every size, and random bytes.

mod arrivals;

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use prost::Message;
use tonic::{Code, Status, body::Body};

use super::{
    request::{InferMessage, InferMessages, TensorDestination},
    *,
};
use crate::inflate::Coding;
use troupe_base::{
    budget::Charge,
    error::Error,
    tensor::{DataType, OwnedPool, Owner, SegmentPool},
};
use troupe_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice::{self, BoolParam, Int64Param, StringParam},
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

const LIMIT: usize = 1 << 20;

/// A body of these chunks, which ends behind them or stands still.
struct Chunks {
    chunks: VecDeque<Bytes>,
    ends: bool,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.chunks.pop_front() {
            None if !self.ends => Poll::Pending,
            chunk => Poll::Ready(chunk.map(|it| Ok(Frame::data(it)))),
        }
    }
}

/// The model `shared` is one of a worker process.
struct Place(Arc<SegmentPool>);

impl TensorDestination for Place {
    fn pool(&self, model_name: &str, _: &str, _: usize) -> Result<Option<OwnedPool>, Error> {
        Ok((model_name == "shared")
            .then(|| OwnedPool { pool: self.0.clone(), owner: Owner::default() }))
    }
}

fn messages(sent: &[u8], chunk: usize) -> InferMessages<Place> {
    let chunks = sent.chunks(chunk).map(Bytes::copy_from_slice).collect();
    of_chunks(chunks)
}

fn of_chunks(chunks: VecDeque<Bytes>) -> InferMessages<Place> {
    InferMessages {
        place: Place(SegmentPool::new(0)),
        connection: None,
        charge: Charge::default(),
        arriving: Arriving::new(
            Body::new(Chunks { chunks, ends: true }),
            Pauses::of_one(Duration::ZERO),
            &Charge::default(),
        ),
        coding: Coding::Gzip,
        limit: LIMIT,
    }
}

fn prefixed(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// All requests of a call, and how it ended.
async fn receive(sent: &[u8], chunk: usize) -> (Vec<InferMessage>, Option<Status>) {
    let mut messages = messages(sent, chunk);
    let mut all = Vec::new();
    loop {
        match messages.next().await {
            Ok(Some(message)) => all.push(message),
            Ok(None) => return (all, None),
            Err(status) => return (all, Some(status)),
        }
    }
}

/// What generated code would have made of it; typed contents stay as they are.
fn generated(message: &InferMessage) -> Result<ModelInferRequest, Error> {
    let mut items = ItemBudget::default();
    let mut request = ModelInferRequest {
        model_name: message.model_name.to_string(),
        model_version: message.model_version.to_string(),
        id: message.id.to_string(),
        parameters: message.parameters()?,
        ..ModelInferRequest::default()
    };
    for entry in &message.inputs {
        let InputHead { name, datatype, shape, parameters, contents } =
            InputHead::read(entry, &mut items)?;
        let contents = contents.map(|it| InferTensorContents::decode(&it.0.concat()[..]).unwrap());
        request.inputs.push(InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
            parameters,
            contents,
        });
    }
    for entry in &message.outputs {
        let OutputHead { name, parameters } = OutputHead::read(entry, &mut items)?;
        request.outputs.push(InferRequestedOutputTensor { name: name.to_owned(), parameters });
    }
    let raw = message.raw_input_contents.iter().map(|it| it.bytes());
    request.raw_input_contents = raw.collect::<Result<_, _>>()?;
    Ok(request)
}

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn text(&mut self) -> String {
        let length = self.below(20);
        (0..length).map(|_| ["a", "Z", "ä", "\0", "…"][self.below(5) as usize]).collect()
    }

    fn parameters(&mut self) -> HashMap<String, InferParameter> {
        let choice = |it: &mut Random| match it.below(6) {
            0 => None,
            1 => Some(BoolParam(true)),
            2 => Some(Int64Param(it.below(u64::MAX) as i64)),
            3 => Some(ParameterChoice::DoubleParam(it.below(100) as f64)),
            4 => Some(ParameterChoice::Uint64Param(it.below(u64::MAX))),
            _ => Some(StringParam(it.text())),
        };
        let count = self.below(3);
        (0..count)
            .map(|_| (self.text(), InferParameter { parameter_choice: choice(self) }))
            .collect()
    }

    fn bytes(&mut self) -> Bytes {
        let length = if self.below(8) == 0 { 65_000 + self.below(5000) } else { self.below(300) };
        (0..length).map(|it| it as u8).collect()
    }

    fn request(&mut self) -> ModelInferRequest {
        let count = self.below(4);
        let contents = InferTensorContents {
            fp32_contents: vec![1.5; self.below(5) as usize],
            int_contents: vec![-1, 2],
            bytes_contents: vec![self.bytes()],
            ..InferTensorContents::default()
        };
        let input = |it: &mut Random| InferInputTensor {
            name: it.text(),
            datatype: it.text(),
            shape: (0..it.below(5)).map(|_| it.below(u64::MAX) as i64).collect(),
            parameters: it.parameters(),
            contents: (it.below(3) == 0).then(|| contents.clone()),
        };
        let output = |it: &mut Random| InferRequestedOutputTensor {
            name: it.text(),
            parameters: it.parameters(),
        };
        ModelInferRequest {
            model_name: if self.below(2) == 0 { "shared".to_owned() } else { self.text() },
            model_version: self.text(),
            id: self.text(),
            parameters: self.parameters(),
            inputs: (0..count).map(|_| input(self)).collect(),
            outputs: (0..count).map(|_| output(self)).collect(),
            raw_input_contents: (0..count).map(|_| self.bytes()).collect(),
        }
    }
}

#[tokio::test]
async fn what_generated_code_writes_is_read_whatever_the_chunks() {
    let mut random = Random(7);
    for round in 0..60 {
        let requests = [random.request(), ModelInferRequest::default(), random.request()];
        let encoded = requests.iter().map(|it| prefixed(0, &it.encode_to_vec()));
        let sent = encoded.collect::<Vec<_>>().concat();
        let chunk = [1, 2, 7, 100, 16_384, sent.len()][round % 6];
        let (received, status) = receive(&sent, chunk).await;
        assert!(status.is_none(), "{status:?}");
        for (received, sent) in received.iter().zip(&requests) {
            assert_eq!(generated(received).unwrap(), *sent, "chunks of {chunk}");
            assert_eq!(received.size, sent.encoded_len());
        }
        assert_eq!(received.len(), requests.len());
    }
}

#[tokio::test]
async fn spoiled_messages_are_refused_by_us_whenever_generated_code_refuses_them() {
    let mut random = Random(11);
    let (mut refused, mut only_by_us) = (0, 0);
    for _ in 0..4000 {
        let mut request = random.request();
        request.raw_input_contents.retain(|it| it.len() < 100);
        request.inputs.iter_mut().for_each(|it| it.contents = None);
        let mut message = request.encode_to_vec();
        if message.is_empty() {
            continue;
        }
        for _ in 0..=random.below(3) {
            let at = random.below(message.len() as u64) as usize;
            message[at] = random.below(256) as u8;
        }
        let (received, status) = receive(&prefixed(0, &message), 64).await;
        let ours = status.map_or_else(|| generated(&received[0]).ok(), |_| None);
        match ModelInferRequest::decode(&message[..]) {
            // A field that was there twice would be one for generated code too.
            Ok(theirs) => {
                if let Some(ours) = ours {
                    assert_eq!(ours.encode_to_vec().len(), theirs.encode_to_vec().len());
                } else {
                    // Groups are refused, which generated code skips.
                    only_by_us += 1;
                }
            }
            Err(error) => {
                assert!(ours.is_none(), "{error} but not for us: {message:02x?}");
                refused += 1;
            }
        }
    }
    assert!(1000 < refused && only_by_us < 100, "{refused} {only_by_us}");
}

#[tokio::test]
async fn frames_that_are_wrong_have_their_status() {
    let whole = ModelInferRequest { id: "7".into(), ..Default::default() }.encode_to_vec();
    let long = (LIMIT as u32 + 1).to_be_bytes();
    for (sent, count, code, text) in [
        (b"\0\0\0".to_vec(), 0, Code::Internal, "Unexpected EOF decoding stream."),
        (b"\0\0\0\0\x05\x0a".to_vec(), 0, Code::Internal, "Unexpected EOF decoding stream."),
        ([&prefixed(0, &whole)[..], &[0]].concat(), 1, Code::Internal, "Unexpected EOF"),
        (prefixed(0, b"\x0a\x05hi"), 0, Code::Internal, "buffer underflow"),
        (prefixed(0, b"\x0a\x05hi\x0a\x00"), 0, Code::Internal, "buffer underflow"),
        (prefixed(0, b"\x08\x01"), 0, Code::Internal, "invalid wire type"),
        (prefixed(0, b"\x0a\x01\xff"), 0, Code::Internal, "data is not UTF-8"),
        (prefixed(0, b"\x3a\x80"), 0, Code::Internal, "buffer underflow"),
        (prefixed(2, &whole), 0, Code::Internal, "invalid compression flag: 2"),
        (prefixed(1, &whole), 0, Code::Internal, "Error decompressing"),
        ([&[0][..], &long].concat(), 0, Code::ResourceExhausted, "larger than max (1048577 vs."),
        (b"\0\xff\xff\xff\xff".to_vec(), 0, Code::ResourceExhausted, "larger than max"),
        (prefixed(0, &[0x2a, 0].repeat(4097)), 0, Code::InvalidArgument, "more than 4096 inputs"),
        (prefixed(0, &[0x3a, 0].repeat(4097)), 0, Code::InvalidArgument, "more than 4096 inputs"),
        (prefixed(0, &[0x22, 0].repeat(4097)), 0, Code::InvalidArgument, "more than 4096 inputs"),
    ] {
        for chunk in [1, 3, sent.len()] {
            let (received, status) = receive(&sent, chunk).await;
            let status = status.unwrap();
            assert_eq!((received.len(), status.code()), (count, code), "{status:?}");
            assert!(status.message().contains(text), "{status:?}");
        }
    }
}

#[tokio::test]
async fn items_of_all_inputs_are_counted_together() {
    let shape = [&[0x1a, 0x80, 0x20][..], &[1; 4096]].concat();
    let input = [&[0x2a, 0x83, 0x20][..], &shape].concat();
    for (inputs, is_right) in [(16, true), (17, false)] {
        let (received, _) = receive(&prefixed(0, &input.repeat(inputs)), 4096).await;
        let read = generated(&received[0]);
        assert_eq!(read.is_ok(), is_right, "{inputs}: {:?}", read.err());
    }
}

#[tokio::test]
async fn large_tensors_are_slices_or_lie_where_workers_see_them() {
    let tensor = vec![3; 100_000];
    for (name, is_shared) in [("plain", false), ("shared", true)] {
        let request = ModelInferRequest {
            model_name: name.into(),
            raw_input_contents: vec![tensor.clone().into()],
            ..Default::default()
        };
        let sent = Bytes::from(prefixed(0, &request.encode_to_vec()));
        for chunk in [sent.len(), 10_000] {
            let chunks = (0..sent.len()).step_by(chunk);
            let chunks = chunks.map(|it| sent.slice(it..sent.len().min(it + chunk))).collect();
            let message = of_chunks(chunks).only().await.unwrap();
            let shape = [100_000].into_iter().collect();
            let read = message.raw_input_contents[0].tensor(DataType::Uint8, shape).unwrap();
            assert_eq!(read.data(), &tensor);
            assert_eq!(read.segment().is_some(), is_shared, "{name}, chunks of {chunk}");
            let is_slice = sent.as_ptr_range().contains(&read.data().as_ptr());
            assert_eq!(is_slice, !is_shared && chunk == sent.len(), "{name}, chunks of {chunk}");
        }
    }
}

#[tokio::test]
async fn a_call_with_one_message_takes_one() {
    let one = prefixed(0, &ModelInferRequest::default().encode_to_vec());
    messages(&one, 5).only().await.unwrap();
    messages(&one.repeat(3), 5).only().await.unwrap();
    let missing = messages(b"", 5).only().await.err().unwrap();
    assert_eq!(missing.message(), "Missing request message.");
    let many = messages(&one.repeat(1 << 15), 1 << 10).only().await.err().unwrap();
    assert_eq!(
        (many.code(), many.message()),
        (Code::Internal, "more than one message in a call that takes one")
    );
}

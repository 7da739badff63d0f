//! Messages over gRPC whose fields are not as they should be, sent by a client that frames them well.

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::{
    Code, Request, Status,
    client::Grpc as Calls,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use troupe_proto::inference::{
    InferParameter, LogSettingsRequest, ModelConfigRequest, ModelInferRequest, ModelInferResponse,
    ModelStreamInferResponse, RepositoryModelLoadRequest, SystemSharedMemoryRegisterRequest,
    TraceSettingRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use super::{
    attempts::{attacked, fuzz_server},
    mutate::Random,
    wire::with_mistakes,
};
use crate::support::{
    Repository, Server,
    grpc::{Grpc, floats, floats_of},
    models::native,
    subject::Subject,
};

pub(super) fn subject() -> Subject {
    let models = [
        ("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        ("s", native("identity", "x:BYTES[-1] -> y:BYTES[-1]")),
    ];
    attacked(Repository::of(models), &[], |server: &Server| {
        let answer = Grpc::connect(server.grpc).infer(sound()).unwrap();
        assert_eq!(floats_of(&answer.raw_output_contents[0]), [1.0, 2.5]);
    })
}

/// What is answered with what it holds.
pub(super) fn sound() -> ModelInferRequest {
    floats("m", &[("x", &[1.0, 2.5])])
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

/// A request with all that a request may have.
fn full() -> ModelInferRequest {
    let parameters = [
        ("timeout", ParameterChoice::Int64Param(100_000)),
        ("sequence_id", ParameterChoice::StringParam("a".to_owned())),
        ("sequence_start", ParameterChoice::BoolParam(true)),
        ("priority", ParameterChoice::Uint64Param(1)),
        ("else", ParameterChoice::DoubleParam(0.5)),
    ];
    let output = InferRequestedOutputTensor {
        name: "y".to_owned(),
        parameters: [("classification".to_owned(), parameter(ParameterChoice::Int64Param(1)))]
            .into(),
    };
    ModelInferRequest {
        model_version: "1".to_owned(),
        id: "7".to_owned(),
        parameters: parameters.map(|(name, it)| (name.to_owned(), parameter(it))).into(),
        outputs: vec![output],
        ..sound()
    }
}

/// Strings as elements, and not as raw contents.
fn strings() -> ModelInferRequest {
    use troupe_proto::inference::InferTensorContents;
    let bytes_contents = vec![b"a".to_vec().into(), b"\xc3\xa4".to_vec().into()];
    let contents = InferTensorContents { bytes_contents, ..Default::default() };
    ModelInferRequest {
        model_name: "s".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "BYTES".to_owned(),
            shape: vec![2],
            contents: Some(contents),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A method and a message of its kind, with mistakes in it.
pub(super) fn call(random: &mut Random) -> (&'static str, Vec<u8>) {
    let name = || "m".to_owned();
    let (method, message) = match random.below(12) {
        0 => (
            "ModelConfig",
            ModelConfigRequest { name: name(), ..Default::default() }.encode_to_vec(),
        ),
        1 => (
            "TraceSetting",
            TraceSettingRequest { model_name: name(), ..Default::default() }.encode_to_vec(),
        ),
        2 => ("LogSettings", LogSettingsRequest::default().encode_to_vec()),
        3 => {
            let request = SystemSharedMemoryRegisterRequest {
                name: name(),
                key: "/none".to_owned(),
                offset: 1,
                byte_size: 8,
            };
            ("SystemSharedMemoryRegister", request.encode_to_vec())
        }
        4 => {
            let request = RepositoryModelLoadRequest { model_name: name(), ..Default::default() };
            ("RepositoryModelLoad", request.encode_to_vec())
        }
        it => {
            let message = match random.below(3) {
                0 => sound(),
                1 => full(),
                _ => strings(),
            };
            (if it < 8 { "ModelStreamInfer" } else { "ModelInfer" }, message.encode_to_vec())
        }
    };
    random.keep(method.as_bytes());
    let message = with_mistakes(&message, random);
    (method, message)
}

#[test]
fn messages_over_grpc_are_answered() {
    let subject = subject();
    let address = subject.server.grpc;
    let mut client = Grpc::connect(address);
    fuzz_server("gRPC messages", &subject, |random| {
        let (method, message) = call(random);
        let path = format!("/inference.GRPCInferenceService/{method}");
        let path = PathAndQuery::try_from(path).unwrap();
        let answer = client.run_on_channel(async |channel| {
            let mut calls = Calls::new(channel);
            calls.ready().await.unwrap();
            if method == "ModelStreamInfer" {
                let last = Bytes::from(sound().encode_to_vec());
                let messages = tokio_stream::iter([message.into(), last]);
                let answers = calls.streaming(Request::new(messages), path, Raw).await?;
                let mut answers = answers.into_inner();
                while let Some(answer) = answers.message().await? {
                    let _ = ModelStreamInferResponse::decode(answer).unwrap();
                }
            } else {
                let answer = calls.unary(Request::new(message.into()), path, Raw).await?;
                if method == "ModelInfer" {
                    let _ = ModelInferResponse::decode(answer.into_inner()).unwrap();
                }
            }
            Ok::<(), Status>(())
        });
        if let Err(status) = answer {
            // What is no message at all is an internal error in every implementation of gRPC.
            let is_none = status.message().starts_with("failed to decode Protobuf message");
            let is_fault = matches!(status.code(), Code::Internal | Code::Unknown | Code::DataLoss);
            assert!(is_none || !is_fault, "{method}: {status}");
        }
    });
}

/// Messages as they are on the wire.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        use bytes::Buf;
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

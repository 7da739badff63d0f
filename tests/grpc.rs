//! The gRPC door, through the generated client.

use std::{collections::HashMap, sync::LazyLock};

use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
use troupe::proto::inference::{
    InferParameter, InferTensorContents, ModelConfigRequest, ModelInferRequest,
    ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest, RepositoryIndexRequest,
    RepositoryModelLoadRequest, RepositoryModelUnloadRequest, ServerLiveRequest,
    ServerMetadataRequest, ServerReadyRequest,
    infer_parameter::ParameterChoice,
    model_config::SchedulingChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use crate::support::{
    Repository, Server, ensemble,
    grpc::{Grpc, bytes_of, floats, floats_of},
    models::delay,
    native,
};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let mut repository = Repository::new()
        .with("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]"))
        .with("slow", delay(20, "x:FP32[-1] -> y:FP32[-1]"))
        .with("fast", native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with("e", ensemble("A:FP32[4] -> Z:FP32[4]", &["add_sub: a=A b=A -> sum=Z"]));
    for dtype in
        "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP32 FP64 BYTES FP16".split(' ')
    {
        let signature = format!("x:{dtype}[-1] -> y:{dtype}[-1]");
        repository.write(&format!("id_{dtype}"), &native("identity", &signature));
    }
    Server::with(repository, &["--id=tested"])
});

fn grpc() -> Grpc {
    Grpc::connect(SERVER.grpc)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), code, "{error:?}");
    assert!(error.message().contains(text), "expected `{text}` in `{}`", error.message());
}

#[test]
fn health_and_metadata() {
    let mut grpc = grpc();
    assert!(grpc.call(async |it| it.server_live(ServerLiveRequest {}).await).unwrap().live);
    assert!(grpc.call(async |it| it.server_ready(ServerReadyRequest {}).await).unwrap().ready);
    let it = grpc.call(async |it| it.server_metadata(ServerMetadataRequest {}).await).unwrap();
    assert_eq!(it.name, "tested");
    assert!(it.extensions.iter().any(|it| it == "model_repository"), "{it:?}");
    let of = |name: &str, version: &str| ModelReadyRequest {
        name: name.to_owned(),
        version: version.to_owned(),
    };
    for version in ["", "1"] {
        let request = of("e", version);
        assert!(grpc.call(async |it| it.model_ready(request).await).unwrap().ready);
    }
    let answer = grpc.call(async |it| it.model_ready(of("no", "")).await);
    refused(answer, Code::NotFound, "Request for unknown model: 'no' is not found");
    let answer = grpc.call(async |it| it.model_ready(of("e", "abc")).await);
    refused(
        answer,
        Code::InvalidArgument,
        "failed to get model version from specified version string 'abc'",
    );
    let request = ModelMetadataRequest { name: "e".to_owned(), version: String::new() };
    let it = grpc.call(async |it| it.model_metadata(request).await).unwrap();
    assert_eq!((it.platform.as_str(), it.versions.as_slice()), ("ensemble", &["1".to_owned()][..]));
    assert_eq!((it.inputs[0].name.as_str(), &it.inputs[0].shape[..]), ("A", &[4][..]));
}

#[test]
fn the_standard_health_service_answers() {
    let request = HealthCheckRequest { service: String::new() };
    let answer =
        grpc().run_on_channel(async |channel| HealthClient::new(channel).check(request).await);
    assert_eq!(answer.unwrap().into_inner().status, 1, "1 is SERVING");
}

#[test]
fn the_services_say_what_they_are() {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer = grpc().run_on_channel(async |channel| {
        let mut client = ServerReflectionClient::new(channel);
        let requests = tokio_stream::iter([request]);
        client.server_reflection_info(requests).await?.into_inner().message().await
    });
    let Some(MessageResponse::ListServicesResponse(services)) =
        answer.unwrap().unwrap().message_response
    else {
        panic!("expected a list of services");
    };
    let names: Vec<_> = services.service.iter().map(|it| it.name.as_str()).collect();
    for name in ["inference.GRPCInferenceService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
}

#[test]
fn the_config_is_whole() {
    let request = ModelConfigRequest { name: "e".to_owned(), version: String::new() };
    let config = grpc().call(async |it| it.model_config(request).await).unwrap().config.unwrap();
    assert_eq!(config.platform, "ensemble");
    let Some(SchedulingChoice::EnsembleScheduling(steps)) = config.scheduling_choice else {
        panic!("an ensemble has steps: {:?}", config.scheduling_choice);
    };
    assert_eq!((steps.step[0].model_name.as_str(), steps.step[0].model_version), ("add_sub", -1));
    assert_eq!(steps.step[0].input_map["b"], "A");
}

#[test]
fn an_inference_answers_with_raw_outputs() {
    let mut request = floats("add_sub", &[("a", &[1.0; 4]), ("b", &[2.0, 3.0, 4.0, 5.0])]);
    request.id = "seven".to_owned();
    let answer = grpc().infer(request.clone()).unwrap();
    assert_eq!(
        (answer.model_name.as_str(), answer.model_version.as_str(), answer.id.as_str()),
        ("add_sub", "1", "seven")
    );
    let names: Vec<_> = answer.outputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["sum", "difference"]);
    assert!(answer.outputs.iter().all(|it| it.contents.is_none()));
    assert_eq!(floats_of(&answer.raw_output_contents[0]), [3.0, 4.0, 5.0, 6.0]);
    request.outputs =
        vec![InferRequestedOutputTensor { name: "difference".to_owned(), ..Default::default() }];
    let answer = grpc().infer(request).unwrap();
    assert_eq!(answer.outputs.len(), 1);
    assert_eq!(floats_of(&answer.raw_output_contents[0]), [-1.0, -2.0, -3.0, -4.0]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn typed_contents_are_taken_for_every_type() {
    let contents = InferTensorContents::default;
    let rows: Vec<(&str, InferTensorContents, Vec<u8>)> = vec![
        (
            "BOOL",
            InferTensorContents { bool_contents: vec![true, false], ..contents() },
            vec![1, 0],
        ),
        ("INT8", InferTensorContents { int_contents: vec![-1, 2], ..contents() }, vec![255, 2]),
        (
            "INT16",
            InferTensorContents { int_contents: vec![-1, 2], ..contents() },
            vec![255, 255, 2, 0],
        ),
        (
            "INT32",
            InferTensorContents { int_contents: vec![-1, 2], ..contents() },
            vec![255, 255, 255, 255, 2, 0, 0, 0],
        ),
        (
            "INT64",
            InferTensorContents { int64_contents: vec![-1, 2], ..contents() },
            [[255; 8], [2, 0, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        ("UINT8", InferTensorContents { uint_contents: vec![255, 2], ..contents() }, vec![255, 2]),
        (
            "UINT16",
            InferTensorContents { uint_contents: vec![1, 2], ..contents() },
            vec![1, 0, 2, 0],
        ),
        (
            "UINT32",
            InferTensorContents { uint_contents: vec![1, 2], ..contents() },
            vec![1, 0, 0, 0, 2, 0, 0, 0],
        ),
        (
            "UINT64",
            InferTensorContents { uint64_contents: vec![1, u64::MAX], ..contents() },
            [[1, 0, 0, 0, 0, 0, 0, 0], [255; 8]].concat(),
        ),
        (
            "FP32",
            InferTensorContents { fp32_contents: vec![1.5, -2.0], ..contents() },
            bytes_of(&[1.5, -2.0]),
        ),
        (
            "FP64",
            InferTensorContents { fp64_contents: vec![1.5, -2.0], ..contents() },
            [1.5f64.to_le_bytes(), (-2.0f64).to_le_bytes()].concat(),
        ),
        (
            "BYTES",
            InferTensorContents {
                bytes_contents: vec![b"ab\0".to_vec().into(), Vec::new().into()],
                ..contents()
            },
            b"\x03\0\0\0ab\0\0\0\0\0".to_vec(),
        ),
    ];
    let mut grpc = grpc();
    for (dtype, contents, expected) in rows {
        let request = ModelInferRequest {
            model_name: format!("id_{dtype}"),
            inputs: vec![InferInputTensor {
                name: "x".to_owned(),
                datatype: dtype.to_owned(),
                shape: vec![2],
                contents: Some(contents),
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer = grpc.infer(request).unwrap();
        assert_eq!(answer.raw_output_contents[0][..], expected, "{dtype}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_requests_are_refused_in_tritons_words() {
    let good = || floats("add_sub", &[("a", &[1.0; 4]), ("b", &[1.0; 4])]);
    let with = |change: &dyn Fn(&mut ModelInferRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let typed = Some(InferTensorContents { fp32_contents: vec![1.0; 4], ..Default::default() });
    let ints = Some(InferTensorContents { int_contents: vec![1; 4], ..Default::default() });
    let parameter = |value: ParameterChoice| InferParameter { parameter_choice: Some(value) };
    let rows: Vec<(ModelInferRequest, Code, &str)> = vec![
        (with(&|it| it.model_name = "no".to_owned()), Code::NotFound, "unknown model: 'no'"),
        (
            with(&|it| it.model_version = "7".to_owned()),
            Code::NotFound,
            "Request for unknown model: 'add_sub' version 7 is not found",
        ),
        (
            with(&|it| it.inputs[0].contents = typed.clone()),
            Code::InvalidArgument,
            "contents field must not be specified when using raw_input_contents for 'a' for model \
             'add_sub'",
        ),
        (
            with(&|it| {
                it.raw_input_contents.clear();
                it.inputs[0].contents = ints.clone();
                it.inputs[1].contents = typed.clone();
            }),
            Code::InvalidArgument,
            "unexpected explicit tensor data for input tensor 'a' for model 'add_sub'",
        ),
        (
            with(&|it| it.raw_input_contents.truncate(1)),
            Code::InvalidArgument,
            "unable to find data for input tensor 'b' for model 'add_sub' in request.",
        ),
        (
            with(&|it| it.raw_input_contents[0].truncate(12)),
            Code::InvalidArgument,
            "input byte size mismatch for input 'a' for model 'add_sub'. Expected 16, got 12",
        ),
        (with(&|it| it.inputs[0].shape = vec![-4]), Code::InvalidArgument, "invalid dimensions"),
        (with(&|it| it.inputs[0].shape = vec![1 << 40, 1 << 40]), Code::InvalidArgument, "exceed"),
        (
            with(&|it| it.inputs[0].shape = vec![2, 2]),
            Code::InvalidArgument,
            "unexpected shape for input 'a' for model 'add_sub'. Expected [4], got [2,2].",
        ),
        (
            with(&|it| it.inputs[0].datatype = "INT32".to_owned()),
            Code::InvalidArgument,
            "inference input 'a' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
        ),
        (
            with(&|it| it.inputs[0].datatype = "FP33".to_owned()),
            Code::InvalidArgument,
            "inference input 'a' data-type is '<invalid>', but model 'add_sub' expects 'FP32'",
        ),
        (
            with(&|it| it.inputs[1].name = "a".to_owned()),
            Code::InvalidArgument,
            "input 'a' already exists in request",
        ),
        (
            with(&|it| it.inputs[1].name = "c".to_owned()),
            Code::InvalidArgument,
            "unexpected inference input 'c' for model 'add_sub'",
        ),
        (
            with(&|it| {
                it.inputs.pop();
                it.raw_input_contents.pop();
            }),
            Code::InvalidArgument,
            "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['a'], but \
             missing required input(s) ['b'].",
        ),
        (
            with(&|it| {
                it.outputs = vec![InferRequestedOutputTensor {
                    name: "no".to_owned(),
                    ..Default::default()
                }];
            }),
            Code::InvalidArgument,
            "unexpected inference output 'no' for model 'add_sub'",
        ),
        (
            with(&|it| {
                let key = "triton_secret".to_owned();
                it.parameters = HashMap::from([(key, parameter(ParameterChoice::BoolParam(true)))]);
            }),
            Code::InvalidArgument,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not \
             be specified.",
        ),
    ];
    let mut grpc = grpc();
    for (request, code, text) in rows {
        refused(grpc.infer(request), code, text);
        assert_eq!(grpc.infer(good()).unwrap().outputs.len(), 2, "after `{text}`");
    }
    SERVER.is_well();
}

#[test]
fn a_stream_answers_in_order_and_survives_errors() {
    let request = |model: &str, id: &str| {
        let mut request = floats(model, &[("x", &[id.len() as f32])]);
        request.id = id.to_owned();
        request
    };
    let requests = vec![request("slow", "one"), request("no", "two"), request("fast", "three")];
    let answers = grpc().stream(requests).unwrap();
    let told: Vec<_> = answers
        .iter()
        .map(|it| (it.infer_response.as_ref().unwrap().id.as_str(), it.error_message.as_str()))
        .collect();
    assert_eq!(told.iter().map(|it| it.0).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert!(told[0].1.is_empty() && told[2].1.is_empty(), "{told:?}");
    assert!(told[1].1.contains("Request for unknown model: 'no' is not found"), "{told:?}");
    let last = answers[2].infer_response.as_ref().unwrap();
    assert_eq!(floats_of(&last.raw_output_contents[0]), [5.0]);
    assert_eq!(
        last.parameters["triton_final_response"].parameter_choice,
        Some(ParameterChoice::BoolParam(true))
    );
}

#[test]
fn statistics_and_index_say_what_http_says() {
    let mut grpc = grpc();
    let own =
        Server::start(Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]));
    let mut other = Grpc::connect(own.grpc);
    other.infer(floats("m", &[("x", &[1.0, 2.0])])).unwrap();
    let request = ModelStatisticsRequest { name: "m".to_owned(), version: String::new() };
    let stats = other.call(async |it| it.model_statistics(request).await).unwrap();
    let it = &stats.model_stats[0];
    assert_eq!((it.inference_count, it.execution_count), (1, 1));
    let success = it.inference_stats.as_ref().unwrap().success.unwrap();
    let same = own.stats("m")["inference_stats"]["success"].clone();
    assert_eq!(
        (success.count, success.ns),
        (same["count"].as_u64().unwrap(), same["ns"].as_u64().unwrap())
    );
    let request = RepositoryIndexRequest::default();
    let index = grpc.call(async |it| it.repository_index(request).await).unwrap();
    let e = index.models.iter().find(|it| it.name == "e").unwrap();
    assert_eq!((e.version.as_str(), e.state.as_str()), ("1", "READY"));
    let request = RepositoryIndexRequest { repository_name: "r".to_owned(), ready: false };
    let answer = grpc.call(async |it| it.repository_index(request).await);
    refused(answer, Code::Unimplemented, "'repository_name' specification is not supported");
}

#[test]
fn models_come_and_go() {
    let mut grpc = grpc();
    let load = |name: &str| RepositoryModelLoadRequest {
        model_name: name.to_owned(),
        ..Default::default()
    };
    let unload = |name: &str| RepositoryModelUnloadRequest {
        model_name: name.to_owned(),
        ..Default::default()
    };
    let not_allowed = "explicit model load / unload is not allowed if polling is enabled";
    let answer = grpc.call(async |it| it.repository_model_load(load("e")).await);
    refused(answer, Code::Unavailable, not_allowed);
    let answer = grpc.call(async |it| it.repository_model_unload(unload("e")).await);
    refused(answer, Code::Unavailable, not_allowed);

    let id = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::explicit(Repository::of([("m", id)]));
    let mut grpc = Grpc::connect(server.grpc);
    let request = || floats("m", &[("x", &[1.0])]);
    refused(grpc.infer(request()), Code::NotFound, "Request for unknown model: 'm'");
    grpc.call(async |it| it.repository_model_load(load("m")).await).unwrap();
    grpc.infer(request()).unwrap();
    grpc.call(async |it| it.repository_model_unload(unload("m")).await).unwrap();
    refused(grpc.infer(request()), Code::NotFound, "Request for unknown model: 'm'");
    let answer = grpc.call(async |it| it.repository_model_load(load("none")).await);
    refused(answer, Code::Internal, "failed to load 'none', failed to poll from model repository");
}

#[test]
fn compressed_messages_are_taken() {
    let mut grpc = grpc();
    let answer = grpc.run(async |client| {
        let mut client = client.clone().send_compressed(tonic::codec::CompressionEncoding::Gzip);
        client.model_infer(Request::new(floats("e", &[("A", &[1.0; 4])]))).await
    });
    assert_eq!(floats_of(&answer.unwrap().into_inner().raw_output_contents[0]), [2.0; 4]);
}

//! The gRPC API, through the generated client.

use std::sync::LazyLock;

use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
use troupe_proto::inference::{
    ModelConfigRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest, infer_parameter::ParameterChoice,
    model_config::SchedulingChoice, model_infer_request::InferRequestedOutputTensor,
};

use crate::support::{
    Repository, Server, ensemble,
    grpc::{Grpc, floats, floats_of},
    models::delay,
    native,
};

pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| {
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

pub(crate) fn grpc() -> Grpc {
    Grpc::connect(SERVER.grpc)
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
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
    let not_allowed = "explicit model load / unload is not allowed if polling is enabled; start \
         the server with --model-control-mode=explicit to allow it";
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

//! Everything but inference.

use tonic::Code::{self, *};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::*;
use troupe_proto::inference::{model_repository_parameter::ParameterChoice as Choice, *};

#[actix_web::test]
async fn the_server_tells_about_itself_and_its_models() {
    let mut server = Server::start().await;
    let client = &mut server.client;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().get_ref().live);
    let about = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(about.name, "here");
    assert!(about.extensions.iter().any(|it| it == "statistics"));
    let (name, version) = ("echo".to_owned(), String::new());
    let asked = ModelMetadataRequest { name, version };
    let about = client.model_metadata(asked).await.unwrap().into_inner();
    assert_eq!((about.versions, about.platform), (vec!["3".to_owned()], "native".to_owned()));
    assert_eq!((&*about.inputs[1].name, &*about.inputs[1].datatype), ("b", "BYTES"));
    assert_eq!(about.outputs[0].shape, [-1, 2]);
    let asked = ModelConfigRequest { name: "echo".into(), version: "3".into() };
    let config = client.model_config(asked).await.unwrap().into_inner().config.unwrap();
    assert_eq!((&*config.name, config.max_batch_size), ("echo", 4));
    let asked = ModelReadyRequest { name: "echo".into(), version: String::new() };
    assert!(client.model_ready(asked).await.unwrap().get_ref().ready);
}

#[actix_web::test]
async fn statistics_count_what_was_asked() {
    let mut server = Server::start().await;
    let client = &mut server.client;
    client.model_infer(one("fail", "")).await.unwrap_err();
    for (name, expected) in [("", 4), ("fail", 1)] {
        let asked = ModelStatisticsRequest { name: name.into(), version: String::new() };
        let found = client.model_statistics(asked).await.unwrap().into_inner().model_stats;
        assert_eq!(found.len(), expected);
        let fail = found.iter().find(|it| it.name == "fail").unwrap();
        let stats = fail.inference_stats.as_ref().unwrap();
        assert_eq!(stats.fail.as_ref().unwrap().count, 1);
        assert_eq!(stats.success.as_ref().unwrap().count, 0);
    }
}

#[actix_web::test]
async fn the_index_lists_every_model_or_the_ready_ones() {
    let mut server = Server::start().await;
    let client = &mut server.client;
    for (ready, expected) in [
        (false, "echo 3 READY, fail 3 READY, hold 3 READY, many 3 READY, off  "),
        (true, "echo 3 READY, fail 3 READY, hold 3 READY, many 3 READY"),
    ] {
        let asked = RepositoryIndexRequest { repository_name: String::new(), ready };
        let models = client.repository_index(asked).await.unwrap().into_inner().models;
        let line = |it: &repository_index_response::ModelIndex| {
            format!("{} {} {}", it.name, it.version, it.state)
        };
        assert_eq!(models.iter().map(line).collect::<Vec<_>>().join(", "), expected);
    }
}

#[actix_web::test]
async fn loads_and_unloads_reach_the_repository() {
    let mut server = Server::start().await;
    let config =
        ModelRepositoryParameter { parameter_choice: Some(Choice::StringParam("{}".into())) };
    let asked = RepositoryModelLoadRequest {
        model_name: "m".into(),
        parameters: HashMap::from([("config".to_owned(), config)]),
        ..RepositoryModelLoadRequest::default()
    };
    server.client.repository_model_load(asked).await.unwrap();
    let dependents = ModelRepositoryParameter { parameter_choice: Some(Choice::BoolParam(true)) };
    let asked = RepositoryModelUnloadRequest {
        model_name: "m".into(),
        parameters: HashMap::from([("unload_dependents".to_owned(), dependents)]),
        ..RepositoryModelUnloadRequest::default()
    };
    server.client.repository_model_unload(asked).await.unwrap();
    assert_eq!(*server.loads.0.lock(), ["load m {}", "unload m true"]);
}

/// Calls a method and checks how it fails.
macro_rules! fails {
    ($client:ident, $method:ident, $request:expr, $code:expr, $text:expr) => {
        let status = $client.$method($request).await.unwrap_err();
        let expected: (Code, &str) = ($code, $text);
        assert_eq!((status.code(), status.message()), expected, stringify!($method));
    };
}

#[actix_web::test]
async fn wrong_calls_are_told_why() {
    let mut server = Server::start().await;
    let it = &mut server.client;
    let unknown = "Request for unknown model: 'x' is not found";
    let (name, version) = (String::from("x"), String::new());
    let ready = ModelReadyRequest { name: name.clone(), version: version.clone() };
    fails!(it, model_ready, ready, NotFound, unknown);
    let metadata = ModelMetadataRequest { name: name.clone(), version: version.clone() };
    fails!(it, model_metadata, metadata, NotFound, unknown);
    let config = ModelConfigRequest { name: name.clone(), version: version.clone() };
    fails!(it, model_config, config, NotFound, unknown);
    let statistics = ModelStatisticsRequest { name: name.clone(), version };
    fails!(
        it,
        model_statistics,
        statistics,
        InvalidArgument,
        "requested model 'x' is not available"
    );
    let index = RepositoryIndexRequest { repository_name: name, ready: false };
    let named = "'repository_name' specification is not supported";
    fails!(it, repository_index, index, Unimplemented, named);
    let load = RepositoryModelLoadRequest { model_name: "nope".into(), ..Default::default() };
    let poll = "failed to load 'nope', failed to poll from model repository";
    fails!(it, repository_model_load, load, Internal, poll);
}

#[actix_web::test]
async fn shared_memory_is_refused_unless_the_flag_allows_it() {
    let mut server = Server::start().await;
    let it = &mut server.client;
    let disabled = "Client shared memory is disabled. Start the server with \
                    '--allow-client-shm=true' to enable.";
    let status = it.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await;
    assert_eq!(status.unwrap().into_inner().regions, HashMap::new());
    let status = SystemSharedMemoryStatusRequest { name: "r".into() };
    let unknown = "Unable to find system shared memory region: 'r'";
    fails!(it, system_shared_memory_status, status, NotFound, unknown);
    let register = SystemSharedMemoryRegisterRequest::default();
    fails!(it, system_shared_memory_register, register, Unimplemented, disabled);
    let unregister = SystemSharedMemoryUnregisterRequest::default();
    fails!(it, system_shared_memory_unregister, unregister, Unimplemented, disabled);
    let status = it.cuda_shared_memory_status(CudaSharedMemoryStatusRequest::default()).await;
    assert_eq!(status.unwrap().into_inner().regions, HashMap::new());
    let status = CudaSharedMemoryStatusRequest { name: "r".into() };
    let unknown = "Unable to find cuda shared memory region: 'r'";
    fails!(it, cuda_shared_memory_status, status, NotFound, unknown);
    let register = CudaSharedMemoryRegisterRequest::default();
    fails!(it, cuda_shared_memory_register, register, Unimplemented, disabled);
    let unregister = CudaSharedMemoryUnregisterRequest::default();
    fails!(it, cuda_shared_memory_unregister, unregister, Unimplemented, disabled);
    let settings = it.log_settings(LogSettingsRequest::default()).await.unwrap().into_inner();
    assert_eq!(settings.settings.len(), 6, "{settings:?}");
}

async fn channel(server: &Server) -> Channel {
    let address = format!("http://{}", server.addresses[0]);
    Channel::from_shared(address).unwrap().connect().await.unwrap()
}

#[actix_web::test]
async fn the_health_service_speaks_for_the_whole_server() {
    let server = Server::start().await;
    let mut client = HealthClient::new(channel(&server).await);
    let asked = HealthCheckRequest { service: "whatever".into() };
    // A model that was never asked for does not count.
    assert_eq!(client.check(asked.clone()).await.unwrap().get_ref().status, 1);
    server.state.lifecycle.exit();
    assert_eq!(client.check(asked.clone()).await.unwrap().get_ref().status, 2);
    assert_eq!(client.watch(asked).await.unwrap_err().code(), Unimplemented);
}

#[actix_web::test]
async fn reflection_lists_the_services() {
    let server = Server::start().await;
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let asked = futures_util::stream::iter([asked]);
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list")
    };
    let names: Vec<_> = list.service.iter().map(|it| &*it.name).collect();
    assert!(names.contains(&"inference.GRPCInferenceService"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}

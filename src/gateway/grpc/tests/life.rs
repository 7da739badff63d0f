//! How the gateway starts and ends.

use tonic::{Code, codec::CompressionEncoding};

use actix_rt::Arbiter;

use super::*;
use crate::connections::ServingThreads;
use troupe_engine::engines::Engines;
use troupe_proto::inference::{ServerLiveRequest, ServerReadyRequest};

#[actix_web::test]
async fn a_taken_port_is_an_error() {
    let server = Server::start().await;
    let taken = server.addresses[0].tcp().unwrap();
    let error = GrpcGateway::start(&server.state, &[taken.into()], &testing::this_thread());
    let error = error.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[actix_web::test]
async fn several_threads_serve_one_port() {
    let server = Server::start().await;
    let arbiters = [Arbiter::new(), Arbiter::new()];
    let engines = Engines::new(arbiters.each_ref().map(|it| it.handle()).to_vec());
    let threads = ServingThreads { engines, ..testing::this_thread() };
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let (gateway, addresses) =
        GrpcGateway::start(&server.state, &[any_port.into()], &threads).unwrap();
    let address = format!("http://{}", addresses[0]);
    for _ in 0..8 {
        let mut client = Client::connect(address.clone()).await.unwrap();
        assert!(client.server_live(ServerLiveRequest {}).await.unwrap().get_ref().live);
    }
    gateway.send(crate::grpc::StopGrpc).await.unwrap();
    assert!(Client::connect(address).await.is_err());
    arbiters.iter().for_each(|it| assert!(it.stop()));
}

#[actix_web::test]
async fn an_exiting_server_refuses_new_calls_and_finishes_the_old() {
    let mut server = Server::start().await;
    let mut client = server.client.clone();
    let call = actix_rt::spawn(async move { client.model_infer(one("hold", "1")).await });
    let Pending { request, reply } = server.held().await;
    server.state.lifecycle.exit();
    let refusal = "GRPC server is shutting down and has stopped accepting new requests.";
    for (result, text) in [
        (server.client.server_ready(ServerReadyRequest {}).await.err(), "Server exiting"),
        (server.client.server_live(ServerLiveRequest {}).await.err(), "Server exiting"),
        (server.client.model_infer(one("hold", "2")).await.err(), refusal),
        (server.client.model_stream_infer(tokio_stream::empty()).await.err(), refusal),
    ] {
        let status = result.unwrap();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, text));
    }
    let stopped = actix_rt::spawn(server.gateway.send(crate::grpc::StopGrpc));
    reply.answer(Ok(echo(request)));
    assert_eq!(call.await.unwrap().unwrap().get_ref().id, "1");
    stopped.await.unwrap().unwrap();
    server.state.lifecycle.wait_idle().await;
}

#[actix_web::test]
async fn a_server_that_loads_is_not_ready() {
    let mut server = Server::start().await;
    let state = ServerState { lifecycle: Arc::new(Lifecycle::default()), ..server.state.clone() };
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let (_gateway, addresses) =
        GrpcGateway::start(&state, &[any_port.into()], &testing::this_thread()).unwrap();
    let address = format!("http://{}", addresses[0]);
    server.client = Client::connect(address).await.unwrap();
    let status = server.client.model_infer(one("hold", "")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "Server not ready"));
    let ready = server.client.server_ready(ServerReadyRequest {}).await.unwrap();
    assert!(!ready.get_ref().ready);
}

#[actix_web::test]
async fn compressed_requests_are_inflated_up_to_the_limit() {
    let mut server = Server::start().await;
    let settings = Settings { max_input_size: 1 << 16, ..server.state.settings.clone() };
    let state = ServerState { settings, ..server.state.clone() };
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let (_gateway, addresses) =
        GrpcGateway::start(&state, &[any_port.into()], &testing::this_thread()).unwrap();
    let address = format!("http://{}", addresses[0]);
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let client = Client::connect(address.clone()).await.unwrap();
        server.client = client.send_compressed(encoding);
        let status = server.client.model_infer(one("fail", "")).await.unwrap_err();
        assert_eq!(status.message(), "it broke");
        let bomb = ModelInferRequest { id: "0".repeat(1 << 20), ..one("fail", "") };
        let status = server.client.model_infer(bomb).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    }
}

#[actix_web::test]
async fn names_with_any_bytes_and_any_length_are_answered() {
    let mut server = Server::start().await;
    for name in ["\0\n\x1b[31m".to_owned(), "n".repeat(1 << 20), "ä".repeat(1 << 19)] {
        let status = server.client.model_infer(one(&name, "")).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().starts_with("Request for unknown model: '"), "{status}");
    }
}

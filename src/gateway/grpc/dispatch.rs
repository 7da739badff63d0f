//! Dispatches a call to its service: inference straight, everything else by tonic's router.

use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{Request, Response},
    },
    service::Routes,
};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use super::{
    calls::InferCalls, deadline, health::WholeServer, message::guarded, observe::CallTimes,
    service::Inference,
};
use crate::ServerState;
use troupe_observability::telemetry::Tracer;
use troupe_proto as proto;
use troupe_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;

/// Triton's limit on messages, in both directions.
const MAX_MESSAGE: usize = i32::MAX as usize;

/// Serves one connection after the other; a clone for each.
#[derive(Clone)]
pub(super) struct Dispatcher {
    infer: InferCalls,
    inference: GrpcInferenceServiceServer<Inference>,
    others: Routes,
    tracer: Arc<Tracer>,
}

impl Dispatcher {
    /// All services of the gateway.
    pub(super) fn new(state: ServerState, inference: Inference) -> Dispatcher {
        let inference = Arc::new(inference);
        // What is decoded was bounded before.
        let server = GrpcInferenceServiceServer::from_arc(inference.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let limit = state.settings.max_input_size.min(MAX_MESSAGE);
        Dispatcher {
            infer: InferCalls { inference, limit },
            inference: server,
            tracer: state.tracer.clone(),
            others: others(state),
        }
    }
}

/// Health and reflection.
fn others(state: ServerState) -> Routes {
    const VALID: &str = "the descriptors are generated";
    let reflection = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Routes::new(HealthServer::new(WholeServer(state)))
        .add_service(reflection().build_v1().expect(VALID))
        .add_service(reflection().build_v1alpha().expect(VALID))
        .prepare()
}

impl Service<Request<Body>> for Dispatcher {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // None of the services has a queue.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = Method::of(request.uri().path());
        let deadline = match method {
            Method::Other => None,
            _ => deadline::of(request.headers()),
        };
        let call: Self::Future = match method {
            Method::Infer => {
                let arrived = self.tracer.is_on().then(Instant::now);
                let times = CallTimes { arrived, deadline: deadline.map(|it| it.into_std()) };
                let call = self.infer.clone().unary(request, times);
                Box::pin(async { Ok(call.await) })
            }
            Method::StreamInfer => Box::pin(ready(Ok(self.infer.clone().streaming(request)))),
            Method::Inference | Method::Other => match guarded(request, self.infer.limit) {
                Ok(request) if method == Method::Inference => self.inference.call(request),
                Ok(request) => Box::pin(self.others.call(request)),
                Err(status) => Box::pin(ready(Ok(status.into_http()))),
            },
        };
        match deadline {
            Some(deadline) => deadline::limit(deadline, call),
            None => call,
        }
    }
}

/// Who answers a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Infer,
    StreamInfer,
    /// Any other of the inference service.
    Inference,
    /// Of another service.
    Other,
}

impl Method {
    fn of(path: &str) -> Method {
        match path.strip_prefix("/inference.GRPCInferenceService/") {
            Some("ModelInfer") => Method::Infer,
            Some("ModelStreamInfer") => Method::StreamInfer,
            Some(_) => Method::Inference,
            None => Method::Other,
        }
    }
}

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
    deadline,
    health::WholeServer,
    message::guarded,
    observe::{self, CallTimes},
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
    inference: GrpcInferenceServiceServer<Inference>,
    others: Routes,
    tracer: Arc<Tracer>,
    /// Most bytes of a message.
    limit: usize,
}

impl Dispatcher {
    /// All services of the gateway.
    pub(super) fn new(state: ServerState, inference: Inference) -> Dispatcher {
        // What is decoded was bounded before.
        let server = GrpcInferenceServiceServer::new(inference)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Dispatcher {
            inference: server,
            tracer: state.tracer.clone(),
            limit: state.settings.max_input_size.min(MAX_MESSAGE),
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
        let is_inference = request.uri().path().starts_with("/inference.GRPCInferenceService/");
        let mut request = match guarded(request, self.limit) {
            Ok(request) => request,
            Err(status) => return Box::pin(ready(Ok(status.into_http()))),
        };
        if !is_inference {
            return Box::pin(self.others.call(request));
        }
        let deadline = deadline::of(request.headers());
        let is_traced = self.tracer.is_on();
        if is_traced || deadline.is_some() {
            let arrived = is_traced.then(Instant::now);
            let deadline = deadline.map(|deadline| deadline.into_std());
            request.extensions_mut().insert(CallTimes { arrived, deadline });
        }
        let call = self.inference.call(request);
        let call = if is_traced { observe::sent(call) } else { call };
        match deadline {
            Some(deadline) => deadline::limit(deadline, call),
            None => call,
        }
    }
}

//! Dispatches a call: checks who asks, then hands it to inference, to the generated service, or to
//! tonic's router of the other services.

use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    service::Routes,
};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use super::{
    answering::Answering,
    calls::InferCalls,
    deadline,
    health::WholeServer,
    message::{MAX_MESSAGE_BYTES, guarded},
    methods::{self, Handler, Method},
    observe::CallTimes,
    refusal::denied,
    service::Inference,
};
use crate::{ServerState, access::Access, connections::Connection};
use troupe_observability::telemetry::Tracer;
use troupe_proto as proto;
use troupe_proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;

/// Serves one connection after the other; a clone for each.
#[derive(Clone)]
pub(super) struct Dispatcher {
    access: Arc<Access>,
    /// How long a message may stand still; zero: for ever.
    stalled: Duration,
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
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let limit = state.settings.max_input_size.min(MAX_MESSAGE_BYTES);
        Dispatcher {
            access: state.settings.grpc_access.clone(),
            stalled: state.settings.stalled,
            infer: InferCalls { inference, limit },
            inference: server,
            tracer: state.tracer.clone(),
            others: others(state),
        }
    }

    /// The method that is called, or why it may not be.
    fn method(&self, request: &Request<Body>) -> Result<&'static Method, Status> {
        let method = methods::find(request.uri().path());
        let method = method.ok_or_else(|| Status::unimplemented("there is no such method"))?;
        let header = |name: &str| request.headers().get(name).map(|it| it.as_bytes());
        self.access.check(method.endpoint, header).map_err(denied)?;
        Ok(method)
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
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // None of the services has a queue.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answering {
        let method = match self.method(&request) {
            Ok(method) => method,
            Err(status) => return Answering::refused(status),
        };
        let busy = request.extensions().get::<Arc<Connection>>().map(Connection::begin);
        let pauses = method.pauses(self.stalled);
        if method.handler == Handler::StreamInfer {
            let response = self.infer.clone().streaming(request, pauses);
            return Answering::new(Box::pin(ready(Ok(response))), busy);
        }
        if method.handler == Handler::Infer {
            let arrived = self.tracer.is_on().then(Instant::now);
            let deadline = deadline::of(request.headers());
            let times = CallTimes { arrived, deadline: deadline.map(|it| it.into_std()) };
            let call = self.infer.clone().unary(request, times, pauses);
            return Answering::new(Box::pin(async { Ok(call.await) }), busy).until(deadline);
        }
        let request = match guarded(request, self.infer.limit, pauses) {
            Ok(request) => request,
            Err(status) => return Answering::refused(status),
        };
        if method.handler == Handler::Other {
            return Answering::new(Box::pin(self.others.call(request)), busy);
        }
        let deadline = deadline::of(request.headers());
        Answering::new(self.inference.call(request), busy).until(deadline)
    }
}

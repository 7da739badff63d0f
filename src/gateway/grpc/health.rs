//! The standard health service: every service has the state of the whole server.

use tokio_stream::Pending;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

use super::refusal::not_supported;
use crate::ServerState;

/// Answers for one server.
pub(super) struct WholeServer(pub(super) ServerState);

type GrpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Health for WholeServer {
    async fn check(&self, _: Request<HealthCheckRequest>) -> GrpcResult<HealthCheckResponse> {
        let status = if self.0.is_ready().await {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = Pending<Result<HealthCheckResponse, Status>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> GrpcResult<Self::WatchStream> {
        Err(not_supported("`Watch`"))
    }
}

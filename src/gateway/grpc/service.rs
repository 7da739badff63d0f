//! The methods of `GRPCInferenceService`.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::{
    logging, messages,
    refusal::{refuse, shutting_down},
    repository, shared_memory, trace,
};
use crate::{ServerState, metadata};
use troupe_base::{
    error::{Error, Result},
    model::parse_version,
};
use troupe_proto::inference::{grpc_inference_service_server::GrpcInferenceService, *};

/// Answers for one server.
pub(super) struct Inference {
    pub(super) state: Arc<ServerState>,
    pub(super) stopping: watch::Receiver<bool>,
}

type GrpcResult<T> = Result<Response<T>, Status>;

impl Inference {
    /// `stopping` becomes true when the gateway stops.
    pub(super) fn new(state: ServerState, stopping: watch::Receiver<bool>) -> Inference {
        Inference { state: Arc::new(state), stopping }
    }

    fn check_health(&self) -> Result<()> {
        if self.state.lifecycle.is_exiting() {
            return Err(Error::unavailable("Server exiting"));
        }
        Ok(())
    }

    /// New calls are refused once the server is exiting.
    pub(super) fn admit(&self) -> Result<&ServerState> {
        if self.state.lifecycle.is_exiting() { Err(shutting_down()) } else { Ok(&self.state) }
    }

    async fn model_is_ready(&self, request: &ModelReadyRequest) -> Result<bool> {
        let state = self.admit()?;
        state.lifecycle.check_serving()?;
        let model = state.model(&request.name, parse_version(&request.version)?)?;
        Ok(model.check_ready().await)
    }

    fn metadata(&self, request: &ModelMetadataRequest) -> Result<ModelMetadataResponse> {
        let version = parse_version(&request.version)?;
        metadata::model(self.admit()?, &request.name, version).map(messages::model)
    }

    fn config(&self, request: &ModelConfigRequest) -> Result<ModelConfigResponse> {
        let model = self.admit()?.model(&request.name, parse_version(&request.version)?)?;
        Ok(ModelConfigResponse { config: Some(model.shown_config().proto.clone()) })
    }

    fn statistics(&self, request: &ModelStatisticsRequest) -> Result<ModelStatisticsResponse> {
        let version = parse_version(&request.version)?;
        let found = metadata::statistics(self.admit()?, &request.name, version)?;
        let model_stats = found.into_iter().map(messages::statistics).collect();
        Ok(ModelStatisticsResponse { model_stats })
    }

    fn index(&self, request: &RepositoryIndexRequest) -> Result<RepositoryIndexResponse> {
        repository::check_repository(&request.repository_name)?;
        let lines = metadata::index(self.admit()?, request.ready)?;
        Ok(RepositoryIndexResponse { models: lines.into_iter().map(messages::index).collect() })
    }

    async fn load(
        &self,
        request: RepositoryModelLoadRequest,
    ) -> Result<RepositoryModelLoadResponse> {
        let state = self.admit()?;
        repository::check_repository(&request.repository_name)?;
        state.lifecycle.check_serving()?;
        let overrides = repository::overrides(request.parameters)?;
        state.settings.grpc_access.check_files(overrides.files.len())?;
        state.repository.control.load(request.model_name, overrides).await?;
        Ok(RepositoryModelLoadResponse {})
    }

    async fn unload(
        &self,
        request: RepositoryModelUnloadRequest,
    ) -> Result<RepositoryModelUnloadResponse> {
        let state = self.admit()?;
        repository::check_repository(&request.repository_name)?;
        state.lifecycle.check_serving()?;
        let dependents = repository::unload_dependents(&request.parameters)?;
        state.repository.control.unload(request.model_name, dependents).await?;
        Ok(RepositoryModelUnloadResponse {})
    }
}

fn reply<T>(result: Result<T>) -> GrpcResult<T> {
    result.map(Response::new).map_err(refuse)
}

/// The dispatcher gives inferences to `InferCalls`, which copies no tensors; generated code would.
fn of_own_path() -> Status {
    Status::internal("inferences do not come this way")
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn model_infer(&self, _: Request<ModelInferRequest>) -> GrpcResult<ModelInferResponse> {
        Err(of_own_path())
    }

    type ModelStreamInferStream = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<ModelInferRequest>>,
    ) -> GrpcResult<Self::ModelStreamInferStream> {
        Err(of_own_path())
    }

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> GrpcResult<ServerLiveResponse> {
        let live = self.state.is_live();
        reply(self.check_health().map(|()| ServerLiveResponse { live }))
    }
    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> GrpcResult<ServerReadyResponse> {
        let ready = self.state.is_ready().await;
        reply(self.check_health().map(|()| ServerReadyResponse { ready }))
    }
    async fn model_ready(&self, it: Request<ModelReadyRequest>) -> GrpcResult<ModelReadyResponse> {
        reply(self.model_is_ready(it.get_ref()).await.map(|ready| ModelReadyResponse { ready }))
    }
    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> GrpcResult<ServerMetadataResponse> {
        reply(Ok(messages::server(metadata::server(&self.state))))
    }
    async fn model_metadata(
        &self,
        it: Request<ModelMetadataRequest>,
    ) -> GrpcResult<ModelMetadataResponse> {
        reply(self.metadata(it.get_ref()))
    }
    async fn model_config(
        &self,
        it: Request<ModelConfigRequest>,
    ) -> GrpcResult<ModelConfigResponse> {
        reply(self.config(it.get_ref()))
    }
    async fn model_statistics(
        &self,
        it: Request<ModelStatisticsRequest>,
    ) -> GrpcResult<ModelStatisticsResponse> {
        reply(self.statistics(it.get_ref()))
    }

    async fn repository_index(
        &self,
        it: Request<RepositoryIndexRequest>,
    ) -> GrpcResult<RepositoryIndexResponse> {
        reply(self.index(it.get_ref()))
    }
    async fn repository_model_load(
        &self,
        it: Request<RepositoryModelLoadRequest>,
    ) -> GrpcResult<RepositoryModelLoadResponse> {
        reply(self.load(it.into_inner()).await)
    }
    async fn repository_model_unload(
        &self,
        it: Request<RepositoryModelUnloadRequest>,
    ) -> GrpcResult<RepositoryModelUnloadResponse> {
        reply(self.unload(it.into_inner()).await)
    }

    async fn system_shared_memory_status(
        &self,
        it: Request<SystemSharedMemoryStatusRequest>,
    ) -> GrpcResult<SystemSharedMemoryStatusResponse> {
        reply(self.admit().and_then(|state| shared_memory::status(state, it.get_ref())))
    }
    async fn system_shared_memory_register(
        &self,
        it: Request<SystemSharedMemoryRegisterRequest>,
    ) -> GrpcResult<SystemSharedMemoryRegisterResponse> {
        reply(self.admit().and_then(|state| shared_memory::register(state, it.get_ref())))
    }
    async fn system_shared_memory_unregister(
        &self,
        it: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> GrpcResult<SystemSharedMemoryUnregisterResponse> {
        reply(self.admit().and_then(|state| shared_memory::unregister(state, it.get_ref())))
    }
    async fn cuda_shared_memory_status(
        &self,
        it: Request<CudaSharedMemoryStatusRequest>,
    ) -> GrpcResult<CudaSharedMemoryStatusResponse> {
        reply(self.admit().and_then(|state| shared_memory::cuda_status(state, it.get_ref())))
    }
    async fn cuda_shared_memory_register(
        &self,
        it: Request<CudaSharedMemoryRegisterRequest>,
    ) -> GrpcResult<CudaSharedMemoryRegisterResponse> {
        reply(self.admit().and_then(|state| shared_memory::cuda_register(state, it.get_ref())))
    }
    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> GrpcResult<CudaSharedMemoryUnregisterResponse> {
        reply(self.admit().and_then(shared_memory::cuda_unregister))
    }
    async fn trace_setting(
        &self,
        it: Request<TraceSettingRequest>,
    ) -> GrpcResult<TraceSettingResponse> {
        reply(self.admit().and_then(|state| trace::setting(state, it.into_inner())))
    }
    async fn log_settings(
        &self,
        it: Request<LogSettingsRequest>,
    ) -> GrpcResult<LogSettingsResponse> {
        reply(self.admit().and_then(|state| logging::change(&state.settings.log, it.get_ref())))
    }
}

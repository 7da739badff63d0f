//! What the server says about itself and its models, as protobuf messages.

use crate::metadata::{
    BatchStatistics, Duration, IndexEntry, InferStatistics, MemoryUsage, ModelMetadata,
    ModelStatistics, ResponseStatistics, ServerMetadata, TensorMetadata,
};
use troupe_proto::inference::{
    self, InferBatchStatistics, InferResponseStatistics, ModelMetadataResponse,
    ServerMetadataResponse, StatisticDuration, model_metadata_response,
    repository_index_response::ModelIndex,
};

/// The server's name, version and extensions.
pub(super) fn server(it: ServerMetadata) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: it.name,
        version: it.version.to_owned(),
        extensions: it.extensions.iter().map(|it| (*it).to_owned()).collect(),
    }
}

/// A model's interface.
pub(super) fn model(it: ModelMetadata) -> ModelMetadataResponse {
    ModelMetadataResponse {
        name: it.name.to_string(),
        versions: it.versions,
        platform: it.platform,
        inputs: it.inputs.into_iter().map(tensor).collect(),
        outputs: it.outputs.into_iter().map(tensor).collect(),
    }
}

fn tensor(it: TensorMetadata) -> model_metadata_response::TensorMetadata {
    model_metadata_response::TensorMetadata {
        name: it.name.to_string(),
        datatype: it.datatype.to_owned(),
        shape: it.shape,
    }
}

/// One line of the repository index.
pub(super) fn index(it: IndexEntry) -> ModelIndex {
    ModelIndex {
        name: it.name.to_string(),
        version: it.version,
        state: it.state.to_owned(),
        reason: it.reason,
    }
}

/// Everything counted about one version of a model.
pub(super) fn statistics(it: ModelStatistics) -> inference::ModelStatistics {
    inference::ModelStatistics {
        name: it.name.to_string(),
        version: it.version,
        last_inference: it.last_inference,
        inference_count: it.inference_count,
        execution_count: it.execution_count,
        inference_stats: Some(infer_statistics(it.inference_stats)),
        response_stats: (0..)
            .map(|it: usize| it.to_string())
            .zip(it.response_stats.into_iter().map(response))
            .collect(),
        batch_stats: it.batch_stats.into_iter().map(batch).collect(),
        memory_usage: it.memory_usage.into_iter().map(memory).collect(),
    }
}

fn response(it: ResponseStatistics) -> InferResponseStatistics {
    InferResponseStatistics {
        compute_infer: duration(it.compute_infer),
        compute_output: duration(it.compute_output),
        success: duration(it.success),
        fail: duration(it.fail),
        empty_response: duration(it.empty_response),
        cancel: duration(it.cancel),
    }
}

fn memory(it: MemoryUsage) -> inference::MemoryUsage {
    inference::MemoryUsage { r#type: it.r#type, id: it.id, byte_size: it.byte_size }
}

fn infer_statistics(it: InferStatistics) -> inference::InferStatistics {
    inference::InferStatistics {
        success: duration(it.success),
        fail: duration(it.fail),
        queue: duration(it.queue),
        compute_input: duration(it.compute_input),
        compute_infer: duration(it.compute_infer),
        compute_output: duration(it.compute_output),
        cache_hit: duration(it.cache_hit),
        cache_miss: duration(it.cache_miss),
    }
}

fn batch(it: BatchStatistics) -> InferBatchStatistics {
    InferBatchStatistics {
        batch_size: it.batch_size,
        compute_input: duration(it.compute_input),
        compute_infer: duration(it.compute_infer),
        compute_output: duration(it.compute_output),
    }
}

fn duration(it: Duration) -> Option<StatisticDuration> {
    Some(StatisticDuration { count: it.count, ns: it.ns })
}

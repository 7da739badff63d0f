//! The methods of all services: which access each asks for, who answers it, and whether its client
//! may pause.

use std::time::Duration;

use super::message::Pauses;
use crate::access::Endpoint;
use troupe_options::Api;

/// Who answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    Infer,
    StreamInfer,
    /// Generated code of the inference service.
    Inference,
    /// Another service.
    Other,
}

/// One method of a service.
#[derive(Debug)]
pub(super) struct Method {
    path: &'static str,
    pub(super) endpoint: Endpoint,
    pub(super) handler: Handler,
    /// Its client sends a row of messages.
    is_stream: bool,
}

impl Method {
    /// How long its client may send nothing; it may stand still in a message for `stalled`.
    pub(super) fn pauses(&self, stalled: Duration) -> Pauses {
        if self.is_stream { Pauses::of_stream(stalled) } else { Pauses::of_one(stalled) }
    }

    const fn by(self, handler: Handler) -> Method {
        Method { handler, ..self }
    }

    const fn of_stream(self) -> Method {
        Method { is_stream: true, ..self }
    }
}

const fn reads(api: Api, path: &'static str) -> Method {
    let endpoint = Endpoint::reading(api);
    Method { path, endpoint, handler: Handler::Inference, is_stream: false }
}

const fn changes(api: Api, path: &'static str) -> Method {
    let endpoint = Endpoint::changing(api);
    Method { path, endpoint, handler: Handler::Inference, is_stream: false }
}

/// The busiest first. A test compares it with the services.
const METHODS: &[Method] = &[
    reads(Api::Inference, "/inference.GRPCInferenceService/ModelInfer").by(Handler::Infer),
    reads(Api::Inference, "/inference.GRPCInferenceService/ModelStreamInfer")
        .by(Handler::StreamInfer)
        .of_stream(),
    reads(Api::Health, "/inference.GRPCInferenceService/ServerLive"),
    reads(Api::Health, "/inference.GRPCInferenceService/ServerReady"),
    reads(Api::Health, "/inference.GRPCInferenceService/ModelReady"),
    reads(Api::Health, "/grpc.health.v1.Health/Check").by(Handler::Other),
    reads(Api::Health, "/grpc.health.v1.Health/Watch").by(Handler::Other),
    reads(Api::Metadata, "/inference.GRPCInferenceService/ServerMetadata"),
    reads(Api::Metadata, "/inference.GRPCInferenceService/ModelMetadata"),
    reads(Api::Metadata, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        .by(Handler::Other)
        .of_stream(),
    reads(Api::Metadata, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        .by(Handler::Other)
        .of_stream(),
    reads(Api::ModelConfig, "/inference.GRPCInferenceService/ModelConfig"),
    reads(Api::Statistics, "/inference.GRPCInferenceService/ModelStatistics"),
    reads(Api::ModelRepository, "/inference.GRPCInferenceService/RepositoryIndex"),
    changes(Api::ModelRepository, "/inference.GRPCInferenceService/RepositoryModelLoad"),
    changes(Api::ModelRepository, "/inference.GRPCInferenceService/RepositoryModelUnload"),
    reads(Api::SharedMemory, "/inference.GRPCInferenceService/SystemSharedMemoryStatus"),
    changes(Api::SharedMemory, "/inference.GRPCInferenceService/SystemSharedMemoryRegister"),
    changes(Api::SharedMemory, "/inference.GRPCInferenceService/SystemSharedMemoryUnregister"),
    reads(Api::SharedMemory, "/inference.GRPCInferenceService/CudaSharedMemoryStatus"),
    changes(Api::SharedMemory, "/inference.GRPCInferenceService/CudaSharedMemoryRegister"),
    changes(Api::SharedMemory, "/inference.GRPCInferenceService/CudaSharedMemoryUnregister"),
    changes(Api::Trace, "/inference.GRPCInferenceService/TraceSetting"),
    changes(Api::Logging, "/inference.GRPCInferenceService/LogSettings"),
];

/// The method of a path; `None`: no service has it.
pub(super) fn find(path: &str) -> Option<&'static Method> {
    METHODS.iter().find(|it| it.path == path)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_of_every_service_has_its_group() {
        let sets = [
            troupe_proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut paths = Vec::new();
        for set in sets {
            for file in FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    let name = format!("/{}.{}/", file.package(), service.name());
                    paths.extend(service.method.iter().map(|it| format!("{name}{}", it.name())));
                }
            }
        }
        assert!(20 < paths.len(), "{paths:?}");
        let missing: Vec<_> = paths.iter().filter(|it| find(it).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let gone: Vec<_> =
            METHODS.iter().filter(|it| !paths.iter().any(|path| path == it.path)).collect();
        assert!(gone.is_empty(), "{gone:?}");
    }
}

//! The methods of all services, and which access each asks for.

use crate::access::Endpoint;
use troupe_options::Api;

const fn reads(api: Api) -> Endpoint {
    Endpoint { api, changes: false }
}

const fn changes(api: Api) -> Endpoint {
    Endpoint { api, changes: true }
}

/// By path. A test compares it with the services.
const METHODS: &[(&str, Endpoint)] = &[
    ("/inference.GRPCInferenceService/ModelInfer", reads(Api::Inference)),
    ("/inference.GRPCInferenceService/ModelStreamInfer", reads(Api::Inference)),
    ("/inference.GRPCInferenceService/ServerLive", reads(Api::Health)),
    ("/inference.GRPCInferenceService/ServerReady", reads(Api::Health)),
    ("/inference.GRPCInferenceService/ModelReady", reads(Api::Health)),
    ("/grpc.health.v1.Health/Check", reads(Api::Health)),
    ("/grpc.health.v1.Health/Watch", reads(Api::Health)),
    ("/inference.GRPCInferenceService/ServerMetadata", reads(Api::Metadata)),
    ("/inference.GRPCInferenceService/ModelMetadata", reads(Api::Metadata)),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", reads(Api::Metadata)),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", reads(Api::Metadata)),
    ("/inference.GRPCInferenceService/ModelConfig", reads(Api::ModelConfig)),
    ("/inference.GRPCInferenceService/ModelStatistics", reads(Api::Statistics)),
    ("/inference.GRPCInferenceService/RepositoryIndex", reads(Api::ModelRepository)),
    ("/inference.GRPCInferenceService/RepositoryModelLoad", changes(Api::ModelRepository)),
    ("/inference.GRPCInferenceService/RepositoryModelUnload", changes(Api::ModelRepository)),
    ("/inference.GRPCInferenceService/SystemSharedMemoryStatus", reads(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/SystemSharedMemoryRegister", changes(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/SystemSharedMemoryUnregister", changes(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/CudaSharedMemoryStatus", reads(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/CudaSharedMemoryRegister", changes(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/CudaSharedMemoryUnregister", changes(Api::SharedMemory)),
    ("/inference.GRPCInferenceService/TraceSetting", changes(Api::Trace)),
    ("/inference.GRPCInferenceService/LogSettings", changes(Api::Logging)),
];

/// What a path asks for; `None`: no service has it.
pub(super) fn endpoint(path: &str) -> Option<Endpoint> {
    METHODS.iter().find(|it| it.0 == path).map(|it| it.1)
}

/// Does the client send a row of messages, with pauses?
pub(super) fn is_stream(path: &str) -> bool {
    path.ends_with("/ModelStreamInfer") || path.ends_with("/ServerReflectionInfo")
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
        let missing: Vec<_> = paths.iter().filter(|it| endpoint(it).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let gone: Vec<_> = METHODS.iter().filter(|it| !paths.iter().any(|p| p == it.0)).collect();
        assert!(gone.is_empty(), "{gone:?}");
    }
}

//! Compatibility with tritonserver's flags: accepted without effect, or not supported yet.

use clap::Args;

use super::switch;

/// Flags of tritonserver that troupe does not need: accepted, with a warning in the log.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Accepted without effect")]
#[allow(missing_docs, reason = "hidden flags")]
pub struct WithoutEffect {
    #[arg(long, hide = true)]
    pub backend_directory: Option<String>,
    #[arg(long, hide = true)]
    pub cache_directory: Option<String>,
    #[arg(long, hide = true)]
    pub repoagent_directory: Option<String>,
    #[arg(long, hide = true)]
    pub pinned_memory_pool_byte_size: Option<String>,
    #[arg(long, hide = true)]
    pub cuda_memory_pool_byte_size: Vec<String>,
    #[arg(long, hide = true)]
    pub min_supported_compute_capability: Option<String>,
    #[arg(long, hide = true)]
    pub buffer_manager_thread_count: Option<String>,
    #[arg(long, hide = true)]
    pub enable_peer_access: Option<String>,
}

impl WithoutEffect {
    /// The flags that were given.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--backend-directory", self.backend_directory.is_some()),
            ("--cache-directory", self.cache_directory.is_some()),
            ("--repoagent-directory", self.repoagent_directory.is_some()),
            ("--pinned-memory-pool-byte-size", self.pinned_memory_pool_byte_size.is_some()),
            ("--cuda-memory-pool-byte-size", !self.cuda_memory_pool_byte_size.is_empty()),
            ("--min-supported-compute-capability", self.min_supported_compute_capability.is_some()),
            ("--buffer-manager-thread-count", self.buffer_manager_thread_count.is_some()),
            ("--enable-peer-access", self.enable_peer_access.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

/// Flags of tritonserver for what troupe does not support yet.
pub const NOT_YET: &[&str] = &[
    "allow-sagemaker",
    "allow-vertex-ai",
    "cuda-virtual-address-size",
    "host-policy",
    "model-config-name",
    "model-load-gpu-limit",
    "model-namespacing",
    "repository-poll-secs",
    "sagemaker-port",
    "sagemaker-safe-port-range",
    "sagemaker-thread-count",
    "vertex-ai-default-model",
    "vertex-ai-port",
    "vertex-ai-thread-count",
];

/// Does this value of such a flag ask for nothing that is missing?
pub(crate) fn is_harmless(flag: &str, value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    match flag {
        "allow-sagemaker" | "allow-vertex-ai" | "model-namespacing" => switch(&value) == Ok(false),
        // There is no mode that polls.
        "repository-poll-secs" => value.parse::<u32>().is_ok(),
        // Of services that are not allowed.
        "sagemaker-port"
        | "sagemaker-safe-port-range"
        | "sagemaker-thread-count"
        | "vertex-ai-default-model"
        | "vertex-ai-port"
        | "vertex-ai-thread-count" => !value.is_empty(),
        _ => false,
    }
}

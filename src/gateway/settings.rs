//! What gateways are told at start.

use std::{sync::Arc, time::Duration};

use crate::{
    access::Access, connections::Connections, service_urls::ServiceUrls,
    shared_memory::SharedMemory,
};
use troupe_base::{
    budget::{Budget, ByteBudget},
    tensor::SegmentPool,
};
use troupe_observability::log::Log;
use troupe_options::{GrpcCompression, HeaderPattern};

/// How connections of gRPC are kept, and how its answers are written.
#[derive(Clone, Copy, Debug)]
pub struct GrpcTuning {
    /// A client from which nothing came for so long is pinged.
    pub keep_alive: Duration,
    /// And its connection is closed if it does not answer in this time.
    pub keep_alive_timeout: Duration,
    /// A connection this old is closed once its calls have ended; `None`: never.
    pub max_age: Option<Duration>,
    /// What its calls have then; `None`: any time.
    pub max_age_grace: Option<Duration>,
    /// How well answers are compressed for clients that take gzip.
    pub compression: GrpcCompression,
}

impl GrpcTuning {
    /// How long after it was accepted a connection is closed, whatever goes on over it.
    pub(crate) fn end(&self) -> Option<Duration> {
        Some(self.max_age?.saturating_add(self.max_age_grace?))
    }
}

impl Default for GrpcTuning {
    /// Triton's.
    fn default() -> GrpcTuning {
        GrpcTuning {
            keep_alive: Duration::from_secs(7200),
            keep_alive_timeout: Duration::from_secs(20),
            max_age: None,
            max_age_grace: None,
            compression: GrpcCompression::None,
        }
    }
}

/// What the command line says about the gateways.
#[derive(Clone)]
pub struct Settings {
    /// `--id`: the name in the server's metadata.
    pub server_id: String,
    /// `--http-max-input-size`: bytes of one request, also after inflating it.
    pub max_input_size: usize,
    /// `--strict-readiness`: ready means that every model is.
    pub strict_readiness: bool,
    /// Where the services listen, for links.
    pub urls: Arc<ServiceUrls>,
    /// `--allow-dashboard`: the metrics port has a page of live graphs.
    pub allow_dashboard: bool,
    /// Who may ask for what over HTTP, and over the metrics port.
    pub http_access: Arc<Access>,
    /// The same over gRPC.
    pub grpc_access: Arc<Access>,
    /// `--grpc-keepalive-time` and its like.
    pub grpc: GrpcTuning,
    /// Which headers of HTTP become parameters of requests.
    pub http_forwarding: HeaderPattern,
    /// The same for the metadata of gRPC.
    pub grpc_forwarding: HeaderPattern,
    /// The connections of all gateways.
    pub connections: Arc<Connections>,
    /// `--stalled-connection-secs`: how long a client may send nothing of a request, or take
    /// nothing of an answer; zero: for ever.
    pub stalled: Duration,
    /// `--max-inflight-bytes`: what requests in flight hold together.
    pub budget: Arc<ByteBudget>,
    /// Where big request bodies are received when a worker process reads them.
    pub segments: Arc<SegmentPool>,
    /// Regions that clients register; `None`: `--allow-client-shm` was not given.
    pub shared_memory: Option<Arc<SharedMemory>>,
    /// What is logged, for those who ask and change it.
    pub log: Log,
    /// `--access-log`: a line about each inference.
    pub access_log: bool,
    /// Bytes that all taps together may hold; `None`: `--allow-tap` was not given.
    pub tap: Option<Arc<Budget>>,
}

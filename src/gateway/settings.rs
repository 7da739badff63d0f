//! What gateways are told at start.

use std::{sync::Arc, time::Duration};

use crate::{access::Access, connections::Connections, shared_memory::SharedMemory};
use troupe_base::{
    budget::{Budget, ByteBudget},
    tensor::SegmentPool,
};
use troupe_observability::log::Log;

/// What the command line says about the gateways.
#[derive(Clone)]
pub struct Settings {
    /// `--id`: the name in the server's metadata.
    pub server_id: String,
    /// `--http-max-input-size`: bytes of one request, also after inflating it.
    pub max_input_size: usize,
    /// `--strict-readiness`: ready means that every model is.
    pub strict_readiness: bool,
    /// `--allow-dashboard`: the metrics port has a page of live graphs.
    pub allow_dashboard: bool,
    /// Who may ask for what over HTTP, and over the metrics port.
    pub http_access: Arc<Access>,
    /// The same over gRPC.
    pub grpc_access: Arc<Access>,
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

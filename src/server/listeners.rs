//! Listeners of a server: HTTP, gRPC and metrics, as far as the options allow them.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use actix::Addr;
use actix_rt::{Arbiter, ArbiterHandle};
use tokio::time::timeout;

use troupe_base::{
    error::{Error, Result},
    metrics::Metrics,
};
use troupe_engine::engines::Engines;
use troupe_gateway::{
    ServerState,
    connections::Connections,
    grpc::{self, GrpcGateway},
    http::{self, HttpGateway},
    metrics::{self, MetricsGateway},
};
use troupe_options::Serve;

/// The most engine threads unless the command line says.
const MAX_DEFAULT_THREADS: usize = 8;

/// Where a server listens: empty where its options allow no listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// KServe's and Triton's HTTP API.
    pub http: Vec<SocketAddr>,
    /// KServe's and Triton's gRPC API.
    pub grpc: Vec<SocketAddr>,
    /// Prometheus metrics, and the dashboard.
    pub metrics: Vec<SocketAddr>,
}

/// The gateways that listen. What is not allowed is not there.
#[derive(Default)]
pub(super) struct Listeners {
    http: Option<(Addr<HttpGateway>, Vec<SocketAddr>)>,
    grpc: Option<(Addr<GrpcGateway>, Vec<SocketAddr>)>,
    metrics: Option<(Addr<MetricsGateway>, Vec<SocketAddr>)>,
}

impl Listeners {
    /// Answers the engine's threads: the workers of the HTTP gateway, without it arbiters of their
    /// own.
    pub(super) async fn open_http(
        &mut self,
        options: &Serve,
        cell: &http::StateCell,
        connections: &Arc<Connections>,
    ) -> Result<Vec<ArbiterHandle>> {
        let listeners = &options.listeners;
        let workers = listeners.http_thread_count.map_or_else(default_threads, |it| it as usize);
        if !listeners.allow_http {
            return Ok((0..workers).map(|_| Arbiter::new().handle()).collect());
        }
        let addresses = addresses(&listeners.http_address, listeners.http_port)?;
        let exit_timeout = Duration::from_secs(options.exit_timeout_secs);
        let listen = http::Listen {
            addresses: addresses.clone(),
            workers,
            exit_timeout,
            connections: connections.clone(),
            stalled: stalled(options),
        };
        let started = http::start(cell.clone(), listen).await;
        let started = started.map_err(|error| cannot_listen("HTTP", &addresses, &error))?;
        self.http = Some((started.gateway, started.addresses));
        Ok(started.workers)
    }

    pub(super) fn open_grpc(
        &mut self,
        options: &Serve,
        state: &ServerState,
        engines: &Engines,
    ) -> Result<()> {
        let listeners = &options.listeners;
        if listeners.allow_grpc {
            let at = addresses(&listeners.grpc_address, listeners.grpc_port)?;
            // Accepts on a thread of its own: no request delays a connection.
            let acceptor = Arbiter::new().handle();
            let opened = GrpcGateway::start(state, &at, engines.all(), &acceptor);
            self.grpc = Some(opened.map_err(|error| cannot_listen("gRPC", &at, &error))?);
        }
        Ok(())
    }

    pub(super) fn open_metrics(
        &mut self,
        options: &Serve,
        state: &ServerState,
        metrics: &Metrics,
    ) -> Result<()> {
        let listeners = &options.listeners;
        if listeners.allow_metrics {
            let address = listeners.metrics_address.as_ref().unwrap_or(&listeners.http_address);
            let at = addresses(address, listeners.metrics_port)?;
            let opened = MetricsGateway::start(state, metrics, &at);
            self.metrics = Some(opened.map_err(|error| cannot_listen("metrics", &at, &error))?);
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> Addresses {
        fn of<T>(listener: &Option<(Addr<T>, Vec<SocketAddr>)>) -> Vec<SocketAddr>
        where
            T: actix::Actor,
        {
            listener.as_ref().map(|(_, addresses)| addresses.clone()).unwrap_or_default()
        }
        Addresses { http: of(&self.http), grpc: of(&self.grpc), metrics: of(&self.metrics) }
    }

    /// A line in the log about each address, in Triton's words.
    pub(super) fn announce(&self) {
        let Addresses { http, grpc, metrics } = self.addresses();
        for (service, addresses) in
            [("GRPCInferenceService", grpc), ("HTTPService", http), ("Metrics Service", metrics)]
        {
            for address in addresses {
                tracing::info!("Started {service} at {address}");
            }
        }
    }

    /// Each listener has `grace` to write what is ready and say goodbye.
    pub(super) async fn close(self, grace: Duration) {
        if let Some((metrics, _)) = self.metrics {
            let _ = timeout(grace, metrics.send(metrics::StopMetrics)).await;
        }
        if let Some((grpc, _)) = self.grpc {
            let _ = timeout(grace, grpc.send(grpc::StopGrpc)).await;
        }
        if let Some((http, _)) = self.http {
            let _ = timeout(grace, http.send(http::StopHttp { graceful: true })).await;
        }
    }
}

/// How long a client may stand still in the middle of something; zero: for ever.
pub(super) fn stalled(options: &Serve) -> Duration {
    Duration::from_secs(options.listeners.stalled_connection_secs.into())
}

/// Half the cores: the other half is for the models.
fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores / 2).clamp(1, MAX_DEFAULT_THREADS)
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let resolved = (host, port)
        .to_socket_addrs()
        .map_err(|error| Error::unavailable(format!("cannot resolve address {host}: {error}")))?;
    // One listener a name: `localhost` may mean two.
    Ok(resolved.take(1).collect())
}

fn cannot_listen(service: &str, addresses: &[SocketAddr], error: &io::Error) -> Error {
    let at: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let at = at.join(", ");
    Error::unavailable(format!("failed to listen for {service} requests at {at}: {error}"))
}

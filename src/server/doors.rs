//! The listeners: what the command line allows is open, from start to end.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use actix::Addr;
use actix_rt::{Arbiter, ArbiterHandle};
use tokio::time::timeout;

use troupe_base::metrics::Metrics;
use troupe_engine::engines::Engines;
use troupe_gateway::{
    ServerState,
    grpc::{self, GrpcGateway},
    http::{self, HttpGateway},
    metrics::{self, MetricsGateway},
};
use troupe_options::Serve;

/// What is open. What is not allowed is not there.
#[derive(Default)]
pub(super) struct Doors {
    http: Option<(Addr<HttpGateway>, Vec<SocketAddr>)>,
    grpc: Option<(Addr<GrpcGateway>, Vec<SocketAddr>)>,
    metrics: Option<(Addr<MetricsGateway>, Vec<SocketAddr>)>,
}

impl Doors {
    /// The workers of the HTTP gateway are the engine's threads; without it there are others.
    pub(super) async fn open_http(
        &mut self,
        options: &Serve,
        door: &http::StateCell,
    ) -> Result<Vec<ArbiterHandle>, String> {
        let workers =
            options.doors.http_thread_count.map_or_else(default_threads, |it| it as usize);
        if !options.doors.allow_http {
            return Ok((0..workers).map(|_| Arbiter::new().handle()).collect());
        }
        let addresses = addresses(&options.doors.http_address, options.doors.http_port)?;
        let exit_timeout = Duration::from_secs(options.exit_timeout_secs);
        let listen = http::Listen { addresses: addresses.clone(), workers, exit_timeout };
        let started = http::start(door.clone(), listen).await;
        let started = started.map_err(|error| cannot_listen("HTTP", &addresses, &error))?;
        self.http = Some((started.gateway, started.addresses));
        Ok(started.workers)
    }

    pub(super) fn open_others(
        &mut self,
        options: &Serve,
        gate: &ServerState,
        (engines, metrics): (&Engines, &Metrics),
    ) -> Result<(), String> {
        let doors = &options.doors;
        if doors.allow_grpc {
            let at = addresses(&doors.grpc_address, doors.grpc_port)?;
            let opened = GrpcGateway::start(gate, &at, engines.all());
            self.grpc = Some(opened.map_err(|error| cannot_listen("gRPC", &at, &error))?);
        }
        if doors.allow_metrics {
            let address = doors.metrics_address.as_ref().unwrap_or(&doors.http_address);
            let at = addresses(address, doors.metrics_port)?;
            let opened = MetricsGateway::start(gate, metrics, &at);
            self.metrics = Some(opened.map_err(|error| cannot_listen("metrics", &at, &error))?);
        }
        Ok(())
    }

    pub(super) fn announce(&self) {
        let told = |service: &str, addresses: &[SocketAddr]| {
            for address in addresses {
                tracing::info!("Started {service} at {address}");
            }
        };
        if let Some((_, addresses)) = &self.grpc {
            told("GRPCInferenceService", addresses);
        }
        if let Some((_, addresses)) = &self.http {
            told("HTTPService", addresses);
        }
        if let Some((_, addresses)) = &self.metrics {
            told("Metrics Service", addresses);
        }
    }

    /// Each door has `grace` to write what is ready and say goodbye.
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

/// Half the cores: the other half is for the models.
fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores / 2).clamp(1, 8)
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let resolved = (host, port).to_socket_addrs();
    let resolved = resolved.map_err(|error| format!("cannot resolve address {host}: {error}"))?;
    // One listener a name: `localhost` may mean two.
    Ok(resolved.take(1).collect())
}

fn cannot_listen(service: &str, addresses: &[SocketAddr], error: &io::Error) -> String {
    let at: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    format!("failed to listen for {service} requests at {}: {error}", at.join(", "))
}

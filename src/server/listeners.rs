//! Listeners of a server: HTTP, gRPC and metrics, as far as the options allow them.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use actix::Addr;
use tokio::time::timeout;

use super::{
    settings::{self, Shared},
    threads,
};
use troupe_base::{
    error::{Error, Result},
    metrics::Metrics,
};
use troupe_gateway::{
    ServerState,
    connections::ServingThreads,
    grpc::{self, GrpcGateway},
    http::{self, HttpGateway},
    metrics::{self, MetricsGateway},
    service_urls::ServiceUrl,
    settings::Settings,
    socket::{Binding, ListenAddress},
};
use troupe_options::{Api, Serve, TlsFiles, UNIX_SOCKET};

use super::certificates::{self, Certificate};

/// The ports a server listens on: empty where its options allow no listener, and where it is a Unix
/// socket.
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
    http: Option<(Addr<HttpGateway>, Vec<ListenAddress>)>,
    grpc: Option<(Addr<GrpcGateway>, Vec<ListenAddress>)>,
    metrics: Option<(Addr<MetricsGateway>, Vec<ListenAddress>)>,
    /// Of the encrypted ones, until they are watched.
    certificates: Vec<Certificate>,
}

impl Listeners {
    pub(super) fn open_http(
        &mut self,
        options: &Serve,
        cell: &http::StateCell,
        shared: &Shared,
        threads: &ServingThreads,
    ) -> Result<()> {
        let listeners = &options.listeners;
        if !listeners.allow_http {
            return Ok(());
        }
        let at = address(&listeners.http_address, listeners.http_port)?;
        let binding = self.binding(&at, listeners.reuse_http_port, options.tls.http())?;
        let is_encrypted = binding.tls.is_some();
        let exit_timeout = Duration::from_secs(options.exit_timeout_secs);
        let listen = http::Listen {
            bindings: vec![binding],
            threads: threads.clone(),
            exit_timeout,
            connections: shared.connections.clone(),
            access: shared.access[0].clone(),
            stalled: settings::stalled(options),
        };
        let opened = http::start(cell.clone(), &listen);
        let opened = opened.map_err(|error| cannot_listen("HTTP", &at, &error))?;
        let url = service_url(&opened.1, is_encrypted);
        // Nobody else sets it.
        let _ = url.map(|it| shared.urls.http.set(it));
        self.http = Some(opened);
        Ok(())
    }

    pub(super) fn open_grpc(
        &mut self,
        options: &Serve,
        state: &ServerState,
        threads: &ServingThreads,
    ) -> Result<()> {
        let listeners = &options.listeners;
        if listeners.allow_grpc {
            let at = address(&listeners.grpc_address, listeners.grpc_port)?;
            let binding = self.binding(&at, listeners.reuse_grpc_port, options.tls.grpc())?;
            let opened = GrpcGateway::start(state, &[binding], threads);
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
            let at = address(listeners.metrics_address(), listeners.metrics_port)?;
            let binding = self.binding(&at, false, options.tls.metrics())?;
            let is_encrypted = binding.tls.is_some();
            let opened = MetricsGateway::start(state, metrics, &[binding], &threads::of_metrics());
            let opened = opened.map_err(|error| cannot_listen("metrics", &at, &error))?;
            let url = service_url(&opened.1, is_encrypted);
            // Nobody else sets it.
            let _ = url.map(|it| state.settings.urls.metrics.set(it));
            self.metrics = Some(opened);
        }
        Ok(())
    }

    /// How to listen there; a certificate is read, and kept to be watched.
    fn binding(
        &mut self,
        address: &ListenAddress,
        reuse_port: bool,
        files: std::result::Result<Option<TlsFiles>, String>,
    ) -> Result<Binding> {
        let certificate = files.map_err(Error::invalid)?.map(Certificate::read).transpose()?;
        let tls = certificate.as_ref().map(Certificate::tls);
        self.certificates.extend(certificate);
        Ok(Binding { address: address.clone(), reuse_port, tls })
    }

    /// Has the certificates read again when they change; to be called when all are open.
    pub(super) fn watch_certificates(&mut self) {
        actix_rt::spawn(certificates::watch(std::mem::take(&mut self.certificates)));
    }

    pub(super) fn addresses(&self) -> Addresses {
        let ports = |it: &[ListenAddress]| it.iter().filter_map(ListenAddress::tcp).collect();
        Addresses {
            http: ports(of(&self.http)),
            grpc: ports(of(&self.grpc)),
            metrics: ports(of(&self.metrics)),
        }
    }

    /// A line in the log about each address, in Triton's words, and one about the page.
    pub(super) fn announce(&self, settings: &Settings) {
        for (service, addresses) in [
            ("GRPCInferenceService", of(&self.grpc)),
            ("HTTPService", of(&self.http)),
            ("Metrics Service", of(&self.metrics)),
        ] {
            for address in addresses {
                tracing::info!("Started {service} at {address}");
            }
        }
        let page = settings.urls.metrics.get().and_then(|it| it.text("localhost"));
        let is_restricted = settings.http_access.restrictions.header(Api::Troupe).is_some();
        if let Some(page) = page.filter(|_| settings.allow_dashboard && !is_restricted) {
            tracing::info!("Models, live graphs and a form to try them: open {page}/ in a browser");
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
            let _ = timeout(grace, http.send(http::StopHttp)).await;
        }
    }
}

/// Where a gateway listens, if it is there.
fn of<T: actix::Actor>(listener: &Option<(Addr<T>, Vec<ListenAddress>)>) -> &[ListenAddress] {
    listener.as_ref().map_or(&[], |(_, addresses)| addresses)
}

fn service_url(addresses: &[ListenAddress], is_encrypted: bool) -> Option<ServiceUrl> {
    let address = addresses.first()?.clone();
    Some(ServiceUrl { address, is_encrypted })
}

fn address(host: &str, port: u16) -> Result<ListenAddress> {
    if let Some(path) = host.strip_prefix(UNIX_SOCKET) {
        return Ok(ListenAddress::Unix(path.into()));
    }
    let unknown = |why: String| Error::unavailable(format!("cannot resolve address {host}: {why}"));
    let mut resolved =
        (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    // One listener a name: `localhost` may mean two.
    let first = resolved.next().ok_or_else(|| unknown("it has no address".to_owned()))?;
    Ok(ListenAddress::Tcp(first))
}

fn cannot_listen(service: &str, at: &ListenAddress, error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            let flag = service.to_ascii_lowercase();
            format!(
                ": another program listens there, perhaps a troupe that was not stopped (another \
                 address: --{flag}-port, --{flag}-address)"
            )
        }
        _ => String::new(),
    };
    Error::unavailable(format!("failed to listen for {service} requests at {at}: {error}{hint}"))
}

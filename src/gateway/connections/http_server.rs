//! HTTP servers: their sockets, their connections from the first byte to the last, and which of
//! these are busy.

use std::{
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_http::{HttpServiceBuilder, KeepAlive, Request, error::DispatchError};
use actix_server::GracefulShutdownSignal;
use actix_service::{
    IntoServiceFactory, ServiceFactoryExt as _, fn_factory, fn_service, map_config,
};
use actix_web::{
    Error,
    body::{BodySize, MessageBody},
    dev::{
        AppConfig, Extensions, Payload, Server, Service, ServiceFactory, ServiceRequest,
        ServiceResponse,
    },
    http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING},
};
use bytes::Bytes;
use rustls::ServerConfig;
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{
    http_connection::{HttpConnection, OpenConnection, ReturnSlot, ServedConnection},
    table::{Busy, Connections},
};
use crate::{
    socket::{Binding, ListenAddress, ListeningSocket, SocketFile},
    tls,
    transport::Transport,
};

/// What a client may take until the head of its first request has come.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients keep idle connections; closing them first would fail their next request.
const KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// How long a connection that ends waits for its client to read the rest.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What is spoken by TLS.
const HTTP_1_1: &[u8] = b"http/1.1";

/// Where an HTTP server listens, and how it serves.
pub struct HttpListen<'a> {
    /// Where, and encrypted with what. Port 0 picks a free one.
    pub bindings: &'a [Binding],
    /// Threads that serve connections.
    pub workers: usize,
    /// How long a graceful stop waits for connections.
    pub exit_timeout: Duration,
    /// The connections of all gateways.
    pub connections: &'a Arc<Connections>,
    /// How long a client may send nothing of a request, or take nothing of an answer; zero: for
    /// ever.
    pub stalled: Duration,
}

/// A server to be run, and what it listens on.
pub struct HttpServing {
    /// To be run; it has a handle.
    pub server: Server,
    /// With the ports that were picked.
    pub addresses: Vec<ListenAddress>,
    /// To be kept while it listens.
    pub(crate) files: Vec<SocketFile>,
}

/// Listens, and serves what `app` makes: it is called on each worker, once per address.
pub fn serve<F, I, S, B>(listen: &HttpListen<'_>, app: F) -> io::Result<HttpServing>
where
    F: Fn() -> I + Clone + Send + 'static,
    I: IntoServiceFactory<S, Request>,
    S: AppFactory<B>,
    B: MessageBody + 'static,
{
    let mut builder = Server::build()
        .workers(listen.workers.max(1))
        .shutdown_timeout(listen.exit_timeout.as_secs())
        .disable_signals();
    let (mut addresses, mut files) = (Vec::new(), Vec::new());
    for binding in listen.bindings {
        let bound = binding.bind(listen.stalled)?;
        let server = SocketServer {
            connections: listen.connections.clone(),
            tls: bound.tls.map(|it| Arc::new(it.server_config(&[HTTP_1_1]))),
            stalled: listen.stalled,
            stopping: builder.graceful_shutdown_signal(),
        };
        let (name, app) = (bound.address.to_string(), app.clone());
        addresses.push(bound.address);
        files.extend(bound.file);
        builder = match bound.socket {
            ListeningSocket::Tcp(socket) => builder
                .listen(name, socket, move || factory::<TcpStream, _, _, _>(&server, app()))?,
            ListeningSocket::Unix(socket) => builder
                .listen_uds(name, socket, move || factory::<UnixStream, _, _, _>(&server, app()))?,
        };
    }
    Ok(HttpServing { server: builder.run(), addresses, files })
}

/// What an application of actix-web makes services of.
pub trait AppFactory<B>:
    ServiceFactory<
        Request,
        Config = AppConfig,
        Response = ServiceResponse<B>,
        Error = Error,
        InitError = (),
        Service: Service<Request, Future: 'static> + 'static,
        Future: 'static,
    > + 'static
{
}

impl<B, S> AppFactory<B> for S where
    S: ServiceFactory<
            Request,
            Config = AppConfig,
            Response = ServiceResponse<B>,
            Error = Error,
            InitError = (),
            Service: Service<Request, Future: 'static> + 'static,
            Future: 'static,
        > + 'static
{
}

/// Opens and serves the connections of one socket.
#[derive(Clone)]
struct SocketServer {
    connections: Arc<Connections>,
    tls: Option<Arc<ServerConfig>>,
    stalled: Duration,
    stopping: GracefulShutdownSignal,
}

/// Makes the service of one worker for the connections of one socket.
fn factory<T, I, S, B>(
    server: &SocketServer,
    app: I,
) -> impl ServiceFactory<T, Config = (), Response = (), Error = (), InitError = ()> + use<T, I, S, B>
where
    T: Into<Transport> + 'static,
    I: IntoServiceFactory<S, Request>,
    S: AppFactory<B>,
    B: MessageBody + 'static,
{
    let (server, stopping) = (server.clone(), server.stopping.clone());
    let app = app.into_factory().map_err(|error: Error| error.error_response());
    let http = HttpServiceBuilder::default()
        .graceful_shutdown_signal(move || {
            let stopping = stopping.clone();
            async move { stopping.notified().await }
        })
        // An idle connection is taken back before.
        .keep_alive(KeepAlive::Os)
        .client_request_timeout(FIRST_HEAD_TIMEOUT)
        .client_disconnect_timeout(CLOSE_TIMEOUT)
        // A client that closes its end has gone: its request is dropped, and so cancelled.
        .h1_allow_half_closed(false)
        .on_connect_ext(|io: &HttpConnection, data: &mut Extensions| {
            data.insert(io.served().clone());
        })
        .h1(map_config(app, |()| AppConfig::default()));
    fn_factory(move || {
        let (http, server) = (http.new_service(()), server.clone());
        async move {
            let http = Rc::new(http.await?);
            Ok(fn_service(move |socket: T| server.clone().serve(socket.into(), http.clone())))
        }
    })
}

impl SocketServer {
    /// Serves a connection from its first byte to its last. While it is idle it has no dispatcher,
    /// whose buffers are most of what a connection weighs.
    async fn serve<S>(self, transport: Transport, http: Rc<S>) -> Result<(), ()>
    where
        S: Service<
                (HttpConnection, Option<std::net::SocketAddr>),
                Response = (),
                Error = DispatchError,
            >,
    {
        // One that is not admitted is closed by being dropped.
        let admitted = transport.socket().and_then(|it| self.connections.admit(it));
        let Some(guard) = admitted else { return Ok(()) };
        let transport = transport.encrypted(self.tls.as_ref());
        let mut open = OpenConnection { guard, transport };
        let opened = timeout(tls::HANDSHAKE_TIMEOUT, open.transport.handshake());
        let (Ok(Ok(())), peer) = (opened.await, open.transport.peer()) else { return Ok(()) };
        // Of a client by TLS, a request may have come with the handshake.
        let mut is_readable =
            self.tls.is_some() || self.is_readable(&open, FIRST_HEAD_TIMEOUT).await;
        while is_readable {
            let home = ReturnSlot::default();
            let lent = HttpConnection::new(open, home.clone(), self.stalled);
            // Its errors are about this connection, which ends with them.
            let _ = Box::pin(http.call((lent, peer))).await;
            let Some(idle) = home.take() else { return Ok(()) };
            open = idle;
            is_readable = self.is_readable(&open, KEEP_ALIVE).await;
        }
        Ok(())
    }

    /// Waits for bytes; `false`: none came, or the server stops.
    async fn is_readable(&self, open: &OpenConnection, patience: Duration) -> bool {
        tokio::select! {
            biased;
            readable = timeout(patience, open.transport.readable()) => matches!(readable, Ok(Ok(()))),
            () = self.stopping.notified() => false,
        }
    }
}

/// Marks the connection of a request busy.
pub fn mark_busy(request: &ServiceRequest) -> Option<Busy> {
    request.conn_data::<ServedConnection>().map(|it| {
        it.request_began(body_length(request));
        it.connection().begin()
    })
}

/// The same answer; its connection stays busy until the answer was handed to it.
pub async fn stay_busy<B>(
    busy: Option<Busy>,
    answer: impl Future<Output = Result<ServiceResponse<B>, Error>>,
) -> Result<ServiceResponse<BusyBody<B>>, Error> {
    Ok(answer.await?.map_body(|_, body| BusyBody { body, _busy: busy }))
}

/// Bytes of the body, if they are known before it comes.
fn body_length(request: &ServiceRequest) -> Option<u64> {
    if matches!(request.parts().1, Payload::None) {
        return Some(0);
    }
    let headers = request.headers();
    if headers.contains_key(TRANSFER_ENCODING) { None } else { content_length(headers) }
}

/// What a request announces of its body's size, in bytes.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body whose connection is busy until it was sent.
pub struct BusyBody<B> {
    body: B,
    _busy: Option<Busy>,
}

impl<B: MessageBody + Unpin> MessageBody for BusyBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, B::Error>>> {
        Pin::new(&mut self.body).poll_next(context)
    }

    fn try_into_bytes(self) -> Result<Bytes, Self> {
        let BusyBody { body, _busy } = self;
        body.try_into_bytes().map_err(|body| BusyBody { body, _busy })
    }
}

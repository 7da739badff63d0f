//! HTTP servers: their sockets, their connections from the first byte to the last, and which of
//! these are busy.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_http::{HttpServiceBuilder, KeepAlive, Request, error::DispatchError};
use actix_service::{IntoServiceFactory, ServiceFactoryExt as _, map_config};
use actix_web::{
    Error,
    body::{BodySize, MessageBody},
    dev::{
        AppConfig, Extensions, Payload, Service, ServiceFactory, ServiceRequest, ServiceResponse,
    },
    http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING},
};
use bytes::Bytes;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    accept::{Accepted, Listener, OpenConnection, ServingThreads, Target},
    http_connection::{HttpConnection, ReturnSlot, ServedConnection},
    table::{Busy, Connections},
};
use crate::{
    socket::{Binding, ListenAddress, SocketFile},
    tls,
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
    pub threads: &'a ServingThreads,
    /// How long a stop waits for answers under way.
    pub exit_timeout: Duration,
    /// The connections of all gateways.
    pub connections: &'a Arc<Connections>,
    /// How long a client may send nothing of a request, or take nothing of an answer; zero: for
    /// ever.
    pub stalled: Duration,
}

/// A server that listens until it is stopped, or dropped.
pub struct HttpServing {
    /// With the ports that were picked.
    pub addresses: Vec<ListenAddress>,
    files: Vec<SocketFile>,
    stopping: watch::Sender<bool>,
    /// Closed when the last connection is; `None` after the stop.
    open: Option<mpsc::Receiver<Infallible>>,
    exit_timeout: Duration,
}

impl HttpServing {
    /// Stops accepting; done when the answers under way are out, or `exit_timeout` is over.
    pub fn stop(&mut self) -> impl Future<Output = ()> + 'static {
        // The files go now: the process may end before this is dropped.
        self.files.clear();
        self.stopping.send_replace(true);
        let (open, exit_timeout) = (self.open.take(), self.exit_timeout);
        async move {
            if let Some(mut open) = open {
                let _ = timeout(exit_timeout, open.recv()).await;
            }
        }
    }
}

/// Listens, and serves what `app` makes: it is called on each thread, once per address.
pub fn serve<F, I, S, B>(listen: &HttpListen<'_>, app: F) -> io::Result<HttpServing>
where
    F: Fn() -> I + Clone + Send + 'static,
    I: IntoServiceFactory<S, Request> + 'static,
    S: AppFactory<B>,
    B: MessageBody + 'static,
{
    let (stopping, stop) = watch::channel(false);
    let (is_open, open) = mpsc::channel(1);
    let ServingThreads { engines, acceptor, .. } = listen.threads;
    let (mut addresses, mut files) = (Vec::new(), Vec::new());
    for binding in listen.bindings {
        let mut bound = binding.bind(listen.stalled)?;
        addresses.push(bound.address.clone());
        files.extend(bound.file.take());
        let is_encrypted = bound.tls.is_some();
        let server = SocketServer { is_encrypted, stalled: listen.stalled, stop: stop.clone() };
        let mut targets = Vec::new();
        for thread in engines.all() {
            let (sender, accepted) = mpsc::unbounded_channel();
            targets.push(Target::new(move |connection| {
                let _ = sender.send(connection);
            }));
            let (server, app, is_open) = (server.clone(), app.clone(), is_open.clone());
            thread.spawn_fn(move || {
                actix_rt::spawn(server.serve_all(app(), accepted, is_open));
            });
        }
        let connections = listen.connections.clone();
        let listener = Listener::new(bound, HTTP_1_1, listen.threads)?;
        acceptor.spawn(listener.accept(engines.clone(), targets, connections, stop.clone()));
    }
    let (open, exit_timeout) = (Some(open), listen.exit_timeout);
    Ok(HttpServing { addresses, files, stopping, open, exit_timeout })
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

/// Serves the connections of one socket.
#[derive(Clone)]
struct SocketServer {
    is_encrypted: bool,
    stalled: Duration,
    stop: watch::Receiver<bool>,
}

/// The service of one thread for the connections of one socket.
fn factory<I, S, B>(
    app: I,
    stop: watch::Receiver<bool>,
) -> impl ServiceFactory<
    (HttpConnection, Option<SocketAddr>),
    Config = (),
    Response = (),
    Error = DispatchError,
    InitError = (),
    Service: 'static,
>
where
    I: IntoServiceFactory<S, Request>,
    S: AppFactory<B>,
    B: MessageBody + 'static,
{
    let app = app.into_factory().map_err(|error: Error| error.error_response());
    HttpServiceBuilder::default()
        .graceful_shutdown_signal(move || stopped(stop.clone()))
        // An idle connection is taken back before.
        .keep_alive(KeepAlive::Os)
        .client_request_timeout(FIRST_HEAD_TIMEOUT)
        .client_disconnect_timeout(CLOSE_TIMEOUT)
        // A client that closes its end has gone: its request is dropped, and so cancelled.
        .h1_allow_half_closed(false)
        .on_connect_ext(|io: &HttpConnection, data: &mut Extensions| {
            data.insert(io.served().clone());
        })
        .h1(map_config(app, |()| AppConfig::default()))
}

/// Waits until the server stops, or was dropped.
async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopping| *is_stopping).await;
}

impl SocketServer {
    /// Serves what this thread is sent, until nothing more comes; each connection keeps `is_open`.
    async fn serve_all<I, S, B>(
        self,
        app: I,
        mut accepted: mpsc::UnboundedReceiver<Accepted>,
        is_open: mpsc::Sender<Infallible>,
    ) where
        I: IntoServiceFactory<S, Request> + 'static,
        S: AppFactory<B>,
        B: MessageBody + 'static,
    {
        let Ok(http) = factory(app, self.stop.clone()).new_service(()).await else {
            return tracing::error!("the HTTP gateway cannot serve: an application is refused");
        };
        let http = Rc::new(http);
        while let Some(connection) = accepted.recv().await {
            let (server, http, is_open) = (self.clone(), http.clone(), is_open.clone());
            actix_rt::spawn(async move {
                // What it fails with is about this connection, which ends with it.
                if let Ok(open) = connection.open() {
                    server.serve(open, http).await;
                }
                drop(is_open);
            });
        }
    }

    /// Serves a connection from its first byte to its last. While it is idle it has no dispatcher,
    /// whose buffers are most of what a connection weighs.
    async fn serve<S>(self, mut open: OpenConnection, http: Rc<S>)
    where
        S: Service<(HttpConnection, Option<SocketAddr>), Response = (), Error = DispatchError>,
    {
        let opened = timeout(tls::HANDSHAKE_TIMEOUT, open.transport.handshake());
        let (Ok(Ok(())), peer) = (opened.await, open.transport.peer()) else { return };
        // Of a client by TLS, a request may have come with the handshake.
        let mut is_readable =
            self.is_encrypted || self.is_readable(&open, FIRST_HEAD_TIMEOUT).await;
        while is_readable {
            let home = ReturnSlot::default();
            let lent = HttpConnection::new(open, home.clone(), self.stalled);
            // Its errors are about this connection, which ends with them.
            let _ = Box::pin(http.call((lent, peer))).await;
            let Some(idle) = home.take() else { return };
            open = idle;
            is_readable = self.is_readable(&open, KEEP_ALIVE).await;
        }
    }

    /// Waits for bytes; `false`: none came, or the server stops.
    async fn is_readable(&self, open: &OpenConnection, patience: Duration) -> bool {
        tokio::select! {
            biased;
            readable = timeout(patience, open.transport.readable()) => matches!(readable, Ok(Ok(()))),
            () = stopped(self.stop.clone()) => false,
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

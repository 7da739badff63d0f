//! The gRPC gateway: tonic inside the engine's arbiters, each with its share of the connections.

mod answering;
mod calls;
mod connection;
mod contents;
mod convert;
mod deadline;
mod dispatch;
mod health;
mod infer;
mod listen;
mod logging;
mod message;
mod messages;
mod methods;
mod observe;
mod parameters;
mod refusal;
mod repository;
mod service;
mod shared_memory;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod windows;

use std::{io, sync::Arc};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_rt::ArbiterHandle;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Server;

use self::{
    connection::ConnectionTimes,
    dispatch::Dispatcher,
    listen::{WithWindow, incoming, target},
    service::Inference,
    windows::{WideWindows, Windows},
};
use crate::{
    ServerState,
    connections::{Listener, ServingThreads},
    settings::GrpcTuning,
    socket::{Binding, ListenAddress, SocketFile},
};

/// What clients ask for in the handshake of TLS.
const HTTP_2: &[u8] = b"h2";

/// Calls of one connection at a time; gRPC clients put all of theirs on one.
const MAX_CALLS_PER_CONNECTION: u32 = 1 << 10;

/// Calls a client may take back before they were looked at: bursts of cancels are no attack yet.
const MAX_CANCELLED_UNSEEN: usize = 200;

/// The actor that owns the listeners and their connections; it ends with its last address.
pub struct GrpcGateway {
    stopping: watch::Sender<bool>,
    servers: Vec<oneshot::Receiver<()>>,
    files: Vec<SocketFile>,
}

impl GrpcGateway {
    /// Listens on every address and serves on these threads; answers where. Port 0 takes a free
    /// one.
    pub fn start(
        state: &ServerState,
        bindings: &[Binding],
        threads: &ServingThreads,
    ) -> io::Result<(Addr<GrpcGateway>, Vec<ListenAddress>)> {
        let (stopping, stop) = watch::channel(false);
        let (mut servers, mut files, mut listening) = (Vec::new(), Vec::new(), Vec::new());
        let stalled = state.settings.stalled;
        let bound: Vec<_> =
            bindings.iter().map(|it| it.bind(stalled)).collect::<io::Result<_>>()?;
        let wide = Arc::new(WideWindows::new(state.settings.budget.cap()));
        for mut socket in bound {
            listening.push(socket.address.clone());
            files.extend(socket.file.take());
            let listener = Listener::new(socket, HTTP_2, threads)?;
            let mut targets = Vec::new();
            for arbiter in threads.engines.all() {
                let (target, received) = target(&wide);
                targets.push(target);
                for (windows, received) in received {
                    servers.push(serve(arbiter, (windows, received), state, stop.clone()));
                }
            }
            let connections = state.settings.connections.clone();
            let engines = threads.engines.clone();
            threads.acceptor.spawn(listener.accept(engines, targets, connections, stop.clone()));
        }
        let gateway = GrpcGateway { stopping, servers, files };
        Ok((Actor::start(gateway), listening))
    }
}

impl Actor for GrpcGateway {
    type Context = Context<Self>;
}

/// Stops accepting and ends streams after their requests in flight; answered once every connection
/// is closed.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopGrpc;

impl Handler<StopGrpc> for GrpcGateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopGrpc, _: &mut Self::Context) -> Self::Result {
        // The files go now: the process may end before this actor is dropped.
        self.files.clear();
        // Nobody listening means that every server has ended.
        let _ = self.stopping.send(true);
        let servers = std::mem::take(&mut self.servers);
        Box::pin(async move {
            for ended in servers {
                let _ = ended.await;
            }
        })
    }
}

/// Answers when the last connection is closed.
fn serve(
    arbiter: &ArbiterHandle,
    received: (Windows, mpsc::UnboundedReceiver<WithWindow>),
    state: &ServerState,
    mut stop: watch::Receiver<bool>,
) -> oneshot::Receiver<()> {
    let (windows, received) = received;
    let (ended, end) = oneshot::channel();
    let dispatcher = Dispatcher::new(state.clone(), Inference::new(state.clone(), stop.clone()));
    let tuning = state.settings.grpc;
    let times = ConnectionTimes { stalled: state.settings.stalled, end: tuning.end() };
    // An arbiter that has stopped drops the future, and with it `ended`.
    arbiter.spawn(async move {
        let stopped = async move {
            // An error means that the gateway was dropped.
            let _ = stop.changed().await;
        };
        let incoming = incoming(received, times);
        let server = server(tuning, windows);
        let served = server.serve_with_incoming_shutdown(dispatcher, incoming, stopped).await;
        if let Err(error) = served {
            tracing::error!(%error, "the gRPC gateway stopped");
        }
        let _ = ended.send(());
    });
    end
}

fn server(tuning: GrpcTuning, windows: Windows) -> Server {
    let mut server = Server::builder()
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(windows.frame)
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .http2_max_pending_accept_reset_streams(Some(MAX_CANCELLED_UNSEEN))
        .http2_keepalive_interval(Some(tuning.keep_alive))
        .http2_keepalive_timeout(Some(tuning.keep_alive_timeout));
    if let Some(age) = tuning.max_age {
        // Without its own grace: with it, tonic closes without a GOAWAY before.
        server = server.max_connection_age(age);
    }
    server
}

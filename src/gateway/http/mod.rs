//! The HTTP gateway: an actor that owns the listener and its workers, which are also the engine's
//! threads.

mod body;
mod coarse_time;
#[doc(hidden)]
pub mod codec;
mod coding;
mod decode;
mod draining;
mod elements;
mod encode;
mod flat_json;
mod generate;
mod generate_json;
mod graph;
mod health;
mod hints;
mod infer;
mod infer_json;
mod json;
mod json_values;
mod limits;
mod logging;
mod logs;
mod metadata;
mod observe;
mod pace;
mod reference;
mod refusal;
mod repository;
mod request_head;
mod root_page;
mod routes;
mod server_state;
mod shared_memory;
mod tap;
#[cfg(test)]
mod tests;
mod trace;
mod unknown_path;

use std::{collections::HashMap, io, sync::Arc, thread::ThreadId, time::Duration};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_rt::{Arbiter, ArbiterHandle};
use actix_web::{App, dev::ServerHandle, web};
use tokio::sync::mpsc;

pub(crate) use self::routes::of_page;
pub use self::server_state::StateCell;
use crate::{
    access::{Access, with_cors},
    connections::{self, Connections, HttpListen, HttpServing},
    socket::{Binding, ListenAddress, SocketFile},
};

/// Where to listen, and with how many threads.
#[derive(Clone)]
pub struct Listen {
    /// Where, and encrypted with what. Port 0 picks a free one.
    pub bindings: Vec<Binding>,
    /// Threads that serve connections, and run the engine.
    pub workers: usize,
    /// How long `StopHttp { graceful: true }` waits for connections.
    pub exit_timeout: Duration,
    /// The connections of all gateways.
    pub connections: Arc<Connections>,
    /// Who may ask for what.
    pub access: Arc<Access>,
    /// How long a client may take nothing of an answer; zero: for ever.
    pub stalled: Duration,
}

/// Owns the running server; it keeps listening until told to stop.
pub struct HttpGateway {
    server: ServerHandle,
    files: Vec<SocketFile>,
}

/// A gateway that listens.
pub struct Started {
    /// To stop it.
    pub gateway: Addr<HttpGateway>,
    /// What it is bound to.
    pub addresses: Vec<ListenAddress>,
    /// One per worker: their threads are the engine's. They end with the gateway.
    pub workers: Vec<ArbiterHandle>,
}

/// Stops listening; gracefully: after the answers under way are written. Ends the workers' threads.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopHttp {
    /// Wait for answers under way.
    pub graceful: bool,
}

impl Actor for HttpGateway {
    type Context = Context<Self>;
}

impl Handler<StopHttp> for HttpGateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, stop: StopHttp, _: &mut Self::Context) -> Self::Result {
        // The files go now: the process may end before this actor is dropped.
        self.files.clear();
        Box::pin(self.server.stop(stop.graceful))
    }
}

/// Listens at once; answers for models as soon as `cell` holds a server state. Must run in an actix
/// system.
pub async fn start(cell: StateCell, listen: Listen) -> io::Result<Started> {
    let (sender, mut started) = mpsc::unbounded_channel();
    let HttpServing { server, addresses, files } = build(cell, &listen, sender)?;
    let gateway = HttpGateway { server: server.handle(), files }.start();
    let mut running = actix_rt::spawn(server);
    let mut workers: HashMap<ThreadId, ArbiterHandle> = HashMap::new();
    while workers.len() < listen.workers.max(1) {
        tokio::select! {
            Some(WorkerStarted { thread, arbiter }) = started.recv() => {
                workers.insert(thread, arbiter);
            }
            ended = &mut running => {
                ended.map_err(io::Error::other)??;
                return Err(io::Error::other("the HTTP server ended while it started"));
            }
        }
    }
    Ok(Started { gateway, addresses, workers: workers.into_values().collect() })
}

/// A thread that serves connections says so once for each address.
struct WorkerStarted {
    thread: ThreadId,
    arbiter: ArbiterHandle,
}

fn build(
    cell: StateCell,
    listen: &Listen,
    started: mpsc::UnboundedSender<WorkerStarted>,
) -> io::Result<HttpServing> {
    let access = listen.access.clone();
    let http = HttpListen {
        bindings: &listen.bindings,
        workers: listen.workers,
        exit_timeout: listen.exit_timeout,
        connections: &listen.connections,
        stalled: listen.stalled,
    };
    let origins = access.origins.clone();
    connections::serve(&http, move || {
        // Called on each worker's own thread, once per address.
        let (thread, arbiter) = (std::thread::current().id(), Arbiter::current());
        let _ = started.send(WorkerStarted { thread, arbiter });
        App::new()
            .app_data(web::Data::from(cell.clone()))
            .wrap_fn({
                let origins = origins.clone();
                move |request, service| {
                    let request = connections::head_as_get(request_head::detached(request));
                    let busy = connections::mark_busy(&request);
                    connections::stay_busy(busy, with_cors(&origins, request, service))
                }
            })
            .configure(|app| routes::configure(app, &access))
            .default_service(web::to(unknown_path::not_found))
    })
}

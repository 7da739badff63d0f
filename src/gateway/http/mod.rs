//! The HTTP gateway: an actor that owns the listener, whose connections the engine's threads serve.

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

use std::{io, sync::Arc, time::Duration};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_web::{App, web};

pub(crate) use self::routes::of_page;
pub use self::server_state::StateCell;
use crate::{
    access::{Access, with_cors},
    connections::{self, Connections, HttpListen, HttpServing, ServingThreads},
    socket::{Binding, ListenAddress},
};

/// Where to listen, and with how many threads.
#[derive(Clone)]
pub struct Listen {
    /// Where, and encrypted with what. Port 0 picks a free one.
    pub bindings: Vec<Binding>,
    /// Threads that serve connections, and run the engine.
    pub threads: ServingThreads,
    /// How long `StopHttp` waits for answers under way.
    pub exit_timeout: Duration,
    /// The connections of all gateways.
    pub connections: Arc<Connections>,
    /// Who may ask for what.
    pub access: Arc<Access>,
    /// How long a client may take nothing of an answer; zero: for ever.
    pub stalled: Duration,
}

/// Owns the listener; it listens until it is told to stop.
pub struct HttpGateway(HttpServing);

/// Stops accepting; answered once the answers under way are written.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopHttp;

impl Actor for HttpGateway {
    type Context = Context<Self>;
}

impl Handler<StopHttp> for HttpGateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopHttp, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.0.stop())
    }
}

/// Listens at once, and answers where; answers for models as soon as `cell` holds a server state.
/// Must run in an actix system.
pub fn start(
    cell: StateCell,
    listen: &Listen,
) -> io::Result<(Addr<HttpGateway>, Vec<ListenAddress>)> {
    let access = listen.access.clone();
    let http = HttpListen {
        bindings: &listen.bindings,
        threads: &listen.threads,
        exit_timeout: listen.exit_timeout,
        connections: &listen.connections,
        stalled: listen.stalled,
    };
    let origins = access.origins.clone();
    let serving = connections::serve(&http, move || {
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
    })?;
    let addresses = serving.addresses.clone();
    Ok((HttpGateway(serving).start(), addresses))
}

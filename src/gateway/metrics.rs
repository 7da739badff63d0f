//! The metrics gateway: `GET /metrics` in Prometheus's text format, counters under Triton's names.

mod connections;
mod health;
mod instances;
mod memory;
mod models;
mod regions;
mod render;
mod response_cache;
mod sequences;
mod steps;

use std::{io, sync::Arc, time::Duration};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_web::{
    App, HttpResponse,
    dev::Service,
    http::header,
    web::{self, Data},
};

use self::render::render;
use crate::{
    ServerState,
    connections::{
        ConnectionLimits, Connections, HttpListen, HttpServing, ServingThreads, head_as_get,
        mark_busy, serve, stay_busy,
    },
    dashboard,
    socket::{Binding, ListenAddress},
};
use troupe_base::metrics::Metrics;

/// How long a stop waits for answers under way.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The actor that owns the listener of the metrics and its connections.
pub struct MetricsGateway(HttpServing);

impl MetricsGateway {
    /// Listens on every address and answers where; to be called on a thread of the actix system.
    pub fn start(
        state: &ServerState,
        metrics: &Metrics,
        bindings: &[Binding],
        threads: &ServingThreads,
    ) -> io::Result<(Addr<MetricsGateway>, Vec<ListenAddress>)> {
        let source = Data::new((state.clone(), metrics.clone()));
        let pages = state.clone();
        let was_ready = Arc::default();
        let settings = &state.settings;
        let connections = Connections::new(ConnectionLimits::of_metrics(), &settings.budget);
        let listen = HttpListen {
            bindings,
            threads,
            exit_timeout: EXIT_TIMEOUT,
            connections: &connections,
            stalled: settings.stalled,
        };
        let serving = serve(&listen, move || {
            let methods = web::resource("/metrics").get(answer);
            App::new()
                .wrap_fn(|request, service| {
                    let request = head_as_get(request);
                    stay_busy(mark_busy(&request), service.call(request))
                })
                .app_data(source.clone())
                .service(methods)
                .configure(|app| health::configure(app, &pages, &was_ready))
                .configure(|app| dashboard::configure(app, &pages))
        })?;
        let addresses = serving.addresses.clone();
        Ok((Actor::start(MetricsGateway(serving)), addresses))
    }
}

impl Actor for MetricsGateway {
    type Context = Context<Self>;
}

/// Stops accepting; answered once the answers under way are out.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopMetrics;

impl Handler<StopMetrics> for MetricsGateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: StopMetrics, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.0.stop())
    }
}

async fn answer(source: Data<(ServerState, Metrics)>) -> HttpResponse {
    // Of many models it takes a while, and this thread also says whether the server lives.
    let rendered = web::block(move || {
        let (state, metrics) = &**source;
        render(&state.repository.catalog.load(), metrics, &state.settings)
    });
    match rendered.await {
        Ok(Ok(text)) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/plain; charset=utf-8"))
            .body(text),
        Ok(Err(error)) => HttpResponse::InternalServerError().body(error.to_string()),
        Err(_) => HttpResponse::ServiceUnavailable().body("no thread is left for the metrics"),
    }
}

#[cfg(test)]
mod tests;

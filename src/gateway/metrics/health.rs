//! Health on the metrics port, whose thread serves no inference: a busy server is not taken for dead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use actix_web::{
    HttpResponse, Route,
    web::{self, Data},
};
use tokio::time::timeout;

use crate::{
    ServerState,
    access::{Endpoint, add_guarded},
};
use troupe_options::Api;

/// Models whose own code says whether they are ready have so long; then the last answer stands.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// What is asked, and what was answered last.
struct HealthSource {
    state: ServerState,
    was_ready: Arc<AtomicBool>,
}

/// Adds `/v2/health/live` and `/v2/health/ready`, as the HTTP port has them.
pub(super) fn configure(
    app: &mut web::ServiceConfig,
    state: &ServerState,
    was_ready: &Arc<AtomicBool>,
) {
    app.app_data(Data::new(HealthSource { state: state.clone(), was_ready: was_ready.clone() }));
    let access = &state.settings.http_access;
    let endpoint = Endpoint::reading(Api::Health);
    let mut on = |path: &str, route: Route| {
        add_guarded(app, access, endpoint, web::resource(path).route(route));
    };
    on("/v2/health/live", web::get().to(live));
    on("/v2/health/ready", web::get().to(ready));
}

async fn live(health: Data<HealthSource>) -> HttpResponse {
    answer(&health.state, health.state.is_live())
}

async fn ready(health: Data<HealthSource>) -> HttpResponse {
    let is_ready = match timeout(READY_TIMEOUT, health.state.is_ready()).await {
        Ok(is_ready) => {
            health.was_ready.store(is_ready, Relaxed);
            is_ready
        }
        Err(_) => health.was_ready.load(Relaxed),
    };
    answer(&health.state, is_ready)
}

fn answer(state: &ServerState, is_well: bool) -> HttpResponse {
    if state.lifecycle.is_exiting() {
        return HttpResponse::ServiceUnavailable()
            .json(serde_json::json!({ "error": "Server exiting" }));
    }
    if is_well { HttpResponse::Ok().finish() } else { HttpResponse::BadRequest().finish() }
}

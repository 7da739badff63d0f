//! Which handler answers which path.

use actix_web::{
    Route,
    guard::{Any, Get, Post},
    web,
};

use super::{generate, graph, health, infer, logging, metadata, refusal, repository, tap, trace};

/// Paths are tried in this order: the busiest come first, and a fixed path before a pattern that
/// fits it too.
pub(super) fn configure(app: &mut web::ServiceConfig) {
    let mut on = |path: &str, route: Route| {
        let others = web::to(refusal::method_not_allowed);
        app.service(web::resource(path).route(route).default_service(others));
    };
    on("/v2/models/{model}/infer", web::post().to(infer::infer));
    on("/v2/models/{model}/versions/{version}/infer", web::post().to(infer::infer));
    on("/v2/models/{model}/generate", web::post().to(generate::generate));
    on("/v2/models/{model}/versions/{version}/generate", web::post().to(generate::generate));
    let stream = || web::post().to(generate::generate_stream);
    on("/v2/models/{model}/generate_stream", stream());
    on("/v2/models/{model}/versions/{version}/generate_stream", stream());
    on("/v2/health/live", web::get().to(health::live));
    on("/v2/health/ready", web::get().to(health::ready));
    on("/v2", web::get().to(metadata::server));
    on("/v2/", web::get().to(metadata::server));
    on("/v2/models/stats", web::get().to(metadata::statistics));
    on("/v2/models/{model}", web::get().to(metadata::model));
    on("/v2/models/{model}/versions/{version}", web::get().to(metadata::model));
    on("/v2/models/{model}/ready", web::get().to(health::model_ready));
    on("/v2/models/{model}/versions/{version}/ready", web::get().to(health::model_ready));
    on("/v2/models/{model}/config", web::get().to(metadata::model_config));
    on("/v2/models/{model}/versions/{version}/config", web::get().to(metadata::model_config));
    on("/v2/models/{model}/stats", web::get().to(metadata::statistics));
    on("/v2/models/{model}/versions/{version}/stats", web::get().to(metadata::statistics));
    on("/v2/models/{model}/graph", web::get().to(graph::graph));
    on("/v2/models/{model}/versions/{version}/graph", web::get().to(graph::graph));
    on("/v2/models/{model}/tap", web::post().to(tap::tap));
    on("/v2/models/{model}/versions/{version}/tap", web::post().to(tap::tap));
    on("/v2/repository/index", web::post().to(repository::index));
    on("/v2/repository/{repository}/index", web::post().to(repository::index_of_one));
    on("/v2/repository/models/{model}/load", web::post().to(repository::load));
    on("/v2/repository/models/{model}/unload", web::post().to(repository::unload));
    let either = || web::route().guard(Any(Get()).or(Post()));
    on("/v2/trace/setting", either().to(trace::setting));
    on("/v2/models/{model}/trace/setting", either().to(trace::setting));
    let settings = web::resource("/v2/logging").route(web::get().to(logging::settings));
    let others = web::to(refusal::method_not_allowed);
    app.service(settings.route(web::post().to(logging::change)).default_service(others));
    for path in NOT_BUILT {
        app.route(path, web::to(refusal::not_built));
    }
}

const NOT_BUILT: &[&str] = &[
    "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/unregister",
    "/v2/systemsharedmemory/region/{region}/{what}",
    "/v2/cudasharedmemory/status",
    "/v2/cudasharedmemory/unregister",
    "/v2/cudasharedmemory/region/{region}/{what}",
];

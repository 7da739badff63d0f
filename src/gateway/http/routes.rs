//! Which handler answers which path, and which access it asks for.

use std::sync::Arc;

use actix_web::{
    Route,
    guard::{Any, Get, Post},
    web,
};

use super::{
    generate, graph, health, infer, logging, logs, metadata, reference, repository, root_page,
    shared_memory, tap, trace, unknown_path,
};
use crate::access::{Access, Endpoint, add_guarded};
use troupe_options::Api;

/// Adds resources; each says to which group it belongs, and whether it changes anything.
struct Routes<'a> {
    app: &'a mut web::ServiceConfig,
    access: &'a Arc<Access>,
}

impl Routes<'_> {
    fn reads(&mut self, api: Api, path: &str, route: Route) {
        self.add(Endpoint::reading(api), path, vec![route]);
    }

    /// Names all models: not for those to whom the repository index is closed.
    fn lists(&mut self, api: Api, path: &str, route: Route) {
        let also = Some(Api::ModelRepository);
        self.add(Endpoint { also, ..Endpoint::reading(api) }, path, vec![route]);
    }

    fn changes(&mut self, api: Api, path: &str, route: Route) {
        self.add(Endpoint::changing(api), path, vec![route]);
    }

    fn add(&mut self, endpoint: Endpoint, path: &str, routes: Vec<Route>) {
        let others = web::to(unknown_path::method_not_allowed);
        let resource = web::resource(path).default_service(others);
        let resource = routes.into_iter().fold(resource, |resource, it| resource.route(it));
        add_guarded(self.app, self.access, endpoint, resource);
    }
}

/// Paths are tried in this order: the busiest come first, and a fixed path before a pattern that
/// fits it too.
pub(super) fn configure(app: &mut web::ServiceConfig, access: &Arc<Access>) {
    let mut on = Routes { app, access };
    of_inference(&mut on);
    of_models(&mut on);
    of_the_server(&mut on);
}

/// What our own page asks a version of a model, beside the metrics: how its path ends, and the route.
pub(crate) fn of_page() -> [(&'static str, Route); 2] {
    [
        ("infer", web::post().to(infer::infer)),
        ("generate_stream", web::post().to(generate::generate_stream)),
    ]
}

fn of_inference(on: &mut Routes<'_>) {
    let api = Api::Inference;
    for name in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        on.reads(api, &format!("{name}/infer"), web::post().to(infer::infer));
    }
    for name in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        on.reads(api, &format!("{name}/generate"), web::post().to(generate::generate));
        let stream = web::post().to(generate::generate_stream);
        on.reads(api, &format!("{name}/generate_stream"), stream);
    }
}

fn of_models(on: &mut Routes<'_>) {
    on.reads(Api::Health, "/v2/health/live", web::get().to(health::live));
    on.reads(Api::Health, "/v2/health/ready", web::get().to(health::ready));
    on.reads(Api::Metadata, "/v2", web::get().to(metadata::server));
    on.reads(Api::Metadata, "/v2/", web::get().to(metadata::server));
    on.reads(Api::Metadata, "/", web::get().to(root_page::root_page));
    on.lists(Api::Metadata, "/v2/openapi.json", web::get().to(reference::openapi));
    on.lists(Api::Metadata, "/v2/docs", web::get().to(reference::page));
    on.reads(Api::Metadata, "/v2/docs.css", web::get().to(reference::style));
    // The repository index says the same.
    on.reads(Api::ModelRepository, "/v2/models", web::get().to(metadata::models));
    on.reads(Api::Statistics, "/v2/models/stats", web::get().to(metadata::statistics));
    for name in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        let path = |end: &str| format!("{name}{end}");
        on.reads(Api::Metadata, name, web::get().to(metadata::model));
        on.reads(Api::Health, &path("/ready"), web::get().to(health::model_ready));
        on.reads(Api::ModelConfig, &path("/config"), web::get().to(metadata::model_config));
        on.reads(Api::Statistics, &path("/stats"), web::get().to(metadata::statistics));
        on.reads(Api::Troupe, &path("/graph"), web::get().to(graph::graph));
        // It shows what others send.
        on.changes(Api::Troupe, &path("/tap"), web::post().to(tap::tap));
    }
    // So does what models print.
    on.changes(Api::Troupe, "/v2/models/{model}/logs", web::get().to(logs::logs));
}

fn of_the_server(on: &mut Routes<'_>) {
    let api = Api::ModelRepository;
    on.reads(api, "/v2/repository/index", web::post().to(repository::index));
    let index_of_one = web::post().to(repository::index_of_one);
    on.reads(api, "/v2/repository/{repository}/index", index_of_one);
    on.changes(api, "/v2/repository/models/{model}/load", web::post().to(repository::load));
    on.changes(api, "/v2/repository/models/{model}/unload", web::post().to(repository::unload));
    let either = || web::route().guard(Any(Get()).or(Post()));
    on.changes(Api::Trace, "/v2/trace/setting", either().to(trace::setting));
    on.changes(Api::Trace, "/v2/models/{model}/trace/setting", either().to(trace::setting));
    let settings = vec![web::get().to(logging::settings), web::post().to(logging::change)];
    on.add(Endpoint::changing(Api::Logging), "/v2/logging", settings);
    of_shared_memory(on);
}

/// A name may be missing: then all regions are meant, or the handler says that there must be one.
fn of_shared_memory(on: &mut Routes<'_>) {
    let api = Api::SharedMemory;
    for name in ["", "/region/{region}"] {
        let system = |end: &str| format!("/v2/systemsharedmemory{name}/{end}");
        on.reads(api, &system("status"), web::get().to(shared_memory::status));
        on.changes(api, &system("register"), web::post().to(shared_memory::register));
        on.changes(api, &system("unregister"), web::post().to(shared_memory::unregister));
        let cuda = |end: &str| format!("/v2/cudasharedmemory{name}/{end}");
        on.reads(api, &cuda("status"), web::get().to(shared_memory::cuda_status));
        on.changes(api, &cuda("register"), web::post().to(shared_memory::cuda_register));
        on.changes(api, &cuda("unregister"), web::post().to(shared_memory::cuda_unregister));
    }
}

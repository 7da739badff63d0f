//! The page of live graphs on the metrics port: what there is, and what each ensemble does right
//! now.
//!
//! Nothing in it comes from anywhere else, and it can be read without its script.

mod assets;
mod blocks;
mod index;
mod model;
mod page;
#[cfg(test)]
mod tests;
mod workbench;

use actix_web::{
    HttpRequest, HttpResponse, Route,
    http::{StatusCode, header},
    web::{self, Data},
};
use serde::Deserialize;

use self::{
    assets::{SCRIPT, STYLE},
    page::{Page, PageUpdate},
};
use super::{
    ServerState,
    access::{Endpoint, add_guarded},
    reference_page::{self, ReferenceLinks},
    service_urls::host_of,
    status::status,
    web_page::{self, response},
};
use troupe_base::{
    error::{Error, Result},
    model::parse_version,
};
use troupe_draw as draw;
use troupe_options::Api;

const PLAIN: &str = "text/plain; charset=utf-8";

/// Adds the pages, unless they are not allowed.
pub fn configure(app: &mut web::ServiceConfig, state: &ServerState) {
    if !state.settings.allow_dashboard {
        return;
    }
    app.app_data(Data::new(state.clone()));
    let access = &state.settings.http_access;
    let endpoint = Endpoint::reading(Api::Troupe);
    workbench::configure(app, state);
    let mut on = |path: &str, route: Route| {
        add_guarded(app, access, endpoint, web::resource(path).route(route));
    };
    on("/", web::get().to(index_page));
    on("/docs", web::get().to(reference));
    on("/docs.css", web::get().to(reference_style));
    on("/changes", web::get().to(index_changes));
    on("/dashboard.js", web::get().to(script));
    on("/dashboard.css", web::get().to(style));
    for kind in ["ensemble", "model"] {
        on(&format!("/{kind}/{{name}}"), web::get().to(model_page));
        on(&format!("/{kind}/{{name}}/changes"), web::get().to(model_changes));
    }
}

#[derive(Deserialize)]
struct PageQuery {
    version: Option<String>,
}

impl PageQuery {
    fn version(&self) -> Result<Option<i64>> {
        parse_version(self.version.as_deref().unwrap_or_default())
    }
}

async fn index_page(state: Data<ServerState>, http: HttpRequest) -> HttpResponse {
    let host = host_header(&http);
    drawn(move || html(&state, StatusCode::OK, &host, &index::page(&state))).await
}

/// By which name, and port, a browser asks.
fn host_header(http: &HttpRequest) -> String {
    let header = http.headers().get(header::HOST).and_then(|it| it.to_str().ok());
    header.unwrap_or_default().to_owned()
}

async fn reference(state: Data<ServerState>, http: HttpRequest) -> HttpResponse {
    let api = state.settings.urls.api(host_of(&http));
    drawn(move || {
        let document = format!("{api}/v2/openapi.json");
        let links = ReferenceLinks { api: &api, style: "/docs.css", openapi: &document };
        let text = reference_page::page(&state, &links);
        Drawn { code: StatusCode::OK, media_type: web_page::HTML, text }
    })
    .await
}

async fn reference_style() -> HttpResponse {
    response(StatusCode::OK, web_page::CSS).body(reference_page::STYLE)
}

async fn index_changes(state: Data<ServerState>) -> HttpResponse {
    drawn(move || json(&index::update(&state))).await
}

async fn model_page(
    state: Data<ServerState>,
    name: web::Path<String>,
    query: web::Query<PageQuery>,
    http: HttpRequest,
) -> HttpResponse {
    let host = host_header(&http);
    drawn(move || {
        let page = query.version().and_then(|version| model::page(&state, &name, version));
        match page {
            Ok(page) => html(&state, StatusCode::OK, &host, &page),
            Err(error) => {
                let page = model::missing(&state, &name, query.version().ok(), &error);
                html(&state, code(&error), &host, &page)
            }
        }
    })
    .await
}

async fn model_changes(
    state: Data<ServerState>,
    name: web::Path<String>,
    query: web::Query<PageQuery>,
) -> HttpResponse {
    drawn(move || match query.version().and_then(|version| model::update(&state, &name, version)) {
        Ok(update) => json(&update),
        Err(error) => {
            let update = model::update_of_missing(&state, &name, &error);
            Drawn { code: code(&error), ..json(&update) }
        }
    })
    .await
}

/// What is answered, once it is drawn.
struct Drawn {
    code: StatusCode,
    media_type: &'static str,
    text: String,
}

/// Draws on another thread: of large ensembles it takes a while, and this one also says whether the
/// server lives.
async fn drawn(draw: impl FnOnce() -> Drawn + Send + 'static) -> HttpResponse {
    match web::block(draw).await {
        Ok(Drawn { code, media_type, text }) => response(code, media_type).body(text),
        Err(_) => HttpResponse::ServiceUnavailable().body("no thread is left to draw on"),
    }
}

async fn script() -> HttpResponse {
    response(StatusCode::OK, web_page::SCRIPT).body(SCRIPT)
}

async fn style() -> HttpResponse {
    response(StatusCode::OK, web_page::CSS).body(draw::style() + STYLE)
}

fn html(state: &ServerState, code: StatusCode, host: &str, page: &Page) -> Drawn {
    let text = page.html(state.settings.http_access.page_token(host));
    Drawn { code, media_type: web_page::HTML, text }
}

fn json(update: &PageUpdate) -> Drawn {
    match serde_json::to_string(update) {
        Ok(text) => Drawn { code: StatusCode::OK, media_type: "application/json", text },
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            Drawn { code, media_type: PLAIN, text: error.to_string() }
        }
    }
}

fn code(error: &Error) -> StatusCode {
    StatusCode::from_u16(status(error.kind()).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

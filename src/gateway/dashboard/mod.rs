//! The page of live graphs on the metrics port: what there is, and what each ensemble does right now.
//!
//! Nothing in it comes from anywhere else, and it can be read without its script.

mod blocks;
mod index;
mod model;
mod page;
#[cfg(test)]
mod tests;

use actix_web::{
    HttpResponse,
    http::{StatusCode, header},
    web::{self, Data},
};
use serde::{Deserialize, Serialize};

use self::page::Page;
use super::{Gate, status::status};
use troupe_base::{
    error::{Error, Result},
    model::parse_version,
};
use troupe_draw::{self as draw, Changes};

/// Scripts and styles come from here, and what looks like one in a name is none.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const SCRIPT: &str = include_str!("dashboard.js");
const STYLE: &str = include_str!("dashboard.css");

/// Adds the pages, unless they are not allowed.
pub fn configure(app: &mut web::ServiceConfig, gate: &Gate) {
    if !gate.settings.allow_dashboard {
        return;
    }
    app.app_data(Data::new(gate.clone()))
        .service(web::resource("/").get(index_page))
        .service(web::resource("/changes").get(index_changes))
        .service(web::resource("/dashboard.js").get(script))
        .service(web::resource("/dashboard.css").get(style));
    for kind in ["ensemble", "model"] {
        app.service(web::resource(format!("/{kind}/{{name}}")).get(model_page))
            .service(web::resource(format!("/{kind}/{{name}}/changes")).get(model_changes));
    }
}

/// What a page that is open asks for each second.
#[derive(Serialize)]
struct News {
    /// Another value than the page's: it has to be read anew.
    structure: String,
    changes: Changes,
}

#[derive(Deserialize)]
struct Asked {
    version: Option<String>,
}

impl Asked {
    fn version(&self) -> Result<Option<i64>> {
        parse_version(self.version.as_deref().unwrap_or_default())
    }
}

async fn index_page(gate: Data<Gate>) -> HttpResponse {
    shown(StatusCode::OK, &index::page(&gate))
}

async fn index_changes(gate: Data<Gate>) -> HttpResponse {
    told(&index::news(&gate))
}

async fn model_page(
    gate: Data<Gate>,
    name: web::Path<String>,
    asked: web::Query<Asked>,
) -> HttpResponse {
    let page = asked.version().and_then(|version| model::page(&gate, &name, version));
    match page {
        Ok(page) => shown(StatusCode::OK, &page),
        Err(error) => shown(code(&error), &model::missing(&gate, &name, &error)),
    }
}

async fn model_changes(
    gate: Data<Gate>,
    name: web::Path<String>,
    asked: web::Query<Asked>,
) -> HttpResponse {
    match asked.version().and_then(|version| model::news(&gate, &name, version)) {
        Ok(news) => told(&news),
        Err(error) => answer(code(&error), "text/plain; charset=utf-8").body(error.to_string()),
    }
}

async fn script() -> HttpResponse {
    answer(StatusCode::OK, "text/javascript; charset=utf-8").body(SCRIPT)
}

async fn style() -> HttpResponse {
    answer(StatusCode::OK, "text/css; charset=utf-8").body(draw::style() + STYLE)
}

fn shown(code: StatusCode, page: &Page) -> HttpResponse {
    answer(code, "text/html; charset=utf-8").body(page.html())
}

fn told(news: &News) -> HttpResponse {
    match serde_json::to_string(news) {
        Ok(text) => answer(StatusCode::OK, "application/json").body(text),
        Err(error) => HttpResponse::InternalServerError().body(error.to_string()),
    }
}

fn answer(code: StatusCode, media_type: &str) -> actix_web::HttpResponseBuilder {
    let mut answer = HttpResponse::build(code);
    answer
        .content_type(media_type)
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header((header::CACHE_CONTROL, "no-store"));
    answer
}

fn code(error: &Error) -> StatusCode {
    StatusCode::from_u16(status(error.kind()).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

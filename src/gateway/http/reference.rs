//! The API described: for programs as OpenAPI, for people as a page.

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};

use super::{
    json,
    refusal::{self, Refusal},
    server_state::state,
};
use crate::{
    openapi,
    reference_page::{self, ReferenceLinks},
    service_urls::host_of,
    web_page,
};
use troupe_base::error::Error;

/// The OpenAPI document.
pub(super) async fn openapi(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?.clone();
    // Of many models it takes a while.
    let text = web::block(move || openapi::document(&state).to_string()).await;
    Ok(json::respond_text(text.map_err(|_| no_thread())?))
}

/// The page, unless pages are not allowed.
pub(super) async fn page(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?.clone();
    if !state.settings.allow_dashboard {
        return Ok(refusal::not_found(": --allow-dashboard=false turned the page off"));
    }
    let api = state.settings.urls.api(host_of(&http));
    let drawn = web::block(move || {
        let links =
            ReferenceLinks { api: &api, style: "/v2/docs.css", openapi: "/v2/openapi.json" };
        reference_page::page(&state, &links)
    });
    let text = drawn.await.map_err(|_| no_thread())?;
    Ok(web_page::response(StatusCode::OK, web_page::HTML).body(text))
}

/// Its style sheet.
pub(super) async fn style() -> HttpResponse {
    web_page::response(StatusCode::OK, web_page::CSS).body(reference_page::STYLE)
}

fn no_thread() -> Error {
    Error::unavailable("no thread is left to write on")
}

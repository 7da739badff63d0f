//! What `/` of the HTTP port answers: where to go from here, for people and for programs.

use actix_web::{
    HttpRequest, HttpResponse,
    http::{StatusCode, header},
};
use serde::Serialize;

use super::{json, refusal::Refusal, server_state::state};
use crate::{
    ServerState,
    metadata::{self, ServerMetadata},
    service_urls::host_of,
    web_page,
};
use troupe_base::text::escape_markup;

/// Where things are: paths of this port, and the address of the page.
#[derive(Serialize)]
struct Pointer {
    #[serde(flatten)]
    server: ServerMetadata,
    links: Links,
}

#[derive(Serialize)]
struct Links {
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
    /// For people; only where pages are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    docs: Option<&'static str>,
    openapi: &'static str,
    metadata: &'static str,
    models: &'static str,
    health: &'static str,
}

/// As HTML for browsers, as JSON for everybody else.
pub(super) async fn root_page(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let page = page_address(state, host_of(&http));
    let links = Links {
        page,
        docs: state.settings.allow_dashboard.then_some("/v2/docs"),
        openapi: "/v2/openapi.json",
        metadata: "/v2",
        models: "/v2/models",
        health: "/v2/health/ready",
    };
    let accepted = http.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok());
    if accepted.is_some_and(|it| it.contains("text/html")) {
        let page = web_page::plain_page(&state.settings.server_id, &markup(&links));
        return Ok(web_page::response(StatusCode::OK, web_page::HTML).body(page));
    }
    json::respond(&Pointer { server: metadata::server(state), links })
}

/// The address of the page for a reader to whom this machine is `host`, if there is a page.
fn page_address(state: &ServerState, host: &str) -> Option<String> {
    let settings = &state.settings;
    let url = settings.urls.metrics.get().filter(|_| settings.allow_dashboard)?;
    Some(format!("{}/", url.text(host)?))
}

fn markup(links: &Links) -> String {
    let item = |address: &str, what: &str| {
        let address = escape_markup(address);
        format!("<li><a href=\"{address}\">{address}</a> {what}</li>\n")
    };
    let mut out = "<ul>\n".to_owned();
    if let Some(page) = &links.page {
        out += &item(page, "models, live graphs, and a form to try each of them");
    }
    if let Some(docs) = links.docs {
        out += &item(docs, "how to ask each model");
    }
    out += &item(links.openapi, "the same for programs");
    out += &item(links.models, "which models there are");
    out += &item(links.metadata, "what this server is");
    out + "</ul>\n"
}

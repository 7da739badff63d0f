//! The graph of an ensemble with its live numbers.

use actix_web::{HttpRequest, HttpResponse, http::header, web};
use serde::Deserialize;

use super::{
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use crate::graph::{self, LiveGraphFormat};
use troupe_base::error::Error;

#[derive(Deserialize)]
struct GraphQuery {
    format: Option<String>,
}

/// In the format that `?format=` names, or that `Accept` likes best.
pub(super) async fn graph(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    let state = state(&http)?;
    let asked = web::Query::<GraphQuery>::from_query(http.query_string());
    let asked = asked.map_err(|it| Error::invalid(format!("failed to parse the query: {it}")))?;
    let accept = http.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok());
    let format = match &asked.format {
        Some(name) => name.parse()?,
        None => LiveGraphFormat::accepted(accept.unwrap_or_default()),
    };
    let text = graph::write(&state.model(name, version)?, format)?;
    Ok(HttpResponse::Ok()
        .content_type(format.media_type())
        .insert_header((header::VARY, "Accept"))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        // Names in a picture are a stranger's: whatever they are, nothing in it may run.
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'",
        ))
        .body(text))
}

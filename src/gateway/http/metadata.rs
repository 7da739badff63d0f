//! What the server and its models are, and what they counted, as JSON.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;

use super::refusal::Refusal;
use crate::{Gate, describe};
use troupe_base::{
    config,
    error::{Error, Result},
    model::parse_version,
};

/// The gate, or the answer of a server that is still starting.
pub(super) fn gate(http: &HttpRequest) -> Result<&Gate> {
    let door = http.app_data::<web::Data<std::sync::OnceLock<Gate>>>();
    door.and_then(|it| it.get()).ok_or_else(|| Error::unavailable("Server not ready"))
}

/// The model and the version a path names.
pub(super) fn model_and_version(http: &HttpRequest) -> Result<(&str, Option<i64>)> {
    let path = http.match_info();
    Ok((path.query("model"), parse_version(path.query("version"))?))
}

/// Name, version and extensions.
pub(super) async fn server(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    json(&describe::server(gate(&http)?))
}

/// A model's inputs and outputs.
pub(super) async fn model(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    json(&describe::model(gate(&http)?, name, version)?)
}

/// A model's completed config.
pub(super) async fn model_config(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    let model = gate(&http)?.model(name, version)?;
    Ok(json_text(config::json::print(&model.config.proto)))
}

#[derive(Serialize)]
struct Statistics {
    model_stats: Vec<describe::ModelStatistics>,
}

/// Counters of all models, of a model, or of one version.
pub(super) async fn statistics(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    json(&Statistics { model_stats: describe::statistics(gate(&http)?, name, version)? })
}

/// 200 with a value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<HttpResponse, Refusal> {
    let text = serde_json::to_string(value).map_err(|it| Error::internal(it.to_string()))?;
    Ok(json_text(text))
}

fn json_text(text: String) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(text)
}

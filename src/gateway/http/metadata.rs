//! What the server and its models are, and what they counted, as JSON.

use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;

use super::{
    json,
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use crate::metadata;
use troupe_base::{config, error::Result};

/// Name, version and extensions.
pub(super) async fn server(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    json::respond(&metadata::server(state(&http)?))
}

#[derive(Serialize)]
struct ModelsBody {
    models: Vec<metadata::ModelSummary>,
}

/// Every model: what runs it, its state, and why it is not ready.
pub(super) async fn models(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    json::respond(&ModelsBody { models: metadata::models(state(&http)?) })
}

/// A model's inputs and outputs.
pub(super) async fn model(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    json::respond(&metadata::model(state(&http)?, name, version)?)
}

/// A model's completed config.
pub(super) async fn model_config(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    let model = state(&http)?.model(name, version)?;
    Ok(json::respond_text(config::json::print(&model.shown_config().proto)))
}

#[derive(Serialize)]
struct StatisticsBody {
    model_stats: Vec<metadata::ModelStatistics>,
}

/// Counters of all models, of a model, or of one version.
pub(super) async fn statistics(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    json::respond(&StatisticsBody {
        model_stats: metadata::statistics(state(&http)?, name, version)?,
    })
}

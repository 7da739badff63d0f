//! Liveness and readiness of the server and of models.

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};

use super::{
    Door,
    metadata::{gate, model_and_version},
    refusal::Refusal,
};
use crate::{Gate, describe};
use troupe_base::error::Error;

type Shared = web::Data<std::sync::OnceLock<Gate>>;

/// The process works, whether or not it has models yet.
pub(super) async fn live(door: Shared) -> Result<HttpResponse, Refusal> {
    let is_live = door.get().is_none_or(Gate::is_live);
    answer(&door.into_inner(), is_live)
}

/// Models can be asked.
pub(super) async fn ready(door: Shared) -> Result<HttpResponse, Refusal> {
    let is_ready = match door.get() {
        Some(gate) => gate.is_ready().await,
        None => false,
    };
    answer(&door.into_inner(), is_ready)
}

/// One model can be asked.
pub(super) async fn model_ready(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    if describe::is_model_ready(gate(&http)?, name, version).await? {
        return Ok(HttpResponse::Ok().finish());
    }
    Err(Error::invalid("Model version not ready").into())
}

fn answer(door: &Door, is_well: bool) -> Result<HttpResponse, Refusal> {
    if door.get().is_some_and(|it| it.lifecycle.is_exiting()) {
        return Err(Refusal::Exiting);
    }
    let status = if is_well { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    Ok(HttpResponse::new(status))
}

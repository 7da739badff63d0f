//! Liveness and readiness of the server and of models.

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};

use super::{
    refusal::Refusal,
    server_state::{StateCell, model_and_version, state},
};
use crate::{ServerState, metadata};
use troupe_base::error::Error;

type StateData = web::Data<std::sync::OnceLock<ServerState>>;

/// The process works, whether or not it has models yet.
pub(super) async fn live(cell: StateData) -> Result<HttpResponse, Refusal> {
    let is_live = cell.get().is_none_or(ServerState::is_live);
    answer(&cell.into_inner(), is_live)
}

/// Models can take requests.
pub(super) async fn ready(cell: StateData) -> Result<HttpResponse, Refusal> {
    let is_ready = match cell.get() {
        Some(state) => state.is_ready().await,
        None => false,
    };
    answer(&cell.into_inner(), is_ready)
}

/// One model can take requests.
pub(super) async fn model_ready(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, version) = model_and_version(&http)?;
    if metadata::is_model_ready(state(&http)?, name, version).await? {
        return Ok(HttpResponse::Ok().finish());
    }
    Err(Error::invalid("Model version not ready").into())
}

fn answer(cell: &StateCell, is_well: bool) -> Result<HttpResponse, Refusal> {
    if cell.get().is_some_and(|it| it.lifecycle.is_exiting()) {
        return Err(Refusal::Exiting);
    }
    let status = if is_well { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    Ok(HttpResponse::new(status))
}

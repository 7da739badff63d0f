//! The server's state as handlers of HTTP requests get at it, and what paths say about models.

use std::sync::{Arc, OnceLock};

use actix_web::{HttpRequest, web};

use crate::{ServerState, connections::ServedConnection};
use troupe_base::{
    budget::Charge,
    error::{Error, Result},
    model::parse_version,
};

/// The state, once there is one: the threads that serve exist before the repository they run.
pub type StateCell = Arc<OnceLock<ServerState>>;

/// The state, or the answer of a server that is still starting.
pub(super) fn state(http: &HttpRequest) -> Result<&ServerState> {
    let cell = http.app_data::<web::Data<OnceLock<ServerState>>>();
    cell.and_then(|cell| cell.get()).ok_or_else(|| Error::unavailable("Server not ready"))
}

/// Begins to count the memory of a request; RESOURCE_EXHAUSTED if there is none for it.
pub(super) fn charge(http: &HttpRequest) -> Result<Charge> {
    let served = http.conn_data::<ServedConnection>();
    served.map_or_else(|| Ok(Charge::default()), |it| it.connection().charge())
}

/// The model and the version a path names.
pub(super) fn model_and_version(http: &HttpRequest) -> Result<(&str, Option<i64>)> {
    let path = http.match_info();
    Ok((path.query("model"), parse_version(path.query("version"))?))
}

//! What was logged about a model, as JSON.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    json,
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use troupe_base::error::Error;

#[derive(Deserialize)]
struct LogsQuery {
    /// The number of a line.
    #[serde(default)]
    after: u64,
}

#[derive(Serialize)]
struct LogsBody<'a> {
    lines: Vec<LineBody<'a>>,
    /// What to ask for next as `after`.
    next: u64,
}

#[derive(Serialize)]
struct LineBody<'a> {
    number: u64,
    text: &'a str,
}

/// The last lines of the log about a model of the repository, whether it is loaded or not.
pub(super) async fn logs(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let (name, _) = model_and_version(&http)?;
    let state = state(&http)?;
    let asked = web::Query::<LogsQuery>::from_query(http.query_string());
    let asked = asked.map_err(|it| Error::invalid(format!("failed to parse the query: {it}")))?;
    let catalog = state.repository.catalog.load();
    if !catalog.entries.contains_key(name) {
        // It has the words for a model that is unknown.
        state.model_of(&catalog, name, None)?;
    }
    let (lines, next) = state.settings.log.about(name, asked.after);
    let lines = lines.iter().map(|it| LineBody { number: it.number, text: &it.text });
    json::respond(&LogsBody { lines: lines.collect(), next })
}

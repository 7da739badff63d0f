//! The model repository extension: index, load and unload.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::{
    body, json,
    json_values::{Members, Scalar},
    limits,
    refusal::Refusal,
    server_state::state,
};
use crate::metadata;
use troupe_base::error::{Error, Result};
use troupe_repository::Overrides;

/// What the bodies of these requests may hold.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RepositoryBody<'a> {
    #[serde(borrow)]
    ready: Scalar<'a>,
    #[serde(borrow)]
    parameters: Members<'a>,
}

/// Every model and its state.
pub(super) async fn index(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    let only_ready = limits::off_thread(text.len(), move || only_ready(&parse(&text)?)).await?;
    json::respond(&metadata::index(state, only_ready)?)
}

/// Repositories have no names here, nor in Triton.
pub(super) async fn index_of_one() -> Result<HttpResponse, Refusal> {
    Err(Error::unsupported("'repository_name' specification is not supported").into())
}

/// Loads or reloads a model.
pub(super) async fn load(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    state.lifecycle.check_serving()?;
    // Files may be big, and decoding them is not what this thread is for.
    let overrides = limits::off_thread(text.len(), move || overrides(&text)).await?;
    state.settings.http_access.check_files(overrides.files.len())?;
    let name = http.match_info().query("model").to_owned();
    finish(state.repository.control.load(name, overrides)).await
}

/// Takes a model out.
pub(super) async fn unload(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    state.lifecycle.check_serving()?;
    let size = text.len();
    let work = move || unload_dependents(&parse(&text)?);
    let dependents = limits::off_thread(size, work).await?;
    let name = http.match_info().query("model").to_owned();
    finish(state.repository.control.unload(name, dependents)).await
}

/// Runs a change to its end even if the client does not wait for it.
async fn finish(
    change: futures_util::future::BoxFuture<'static, Result<()>>,
) -> Result<HttpResponse, Refusal> {
    let done = actix_rt::spawn(change).await;
    done.map_err(|it| Error::internal(format!("the load or unload was aborted: {it}")))??;
    Ok(HttpResponse::Ok().finish())
}

fn parse(text: &[u8]) -> Result<RepositoryBody<'_>> {
    if text.is_empty() { Ok(RepositoryBody::default()) } else { json::parse(text) }
}

fn only_ready(body: &RepositoryBody<'_>) -> Result<bool> {
    match body.ready {
        Scalar::Absent => Ok(false),
        Scalar::Bool(it) => Ok(it),
        _ => Err(Error::invalid("Invalid value for 'ready': expected a boolean")),
    }
}

fn unload_dependents(body: &RepositoryBody<'_>) -> Result<bool> {
    let members = body.parameters.list("parameters")?;
    let found = members.iter().find(|(key, _)| key == "unload_dependents");
    found.map_or(Ok(false), |(key, value)| value.bool(key))
}

fn overrides(text: &[u8]) -> Result<Overrides> {
    let body = parse(text)?;
    let mut config = None;
    let mut files = BTreeMap::new();
    for (key, value) in body.parameters.list("parameters")? {
        if key == "config" {
            config = Some(value.text(key)?.to_owned());
        } else if let Some(path) = key.strip_prefix("file:") {
            files.insert(path.to_owned(), contents(key, value)?);
        } else {
            return Err(Error::invalid(format!(
                "Unrecognized load parameter '{key}' with type '{}'",
                value.type_name()
            )));
        }
    }
    Ok(Overrides { config, files })
}

fn contents(key: &str, value: &Scalar<'_>) -> Result<Vec<u8>> {
    BASE64_STANDARD
        .decode(value.text(key)?)
        .map_err(|it| Error::invalid(format!("Unable to parse '{key}': not base64: {it}")))
}

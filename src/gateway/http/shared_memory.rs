//! The shared memory extensions: register, status and unregister, of the system's memory and
//! CUDA's.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

use super::{
    body, json,
    json_values::{self, Members, Scalar},
    limits,
    refusal::{Refusal, error_body},
    server_state::state,
};
use crate::shared_memory::{self, SharedMemory, cuda};
use troupe_base::error::{Error, ErrorKind, Result};

/// What a register request may hold, of either kind.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RegisterBody<'a> {
    #[serde(borrow)]
    key: Scalar<'a>,
    #[serde(borrow)]
    offset: Scalar<'a>,
    #[serde(borrow)]
    byte_size: Scalar<'a>,
    #[serde(borrow)]
    raw_handle: Members<'a>,
    #[serde(borrow)]
    device_id: Scalar<'a>,
}

/// A region as `status` lists it.
#[derive(Serialize)]
struct RegionJson<'a> {
    name: &'a str,
    key: &'a str,
    offset: u64,
    byte_size: u64,
}

/// The name in the path; empty without one.
fn region(http: &HttpRequest) -> String {
    let mut name = http.match_info().query("region").to_owned();
    // The router decodes all but these; the last of them cannot make another.
    for (encoded, letter) in [("%2F", "/"), ("%2f", "/"), ("%2B", "+"), ("%2b", "+"), ("%25", "%")]
    {
        if name.contains(encoded) {
            name = name.replace(encoded, letter);
        }
    }
    name
}

fn regions(http: &HttpRequest) -> Result<&Arc<SharedMemory>> {
    shared_memory::allowed(state(http)?.settings.shared_memory.as_ref())
}

/// The region of a path, or all.
pub(super) async fn status(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    let registry = state(&http)?.settings.shared_memory.as_ref();
    let found = shared_memory::status(registry, &region(&http))?;
    let listed: Vec<RegionJson<'_>> = found
        .iter()
        .map(|it| RegionJson {
            name: &it.name,
            key: &it.key,
            offset: it.offset,
            byte_size: it.byte_size,
        })
        .collect();
    json::respond(&listed)
}

/// Gives a part of an object the name in the path.
pub(super) async fn register(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let limit = state(&http)?.settings.max_input_size;
    let text = body::receive_all(&http, payload, limit).await?;
    let regions = regions(&http)?.clone();
    let (name, size) = (region(&http), text.len());
    let work = move || {
        let body = parse(&text)?;
        let offset = match &body.offset {
            Scalar::Absent => 0,
            offset => offset.count("offset")?,
        };
        let key = required(&body.key, "key")?.text("key")?;
        let byte_size = required(&body.byte_size, "byte_size")?.count("byte_size")?;
        regions.register(&name, key, offset, byte_size)
    };
    match limits::off_thread(size, work).await {
        Ok(()) => Ok(HttpResponse::Ok().finish()),
        // Triton answers this one with 409, and others of its kind with 400.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok(HttpResponse::Conflict().content_type("application/json").body(error_body(&error)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Forgets the region of a path, or all.
pub(super) async fn unregister(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    regions(&http)?.unregister(&region(&http));
    Ok(HttpResponse::Ok().finish())
}

/// A list of nothing, unless a region is named.
pub(super) async fn cuda_status(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    cuda::status(state(&http)?.settings.shared_memory.as_ref(), &region(&http))?;
    json::respond(&[(); 0])
}

/// Refuses, once the request itself is right.
pub(super) async fn cuda_register(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let limit = state(&http)?.settings.max_input_size;
    let text = body::receive_all(&http, payload, limit).await?;
    regions(&http)?;
    let name = region(&http);
    let size = text.len();
    Err(limits::off_thread(size, move || refuse_cuda(&name, &text)).await?.into())
}

fn refuse_cuda(name: &str, text: &[u8]) -> Result<Error> {
    let body = parse(text)?;
    let handle = body.raw_handle.list("raw_handle")?;
    let Some((key, handle)) = handle.iter().find(|(key, _)| key == "b64") else {
        return Err(missing("raw_handle"));
    };
    required(&body.device_id, "device_id")?.count("device_id")?;
    required(&body.byte_size, "byte_size")?.count("byte_size")?;
    let handle = BASE64_STANDARD.decode(handle.text(key)?).ok();
    Ok(cuda::refuse(name, handle.as_deref()))
}

/// There is nothing to forget.
pub(super) async fn cuda_unregister(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    regions(&http)?;
    Ok(HttpResponse::Ok().finish())
}

fn parse(text: &[u8]) -> Result<RegisterBody<'_>> {
    if text.is_empty() { Ok(RegisterBody::default()) } else { json_values::parse(text) }
}

fn required<'a, 'b>(value: &'a Scalar<'b>, field: &str) -> Result<&'a Scalar<'b>> {
    match value {
        Scalar::Absent => Err(missing(field)),
        value => Ok(value),
    }
}

fn missing(field: &str) -> Error {
    Error::invalid(format!("Shared memory register request has no '{field}' field"))
}

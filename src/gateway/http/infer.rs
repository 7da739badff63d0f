//! One inference over HTTP: receive, read, ask, write.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, dev::Payload, http::header::HeaderMap, web};

use super::{
    access,
    body::{self, Body, Plan},
    coding::{self, Coding},
    decode::{self, Asked, Layout},
    encode::Answer,
    metadata::{gate, model_and_version},
    refusal::Refusal,
    traced::{self, Traced},
};
use crate::{Gate, access::Access, ask::ask};
use troupe_base::{
    config::BackendTraits,
    error::{Error, Result},
    model::Model,
    request::{Context, Response, Wanted},
    tensor::DataType,
};

/// Answers one request; a client that leaves cancels it, as this future is dropped then.
pub(super) async fn infer(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut payload = payload.into_inner();
    let mut access = access::begin(&http);
    let result = answer(&http, &mut payload, &mut access).await;
    access::ended(&mut access, &result);
    let refusal = match result {
        Ok(response) => return Ok(response),
        Err(refusal) => refusal,
    };
    if !matches!(refusal, Refusal::Chunks) {
        body::drain(&mut payload).await;
    }
    Err(refusal)
}

async fn answer(
    http: &HttpRequest,
    payload: &mut Payload,
    access: &mut Access,
) -> Result<HttpResponse, Refusal> {
    let gate = gate(http)?;
    let _in_flight = gate.lifecycle.enter()?;
    let (name, version) = model_and_version(http)?;
    let model = gate.model(name, version)?;
    if model.config.decoupled {
        let text = "HTTP end point doesn't support models with decoupled transaction policy";
        return Err(Error::unsupported(text).into());
    }
    let traced = traced::begin(gate, &model, http);
    match serve((http, payload), gate, model, (access, &traced)).await {
        Ok(response) => Ok(traced::sent(traced, response)),
        Err(refusal) => {
            traced::refused(&traced, &refusal);
            Err(refusal)
        }
    }
}

async fn serve(
    (http, payload): (&HttpRequest, &mut Payload),
    gate: &Gate,
    model: Arc<Model>,
    (access, traced): (&mut Access, &Traced),
) -> Result<HttpResponse, Refusal> {
    let layout = layout(http.headers())?;
    let body = receive(http, payload, gate, (&model, layout)).await?;
    access::received(access, http, body.bytes.len());
    traced::mark(traced, "HTTP_RECV_END");
    let mut asked = read(body, layout, &model, gate.settings.max_input_size).await?;
    access.works(&model, traced, &mut asked.request);
    let context = asked.request.context.clone();
    let wanted = asked.request.wanted.clone();
    let response = ask(&model, asked.request, traced.clone()).await?;
    let response = asked.classes.apply(&model, response).await?;
    let answer = Whole { model, context, response, wanted, binary: asked.binary };
    traced::mark(traced, "HTTP_SEND_START");
    write(answer, coding::of_answer(http.headers())).await
}

/// What the binary extension's header says.
fn layout(headers: &HeaderMap) -> Result<Layout> {
    let Some(value) = headers.get("inference-header-content-length") else {
        return Ok(Layout::Json);
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let unable = || format!("Unable to parse Inference-Header-Content-Length, got: {text}");
    let digits = text.strip_prefix(['-', '+']).unwrap_or(&text);
    if digits.is_empty() || !digits.bytes().all(|it| it.is_ascii_digit()) {
        return Err(Error::invalid(unable()));
    }
    let number: i32 = text.parse().map_err(|_| {
        Error::invalid(format!(
            "Unable to parse Inference-Header-Content-Length, value is out of range [ {}, {} ], \
             got: {text}",
            i32::MIN,
            i32::MAX
        ))
    })?;
    match usize::try_from(number) {
        Ok(0) => Ok(Layout::Raw),
        Ok(length) => Ok(Layout::Mixed(length)),
        Err(_) => {
            let length = headers.get("content-length").and_then(|it| it.to_str().ok());
            let length = length.unwrap_or("0");
            Err(Error::invalid(format!(
                "inference header size should be in range (0, {length}), got: {number}"
            )))
        }
    }
}

async fn receive(
    http: &HttpRequest,
    payload: &mut Payload,
    gate: &Gate,
    (model, layout): (&Model, Layout),
) -> Result<Body, Refusal> {
    let is_plain = coding::of_request(http.headers())? == Coding::Identity;
    let header = match layout {
        Layout::Json => None,
        Layout::Mixed(length) => Some(length),
        Layout::Raw => Some(0),
    };
    let header = header.filter(|_| is_plain && runs_in_processes(model));
    let plan = Plan {
        limit: gate.settings.max_input_size,
        too_big: match layout {
            Layout::Json => body::json_too_big,
            Layout::Mixed(_) => body_too_big,
            Layout::Raw => raw_too_big,
        },
        shared: header.map(|length| (&gate.settings.segments, length)),
    };
    let body = body::receive(http, payload, &plan).await?;
    if is_plain {
        return Ok(body);
    }
    Ok(Body::plain(coding::inflate(http.headers(), body.bytes, &plan).await?))
}

/// Does a worker process read what clients send to this model?
fn runs_in_processes(model: &Model) -> bool {
    BackendTraits::of(&model.config.backend).shares_memory
        || model.steps.iter().any(|it| runs_in_processes(it))
}

fn body_too_big(size: usize, limit: usize) -> Error {
    Error::invalid(format!(
        "request body has a byte_size ({size} bytes) that exceeds the maximum allowed value of \
         {limit} bytes. Use --http-max-input-size to increase the limit."
    ))
}

fn raw_too_big(size: usize, limit: usize) -> Error {
    Error::invalid(format!(
        "Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of \
         {limit} bytes. Use --http-max-input-size to increase the limit."
    ))
}

async fn read(body: Body, layout: Layout, model: &Arc<Model>, limit: usize) -> Result<Asked> {
    let has_strings = model.config.inputs.iter().any(|it| it.dtype == DataType::Bytes);
    let effort = match layout {
        Layout::Mixed(header) if !has_strings => header,
        Layout::Raw if !has_strings => 0,
        // All of it is looked at: text is parsed, strings are counted.
        _ => body.bytes.len(),
    };
    let model = model.clone();
    body::off_thread(effort, move || decode::decode(&body, layout, &model.config, limit)).await
}

/// An answer that can move to another thread.
struct Whole {
    model: Arc<Model>,
    context: Arc<Context>,
    response: Response,
    wanted: Wanted,
    binary: Wanted,
}

impl Whole {
    fn borrow(&self) -> Answer<'_> {
        Answer {
            model: &self.model,
            id: &self.context.id,
            response: &self.response,
            wanted: &self.wanted,
            binary: &self.binary,
        }
    }
}

async fn write(answer: Whole, coding: Coding) -> Result<HttpResponse, Refusal> {
    let is_plain = coding == Coding::Identity;
    let effort = if is_plain { answer.borrow().text_size() } else { 4 * answer.borrow().size() };
    let encoded = body::off_thread(effort, move || {
        let encoded = answer.borrow().encode()?;
        Ok(if is_plain { encoded } else { encoded.compress(coding) })
    })
    .await?;
    Ok(encoded.into_response())
}

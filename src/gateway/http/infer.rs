//! One inference over HTTP: receive, read, ask, write.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, dev::Payload, http::header::HeaderMap, web};

use super::{
    access,
    body::{self, Body, ReceivePlan},
    coding::{self, Coding},
    decode::{self, BodyLayout, InferParams},
    encode::InferAnswer,
    limits::{self, SizeLimit},
    refusal::Refusal,
    server_state::{model_and_version, state},
    traced::{self, Traced},
};
use crate::{ServerState, access::Access, ask::ask};
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
    let state = state(http)?;
    let _in_flight = state.lifecycle.enter()?;
    let (name, version) = model_and_version(http)?;
    let model = state.model(name, version)?;
    if model.config.decoupled {
        let text = "HTTP end point doesn't support models with decoupled transaction policy";
        return Err(Error::unsupported(text).into());
    }
    let traced = traced::begin(state, &model, http);
    match serve((http, payload), state, model, (access, &traced)).await {
        Ok(response) => Ok(traced::sent(traced, response)),
        Err(refusal) => {
            traced::refused(&traced, &refusal);
            Err(refusal)
        }
    }
}

async fn serve(
    (http, payload): (&HttpRequest, &mut Payload),
    state: &ServerState,
    model: Arc<Model>,
    (access, traced): (&mut Access, &Traced),
) -> Result<HttpResponse, Refusal> {
    let layout = layout(http.headers())?;
    let body = receive(http, payload, state, (&model, layout)).await?;
    access::received(access, http, body.bytes.len());
    traced::mark(traced, "HTTP_RECV_END");
    let mut asked = read(body, layout, &model, state.settings.max_input_size).await?;
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
fn layout(headers: &HeaderMap) -> Result<BodyLayout> {
    let Some(value) = headers.get("inference-header-content-length") else {
        return Ok(BodyLayout::Json);
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
        Ok(0) => Ok(BodyLayout::Raw),
        Ok(length) => Ok(BodyLayout::Mixed(length)),
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
    state: &ServerState,
    (model, layout): (&Model, BodyLayout),
) -> Result<Body, Refusal> {
    let is_plain = coding::of_request(http.headers())? == Coding::Identity;
    let header = match layout {
        BodyLayout::Json => None,
        BodyLayout::Mixed(length) => Some(length),
        BodyLayout::Raw => Some(0),
    };
    let header = header.filter(|_| is_plain && runs_in_processes(model));
    let most = state.settings.max_input_size;
    let limit = match layout {
        BodyLayout::Json => SizeLimit::of_json(most),
        BodyLayout::Mixed(_) => SizeLimit::of_mixed(most),
        BodyLayout::Raw => SizeLimit::of_raw(most),
    };
    let shared = header.map(|length| (&state.settings.segments, length));
    let plan = ReceivePlan { limit, shared };
    let body = body::receive(http, payload, &plan).await?;
    if is_plain {
        return Ok(body);
    }
    Ok(Body::plain(coding::inflate(http.headers(), body.bytes, limit).await?))
}

/// Does a worker process read what clients send to this model?
fn runs_in_processes(model: &Model) -> bool {
    BackendTraits::of(&model.config.backend).shares_memory
        || model.steps.iter().any(|it| runs_in_processes(it))
}

async fn read(
    body: Body,
    layout: BodyLayout,
    model: &Arc<Model>,
    limit: usize,
) -> Result<InferParams> {
    let has_strings = model.config.inputs.iter().any(|it| it.dtype == DataType::Bytes);
    let effort = match layout {
        BodyLayout::Mixed(header) if !has_strings => header,
        BodyLayout::Raw if !has_strings => 0,
        // All of it is looked at: text is parsed, strings are counted.
        _ => body.bytes.len(),
    };
    let model = model.clone();
    limits::off_thread(effort, move || decode::decode(&body, layout, &model.config, limit)).await
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
    fn borrow(&self) -> InferAnswer<'_> {
        InferAnswer {
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
    let encoded = limits::off_thread(effort, move || {
        let encoded = answer.borrow().encode()?;
        Ok(if is_plain { encoded } else { encoded.compress(coding) })
    })
    .await?;
    Ok(encoded.into_response())
}

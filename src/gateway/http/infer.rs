//! One inference over HTTP: receives and decodes the request, encodes the answer.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, dev::Payload, http::header::HeaderMap, web};

use super::{
    body::{self, Body, ReceivePlan, SharedBody},
    coding::{self, Coding},
    decode::{self, BodyLayout},
    encode::{HEADER_LENGTH, InferAnswer},
    hints,
    limits::{self, SizeLimit},
    observe,
    refusal::Refusal,
    server_state::{charge, state},
};
use crate::{
    ServerState, decoupled,
    inference::{Deliveries, InferParams, MAX_BYTES_ON_THREAD, Observed},
    settings::Settings,
    shared_memory::RegionAccess,
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Context, Response, Wanted},
    tensor::{DataType, OwnedPool},
};

/// Answers one request; a client that leaves cancels it, as this future is dropped then.
pub(super) async fn infer(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut payload = payload.into_inner();
    let mut observed = observe::begin(&http);
    let result = answer(&http, &mut payload, &mut observed).await;
    match observe::finish(&mut observed, result) {
        Ok(response) => Ok(response),
        Err(refusal) => Err(body::refuse(payload, refusal)),
    }
}

async fn answer(
    http: &HttpRequest,
    payload: &mut Payload,
    observed: &mut Observed,
) -> Result<HttpResponse, Refusal> {
    let state = state(http)?;
    let admitted = observe::admit(observed, state, http)?;
    let model = &admitted.model;
    decoupled::check(
        model,
        "HTTP end point doesn't support models with decoupled transaction policy",
        "generate_stream in place of infer, or gRPC's ModelStreamInfer",
    )?;
    observe::forward(observed, state, http)?;
    observe::sample(observed, state, model, http);
    let layout = layout(http.headers())?;
    let body = receive(http, payload, state, model, layout).await?;
    observe::received(observed, http, body.bytes.len());
    let is_no_object = layout == BodyLayout::Json && hints::is_no_object(&body.bytes);
    let params = read(body, layout, model, &state.settings).await;
    let params = params.map_err(|error| match is_no_object {
        true => hints::of_form(error, http.headers(), &model.config),
        false => error,
    });
    let params = admitted.noted(params)?;
    let InferParams { request, deliveries } = params;
    let (context, wanted) = (request.context.clone(), request.wanted.clone());
    let response = admitted.run(request, &deliveries, observed).await?;
    observed.trace.send_started();
    let answer = OwnedAnswer { model: admitted.model, context, response, wanted, deliveries };
    write(answer, coding::of_answer(http.headers())).await
}

/// What the binary extension's header says.
fn layout(headers: &HeaderMap) -> Result<BodyLayout> {
    let Some(value) = headers.get(HEADER_LENGTH) else {
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
    model: &Model,
    layout: BodyLayout,
) -> Result<Body, Refusal> {
    let coding = coding::of_request(http.headers())?;
    let header = match layout {
        BodyLayout::Json => None,
        BodyLayout::Mixed(length) => Some(length),
        BodyLayout::Raw => Some(0),
    };
    let header = header.filter(|_| coding == Coding::Identity);
    let most = state.settings.max_input_size;
    let limit = match layout {
        BodyLayout::Json => SizeLimit::of_json(most),
        BodyLayout::Mixed(_) => SizeLimit::of_mixed(most),
        BodyLayout::Raw => SizeLimit::of_raw(most),
    };
    let pool = || OwnedPool { pool: state.settings.segments.clone(), owner: model.owner };
    let shared = header.filter(|_| model.shares_memory);
    let shared = shared.map(|header| SharedBody { pool: pool(), header });
    let charge = charge(http)?;
    let announced = body::announced(http.headers());
    limit.check(announced, &charge)?;
    model.check_room(match header {
        Some(header) => announced.saturating_sub(header),
        None => limits::least_tensor_bytes(announced),
    })?;
    let body =
        body::receive(http, payload, ReceivePlan { limit, announced, shared, charge }).await?;
    body.inflated(coding, limit).await
}

async fn read(
    body: Body,
    layout: BodyLayout,
    model: &Arc<Model>,
    settings: &Settings,
) -> Result<InferParams> {
    let limit = settings.max_input_size;
    let regions = RegionAccess::new(settings, model);
    let has_strings = model.config.inputs.iter().any(|it| it.dtype == DataType::Bytes);
    let effort = match layout {
        BodyLayout::Mixed(header) if !has_strings => header,
        BodyLayout::Raw if !has_strings => 0,
        // All of it is looked at: text is parsed, strings are counted.
        _ => body.bytes.len(),
    };
    let effort = match effort <= MAX_BYTES_ON_THREAD && !regions.is_none() {
        true => effort.max(bytes_in_regions(&body.bytes, layout)),
        false => effort,
    };
    let model = model.clone();
    let decode = move || decode::decode(&body, layout, &model.config, limit, &regions);
    limits::off_thread(effort, decode).await
}

/// About how many bytes of regions a request names, without parsing it.
fn bytes_in_regions(body: &[u8], layout: BodyLayout) -> usize {
    let text = match layout {
        BodyLayout::Json => body,
        BodyLayout::Mixed(header) => body.get(..header).unwrap_or_default(),
        BodyLayout::Raw => &[],
    };
    // What stands between two quotes, and the next two: `:64,`.
    let mut parts = text.split(|byte| *byte == b'"');
    let mut sum = 0_usize;
    while parts.any(|part| part == b"shared_memory_byte_size") {
        let Some(value) = parts.next() else { break };
        let digits = value.iter().skip_while(|it| !it.is_ascii_digit());
        let number = digits.take_while(|it| it.is_ascii_digit()).fold(0_usize, |number, digit| {
            number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
        });
        sum = sum.saturating_add(number);
    }
    sum
}

/// An answer that can move to another thread.
struct OwnedAnswer {
    model: Arc<Model>,
    context: Arc<Context>,
    response: Response,
    wanted: Wanted,
    deliveries: Deliveries,
}

impl OwnedAnswer {
    fn borrow(&self) -> InferAnswer<'_> {
        InferAnswer {
            model: &self.model,
            id: &self.context.id,
            response: &self.response,
            wanted: &self.wanted,
            deliveries: &self.deliveries,
        }
    }
}

async fn write(answer: OwnedAnswer, coding: Coding) -> Result<HttpResponse, Refusal> {
    let is_plain = coding == Coding::Identity;
    let effort = if is_plain { answer.borrow().text_size() } else { 4 * answer.borrow().size() };
    let encoded = limits::off_thread(effort, move || {
        let charge = &answer.context.charge;
        let encoded = answer.borrow().encode(charge)?;
        Ok(if is_plain { encoded } else { encoded.compress(coding, charge) })
    })
    .await?;
    Ok(encoded.into_response())
}

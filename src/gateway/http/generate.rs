//! The generate extension: a flat JSON object in; one out, or one event for each response.

use std::{convert::Infallible, sync::Arc};

use actix_web::{
    HttpRequest, HttpResponse, ResponseError,
    dev::Payload,
    http::{StatusCode, header},
    web,
};
use bytes::Bytes;
use futures_util::stream;

use super::{
    body::{self, Body, ReceivePlan},
    coding::{self, Coding},
    elements::max_text_bytes,
    encode::MAX_PART_BYTES,
    generate_json, hints,
    limits::{self, SizeLimit},
    observe,
    refusal::{Refusal, error_body},
    server_state::{charge, state},
};
use crate::{
    ServerState,
    inference::{Answers, Deliveries, Encoding, InferParams, Observed, StreamEvent},
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Context, Part, Response},
};

/// Answers with exactly one response; a client that leaves cancels the request.
pub(super) async fn generate(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut payload = payload.into_inner();
    let mut observed = observe::begin(&http);
    let result = whole(&http, &mut payload, &mut observed).await;
    match observe::finish(&mut observed, result) {
        Ok(response) => Ok(response),
        Err(refusal) => Err(body::refuse(payload, refusal)),
    }
}

async fn whole(
    http: &HttpRequest,
    payload: &mut Payload,
    observed: &mut Observed,
) -> Result<HttpResponse, Refusal> {
    let mut generation = Generation::begin(http, payload, observed).await?;
    let response = generation.only(observed).await?;
    let text = generation.text(response, EventForm::Whole).await?;
    observed.trace.send_started();
    Ok(HttpResponse::Ok().content_type("application/json").body(text))
}

/// Answers with server-sent events, made as the client takes them. The first decides the status; a
/// client that leaves cancels the request.
pub(super) async fn generate_stream(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut payload = payload.into_inner();
    let mut observed = observe::begin(&http);
    let (generation, first) = match first(&http, &mut payload, &mut observed).await {
        Ok(begun) => begun,
        Err(refusal) => {
            let refusal = observe::finish(&mut observed, Err(refusal));
            return match refusal {
                Ok(response) => Ok(response),
                Err(refusal) => Err(body::refuse(payload, refusal)),
            };
        }
    };
    let (status, trace) = (first.status, observed.trace.clone());
    trace.send_started();
    let events = Events { generation, ready: first.text, observed, status };
    let response = HttpResponse::build(status)
        .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
        .streaming(stream::unfold(events, Events::next));
    Ok(observe::sending(trace, response))
}

/// What a stream begins with.
async fn first(
    http: &HttpRequest,
    payload: &mut Payload,
    observed: &mut Observed,
) -> Result<(Generation, Event), Refusal> {
    let mut generation = Generation::begin(http, payload, observed).await?;
    let first = match generation.answers.next(observed).await {
        Some(StreamEvent::Refused(error)) => return Err(error.into()),
        Some(StreamEvent::Part(part)) => generation.event(part).await,
        Some(StreamEvent::Last(result)) => generation.event(result.into()).await,
        Some(StreamEvent::End) | None => Event { status: StatusCode::OK, text: Bytes::new() },
    };
    Ok((generation, first))
}

/// A response, or a failure in its place, and what its status would be.
struct Event {
    status: StatusCode,
    text: Bytes,
}

/// A request that a model works on.
struct Generation {
    context: Arc<Context>,
    answers: Answers,
}

async fn receive(
    http: &HttpRequest,
    payload: &mut Payload,
    state: &ServerState,
    model: &Model,
    observed: &mut Observed,
) -> Result<Body, Refusal> {
    let most = state.settings.max_input_size;
    let limit = SizeLimit::of_json(most);
    let charge = charge(http)?;
    let announced = body::announced(http.headers());
    limit.check(announced, &charge)?;
    model.check_room(limits::least_tensor_bytes(announced))?;
    let plan = ReceivePlan { limit, announced, shared: None, charge };
    let body = body::receive(http, payload, plan).await?;
    observe::received(observed, http, body.bytes.len());
    Ok(body)
}

/// How a response is written.
#[derive(Clone, Copy)]
enum EventForm {
    Whole,
    Event,
}

impl EventForm {
    fn frame(self, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Bytes> {
        let (before, after): (&[u8], &[u8]) = match self {
            EventForm::Whole => (b"", b""),
            EventForm::Event => (b"data: ", b"\n\n"),
        };
        let mut text = before.to_vec();
        write(&mut text)?;
        text.extend_from_slice(after);
        Ok(text.into())
    }
}

impl Generation {
    async fn begin(
        http: &HttpRequest,
        payload: &mut Payload,
        observed: &mut Observed,
    ) -> Result<Generation, Refusal> {
        let state = state(http)?;
        let admitted = observe::admit(observed, state, http)?;
        if !matches!(coding::of_request(http.headers()), Ok(Coding::Identity)) {
            let text = "Unsupported content-encoding, only 'identity' is supported.";
            return Err(Error::invalid(text).into());
        }
        observe::forward(observed, state, http)?;
        observe::sample(observed, state, &admitted.model, http);
        let body = receive(http, payload, state, &admitted.model, observed).await?;
        let (effort, config) = (body.bytes.len(), admitted.model.config.clone());
        let most = state.settings.max_input_size;
        let is_no_object = hints::is_no_object(&body.bytes);
        let read = move || generate_json::decode(&body, &config, most);
        let read = limits::off_thread(effort, read).await.map_err(|error| match is_no_object {
            true => hints::of_form(error, http.headers(), &admitted.model.config),
            false => error,
        });
        let request = admitted.noted(read)?;
        let context = request.context.clone();
        let params = InferParams { request, deliveries: Deliveries::inline(Encoding::Text) };
        Ok(Generation { context, answers: admitted.stream(params, observed) })
    }

    /// The response of a model that gives no other.
    async fn only(&mut self, observed: &Observed) -> Result<Response> {
        let not_one = || {
            Error::internal(
                "generate expects model to produce exactly 1 response, use generate stream for \
                 model that generates various number of responses",
            )
        };
        let first = match self.answers.next(observed).await {
            // Without its credit a model that sent a large one would wait, and never come to the
            // end.
            Some(StreamEvent::Part(first)) => first.result?,
            Some(StreamEvent::Last(only)) => return only,
            Some(StreamEvent::Refused(error)) => return Err(error),
            Some(StreamEvent::End) | None => return Err(not_one()),
        };
        match self.answers.next(observed).await {
            Some(StreamEvent::End) => Ok(first),
            Some(
                StreamEvent::Part(Part { result: Err(error), .. }) | StreamEvent::Last(Err(error)),
            ) => Err(error),
            _ => Err(not_one()),
        }
    }

    /// The response's text.
    async fn text(&self, response: Response, form: EventForm) -> Result<Bytes> {
        let tensors = response.outputs.iter().flatten();
        let effort = tensors.map(|tensor| tensor.data().len()).sum();
        let (model, context) = (self.answers.model().clone(), self.context.clone());
        let write = move || {
            let tensors = response.outputs.iter().flatten();
            let mut hold = context.charge.reserve_answer(tensors.map(max_text_bytes).sum())?;
            let encode =
                |text: &mut Vec<u8>| generate_json::encode(&model, &context.id, &response, text);
            let text = form.frame(encode)?;
            hold.settle(text.len());
            Ok(hold.over(text))
        };
        limits::off_thread(effort, write).await
    }

    /// The event of a part. Its credit goes back here: the text is about to be sent.
    async fn event(&self, part: Part) -> Event {
        let error = match part.result {
            Ok(response) => match self.text(response, EventForm::Event).await {
                Ok(text) => return Event { status: StatusCode::OK, text },
                Err(error) => error,
            },
            Err(error) => error,
        };
        let text = format!("data: {}\n\n", error_body(&error)).into();
        Event { status: Refusal::from(error).status_code(), text }
    }
}

/// The rest of an answer.
struct Events {
    generation: Generation,
    /// Of an event: what was not sent yet.
    ready: Bytes,
    observed: Observed,
    status: StatusCode,
}

impl Events {
    /// The next bytes to send. Nothing is made ahead: a client that does not read stops its model.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        while self.ready.is_empty() {
            let part = match self.generation.answers.next(&self.observed).await {
                Some(StreamEvent::Part(part)) => part,
                Some(StreamEvent::Last(result)) => result.into(),
                Some(StreamEvent::Refused(error)) => Err(error).into(),
                Some(StreamEvent::End) | None => {
                    self.observed.line.ended(self.status.as_u16());
                    return None;
                }
            };
            self.ready = self.generation.event(part).await.text;
        }
        let part = self.ready.split_to(self.ready.len().min(MAX_PART_BYTES));
        self.observed.line.sent(part.len());
        Some((Ok(part), self))
    }
}

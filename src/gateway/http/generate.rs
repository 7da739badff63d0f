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
    access,
    body::{self, ReceivePlan},
    coding::{self, Coding},
    encode::PART,
    generate_json,
    limits::{self, SizeLimit},
    refusal::{Refusal, error_body},
    server_state::{model_and_version, state},
    traced::{self, Traced},
};
use crate::{
    ServerState,
    access::Access,
    ask::{Answers, Said, ask_many},
    lifecycle::InFlight,
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Context, Part, Request, Response},
};

/// Answers with exactly one response; a client that leaves cancels the request.
pub(super) async fn generate(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut access = access::begin(&http);
    let result = whole(&http, payload, &mut access).await;
    access::ended(&mut access, &result);
    result
}

async fn whole(
    http: &HttpRequest,
    payload: web::Payload,
    access: &mut Access,
) -> Result<HttpResponse, Refusal> {
    let mut underway = begin(http, payload, access).await?;
    let traced = underway.traced.clone();
    let text = match only(&mut underway.answers).await {
        Ok(response) => underway.text(response, EventForm::Whole).await,
        Err(error) => Err(error),
    };
    let text = text.map_err(Refusal::from).inspect_err(|it| traced::refused(&traced, it))?;
    traced::mark(&traced, "HTTP_SEND_START");
    Ok(traced::sent(traced, HttpResponse::Ok().content_type("application/json").body(text)))
}

/// Answers with server-sent events, made as the client takes them. The first decides the status; a
/// client that leaves cancels the request.
pub(super) async fn generate_stream(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut access = access::begin(&http);
    let (underway, (status, first)) = match first(&http, payload, &mut access).await {
        Ok(it) => it,
        Err(refusal) => {
            let result = Err(refusal);
            access::ended(&mut access, &result);
            return result;
        }
    };
    let traced = underway.traced.clone();
    let events = Events { underway, ready: first, access, status };
    traced::mark(&traced, "HTTP_SEND_START");
    let response = HttpResponse::build(status)
        .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
        .streaming(stream::unfold(events, Events::next));
    Ok(traced::sent(traced, response))
}

/// What a stream begins with: the status and its first event.
async fn first(
    http: &HttpRequest,
    payload: web::Payload,
    access: &mut Access,
) -> Result<(Underway, (StatusCode, Bytes)), Refusal> {
    let mut underway = begin(http, payload, access).await?;
    let first = match underway.answers.next().await {
        Some(Said::Refused(error)) => {
            let refusal = error.into();
            traced::refused(&underway.traced, &refusal);
            return Err(refusal);
        }
        Some(Said::Part(part)) => underway.event(part).await,
        Some(Said::Last(result)) => underway.event(result.into()).await,
        Some(Said::End) | None => (StatusCode::OK, Bytes::new()),
    };
    Ok((underway, first))
}

/// A request that a model works on.
struct Underway {
    model: Arc<Model>,
    context: Arc<Context>,
    answers: Answers,
    traced: Traced,
    _in_flight: InFlight,
}

async fn begin(
    http: &HttpRequest,
    payload: web::Payload,
    access: &mut Access,
) -> Result<Underway, Refusal> {
    let mut payload = payload.into_inner();
    let refusal = match ask(http, &mut payload, access).await {
        Ok(underway) => return Ok(underway),
        Err(refusal) => refusal,
    };
    if !matches!(refusal, Refusal::Chunks) {
        body::drain(&mut payload).await;
    }
    Err(refusal)
}

async fn ask(
    http: &HttpRequest,
    payload: &mut Payload,
    access: &mut Access,
) -> Result<Underway, Refusal> {
    let state = state(http)?;
    let in_flight = state.lifecycle.enter()?;
    let (name, version) = model_and_version(http)?;
    let model = state.model(name, version)?;
    if !matches!(coding::of_request(http.headers()), Ok(Coding::Identity)) {
        let text = "Unsupported content-encoding, only 'identity' is supported.";
        return Err(Error::invalid(text).into());
    }
    let traced = traced::begin(state, &model, http);
    let request = read((http, payload), state, &model, (access, &traced)).await;
    let request = request.inspect_err(|it| traced::refused(&traced, it))?;
    let context = request.context.clone();
    let answers = ask_many(model.clone(), request, traced.clone());
    Ok(Underway { model, context, answers, traced, _in_flight: in_flight })
}

async fn read(
    (http, payload): (&HttpRequest, &mut Payload),
    state: &ServerState,
    model: &Model,
    (access, traced): (&mut Access, &Traced),
) -> Result<Request, Refusal> {
    let limit = state.settings.max_input_size;
    let plan = ReceivePlan { limit: SizeLimit::of_json(limit), shared: None };
    let body = body::receive(http, payload, &plan).await?.bytes;
    traced::mark(traced, "HTTP_RECV_END");
    let (effort, config) = (body.len(), model.config.clone());
    let read = move || generate_json::decode(&body, &config, limit);
    access::received(access, http, effort);
    let mut request = limits::off_thread(effort, read).await?;
    access.works(model, traced, &mut request);
    Ok(request)
}

/// The response of a model that gives no other.
async fn only(answers: &mut Answers) -> Result<Response> {
    let not_one = || {
        Error::internal(
            "generate expects model to produce exactly 1 response, use generate stream for model \
             that generates various number of responses",
        )
    };
    let first = match answers.next().await {
        // Without its credit a model that sent a large one would wait, and never come to the end.
        Some(Said::Part(first)) => first.result?,
        Some(Said::Last(only)) => return only,
        Some(Said::Refused(error)) => return Err(error),
        Some(Said::End) | None => return Err(not_one()),
    };
    match answers.next().await {
        Some(Said::End) => Ok(first),
        Some(Said::Part(Part { result: Err(error), .. }) | Said::Last(Err(error))) => Err(error),
        _ => Err(not_one()),
    }
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

impl Underway {
    /// The response's text.
    async fn text(&self, response: Response, form: EventForm) -> Result<Bytes> {
        let tensors = response.outputs.iter().flatten();
        let effort = tensors.map(|it| it.data().len()).sum();
        let (model, context) = (self.model.clone(), self.context.clone());
        let write =
            move || form.frame(|text| generate_json::encode(&model, &context.id, &response, text));
        limits::off_thread(effort, write).await
    }

    /// A response, or a failure in its place, and what its status would be. Its credit goes back here:
    /// the text is about to be sent.
    async fn event(&self, part: Part) -> (StatusCode, Bytes) {
        let error = match part.result {
            Ok(response) => match self.text(response, EventForm::Event).await {
                Ok(text) => return (StatusCode::OK, text),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let text = format!("data: {}\n\n", error_body(&error));
        (Refusal::from(error).status_code(), text.into())
    }
}

/// The rest of an answer.
struct Events {
    underway: Underway,
    /// Of an event: what was not sent yet.
    ready: Bytes,
    access: Access,
    status: StatusCode,
}

impl Events {
    /// The next bytes to send. Nothing is made ahead: a client that does not read stops its model.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        while self.ready.is_empty() {
            let part = match self.underway.answers.next().await {
                Some(Said::Part(part)) => part,
                Some(Said::Last(result)) => result.into(),
                Some(Said::Refused(error)) => Err(error).into(),
                Some(Said::End) | None => {
                    self.access.ended(self.status.as_u16());
                    return None;
                }
            };
            self.ready = self.underway.event(part).await.1;
        }
        let part = self.ready.split_to(self.ready.len().min(PART));
        self.access.sent(part.len());
        Some((Ok(part), self))
    }
}

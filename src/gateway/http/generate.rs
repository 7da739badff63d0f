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
    body::{self, Plan},
    coding::{self, Coding},
    encode::PART,
    flat,
    metadata::{gate, model_and_version},
    refusal::{Refusal, error_json},
};
use crate::{
    error::{Error, Result},
    gateway::{
        ask::{Answers, Said, ask_many},
        settings::InFlight,
    },
    model::Model,
    request::{Context, Part, Response},
};

/// Answers with exactly one response; a client that leaves cancels the request.
pub(super) async fn generate(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut underway = begin(&http, payload).await?;
    let response = only(&mut underway.answers).await?;
    let text = underway.text(response, Form::Whole).await?;
    Ok(HttpResponse::Ok().content_type("application/json").body(text))
}

/// Answers with server-sent events, made as the client takes them. The first decides the status; a
/// client that leaves cancels the request.
pub(super) async fn generate_stream(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let mut underway = begin(&http, payload).await?;
    let (status, first) = match underway.answers.next().await {
        Some(Said::Refused(error)) => return Err(error.into()),
        Some(Said::Part(part)) => underway.event(part).await,
        Some(Said::Last(result)) => underway.event(result.into()).await,
        Some(Said::End) | None => (StatusCode::OK, Bytes::new()),
    };
    let events = Events { underway, ready: first };
    Ok(HttpResponse::build(status)
        .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
        .streaming(stream::unfold(events, Events::next)))
}

/// A request that a model works on.
struct Underway {
    model: Arc<Model>,
    context: Arc<Context>,
    answers: Answers,
    _in_flight: InFlight,
}

async fn begin(http: &HttpRequest, payload: web::Payload) -> Result<Underway, Refusal> {
    let mut payload = payload.into_inner();
    let refusal = match ask(http, &mut payload).await {
        Ok(underway) => return Ok(underway),
        Err(refusal) => refusal,
    };
    if !matches!(refusal, Refusal::Chunks) {
        body::drain(&mut payload).await;
    }
    Err(refusal)
}

async fn ask(http: &HttpRequest, payload: &mut Payload) -> Result<Underway, Refusal> {
    let gate = gate(http)?;
    let in_flight = gate.lifecycle.enter()?;
    let (name, version) = model_and_version(http)?;
    let model = gate.model(name, version)?;
    if !matches!(coding::of_request(http.headers()), Ok(Coding::Identity)) {
        let text = "Unsupported content-encoding, only 'identity' is supported.";
        return Err(Error::invalid(text).into());
    }
    let limit = gate.settings.max_input_size;
    let plan = Plan { limit, too_big: body::json_too_big, shared: None };
    let body = body::receive(http, payload, &plan).await?.bytes;
    let (effort, config) = (body.len(), model.config.clone());
    let read = move || flat::decode(&body, &config, limit);
    let request = body::off_thread(effort, read).await?;
    let context = request.context.clone();
    let answers = ask_many(model.clone(), request);
    Ok(Underway { model, context, answers, _in_flight: in_flight })
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
enum Form {
    Whole,
    Event,
}

impl Form {
    fn frame(self, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Bytes> {
        let (before, after): (&[u8], &[u8]) = match self {
            Form::Whole => (b"", b""),
            Form::Event => (b"data: ", b"\n\n"),
        };
        let mut text = before.to_vec();
        write(&mut text)?;
        text.extend_from_slice(after);
        Ok(text.into())
    }
}

impl Underway {
    /// The response's text.
    async fn text(&self, response: Response, form: Form) -> Result<Bytes> {
        let tensors = response.outputs.iter().flatten();
        let effort = tensors.map(|it| it.data().len()).sum();
        let (model, context) = (self.model.clone(), self.context.clone());
        let write = move || form.frame(|text| flat::encode(&model, &context.id, &response, text));
        body::off_thread(effort, write).await
    }

    /// A response, or a failure in its place, and what its status would be. Its credit goes back here:
    /// the text is about to be sent.
    async fn event(&self, part: Part) -> (StatusCode, Bytes) {
        let error = match part.result {
            Ok(response) => match self.text(response, Form::Event).await {
                Ok(text) => return (StatusCode::OK, text),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let text = format!("data: {}\n\n", error_json(&error.to_string()));
        (Refusal::from(error).status_code(), text.into())
    }
}

/// The rest of an answer.
struct Events {
    underway: Underway,
    /// Of an event: what was not sent yet.
    ready: Bytes,
}

impl Events {
    /// The next bytes to send. Nothing is made ahead: a client that does not read stops its model.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        while self.ready.is_empty() {
            let part = match self.underway.answers.next().await? {
                Said::Part(part) => part,
                Said::Last(result) => result.into(),
                Said::Refused(error) => Err(error).into(),
                Said::End => return None,
            };
            self.ready = self.underway.event(part).await.1;
        }
        let part = self.ready.split_to(self.ready.len().min(PART));
        Some((Ok(part), self))
    }
}

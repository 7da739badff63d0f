//! Requests over HTTP that are traced: what is marked on their way, and when they have ended.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use actix_web::{
    HttpRequest, HttpResponse,
    body::{BodySize, BoxBody, MessageBody},
};
use bytes::Bytes;

use super::refusal::Refusal;
use crate::ServerState;
pub(super) use crate::watch::{Traced, mark};
use troupe_base::{error::Error, model::Model, trace::TraceRecord};

/// Its head has come.
pub(super) fn begin(state: &ServerState, model: &Model, http: &HttpRequest) -> Traced {
    let header = |name: &str| {
        let values = http.headers().get_all(name).map(|it| it.to_str());
        let values = values.collect::<Result<Vec<_>, _>>().ok()?;
        (!values.is_empty()).then(|| values.join(","))
    };
    let record = state.tracer.sample(model.name(), &header, None)?;
    record.mark("HTTP_RECV_START", record.begun);
    Some(record)
}

/// Its client gets a refusal.
pub(super) fn refused(traced: &Traced, refusal: &Refusal) {
    if let Some(record) = traced {
        let error = match refusal {
            Refusal::Error(error) => error.clone(),
            other => Error::invalid(other.to_string()),
        };
        record.fail(&error);
    }
}

/// The same response; its trace ends once it is sent.
pub(super) fn sent(traced: Traced, response: HttpResponse) -> HttpResponse {
    match traced {
        Some(record) => response.map_body(|_, body| BoxBody::new(Sending { body, record })),
        None => response,
    }
}

struct Sending {
    body: BoxBody,
    record: Arc<TraceRecord>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.record.mark("HTTP_SEND_END", Instant::now());
    }
}

impl MessageBody for Sending {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

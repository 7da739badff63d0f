//! Requests over gRPC that are traced: what is marked on their way, and when they have ended.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{
        BoxFuture,
        http::{Extensions, Response},
    },
    metadata::MetadataMap,
};

use crate::ServerState;
pub(super) use crate::watch::{Traced, mark};
use troupe_base::{error::Error, model::Model, trace::TraceRecord};

/// When a call came, before its message was read.
#[derive(Clone, Copy)]
pub(super) struct Arrived(pub(super) Instant);

/// The request's message has come; its head came at `arrived`, if somebody looked.
pub(super) fn begin(
    state: &ServerState,
    model: &Model,
    (metadata, arrived): (&MetadataMap, Option<Arrived>),
) -> Traced {
    let header = |name: &str| {
        let values = metadata.get_all(name).iter().map(|it| it.to_str());
        let values = values.collect::<Result<Vec<_>, _>>().ok()?;
        (!values.is_empty()).then(|| values.join(","))
    };
    let record = state.tracer.sample(model.name(), &header, arrived.map(|it| it.0))?;
    record.mark("GRPC_WAITREAD_START", record.begun);
    record.mark("GRPC_WAITREAD_END", Instant::now());
    Some(record)
}

/// Its client gets an error.
pub(super) fn refused(traced: &Traced, error: &Error) {
    if let Some(record) = traced {
        record.fail(error);
    }
}

/// A response whose trace ends once it is sent.
#[derive(Clone)]
struct Answered(Arc<TraceRecord>);

/// Has the trace end with the response that is made of these extensions.
pub(super) fn answered(traced: Traced, extensions: &mut Extensions) {
    if let Some(record) = traced {
        record.mark("GRPC_SEND_START", Instant::now());
        extensions.insert(Answered(record));
    }
}

/// A call whose response may be that of a traced request.
pub(super) fn sent<E: Send + 'static>(
    call: BoxFuture<Response<Body>, E>,
) -> BoxFuture<Response<Body>, E> {
    Box::pin(async move {
        let mut response = call.await?;
        Ok(match response.extensions_mut().remove::<Answered>() {
            Some(Answered(record)) => response.map(|body| Body::new(Sending { body, record })),
            None => response,
        })
    })
}

struct Sending {
    body: Body,
    record: Arc<TraceRecord>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.record.mark("GRPC_SEND_END", Instant::now());
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

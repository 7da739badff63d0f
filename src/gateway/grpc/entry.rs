//! What every gRPC call passes before its service: access, a busy connection, a request that goes on.

use std::{
    convert::Infallible,
    future::ready,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{Request, Response},
    },
};

use super::{dispatch::Dispatcher, idle::IdleBody, methods, refusal::denied};
use crate::{
    access::Access,
    connections::{Busy, Connection},
};

/// The server of one connection.
#[derive(Clone)]
pub(super) struct Entry {
    next: Dispatcher,
    access: Arc<Access>,
    /// How long a message may stand still; zero: for ever.
    stalled: Duration,
}

impl Entry {
    /// In front of `next`.
    pub(super) fn new(next: Dispatcher, access: Arc<Access>, stalled: Duration) -> Entry {
        Entry { next, access, stalled }
    }

    /// How long a client may stand still in the middle of something; zero: for ever.
    pub(super) fn stalled(&self) -> Duration {
        self.stalled
    }

    fn check(&self, request: &Request<Body>) -> Result<(), Status> {
        let Some(endpoint) = methods::endpoint(request.uri().path()) else { return Ok(()) };
        if !self.access.is_guarded(endpoint) {
            return Ok(());
        }
        let header = |name: &str| request.headers().get(name).map(|it| it.as_bytes());
        self.access.check(endpoint, header).map_err(denied)
    }
}

impl Service<Request<Body>> for Entry {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.next.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if let Err(status) = self.check(&request) {
            return Box::pin(ready(Ok(status.into_http())));
        }
        let busy = request.extensions().get::<Arc<Connection>>().map(Connection::begin);
        let stalled = self.stalled;
        let request = match stalled.is_zero() {
            true => request,
            false => {
                let is_stream = methods::is_stream(request.uri().path());
                request.map(|body| Body::new(IdleBody::new(body, is_stream, stalled)))
            }
        };
        let call = self.next.call(request);
        Box::pin(async move {
            Ok(call.await?.map(|body| Body::new(BusyGrpcBody { body, _busy: busy })))
        })
    }
}

/// A response during which its connection is busy.
struct BusyGrpcBody {
    body: Body,
    _busy: Option<Busy>,
}

impl http_body::Body for BusyGrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

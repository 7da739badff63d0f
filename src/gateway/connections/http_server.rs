//! Connections of HTTP servers: admitted when they come, busy while a request of theirs is answered.

use std::{
    any::Any,
    future::Future,
    os::fd::AsFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::{
    Error,
    body::{BodySize, MessageBody},
    dev::{Extensions, Service, ServiceRequest, ServiceResponse},
    rt::net::{TcpStream, UnixStream},
};
use bytes::Bytes;
use rustix::net::{Shutdown, shutdown};

use super::table::{Busy, ConnectionGuard, Connections};

/// What is done with a connection that was accepted: one that is not admitted ends at once.
pub fn admit(
    connections: Arc<Connections>,
) -> impl Fn(&dyn Any, &mut Extensions) + Send + Sync + 'static {
    move |io, data| {
        let tcp = io.downcast_ref::<TcpStream>().map(AsFd::as_fd);
        let tls = || Some(io.downcast_ref::<TlsStream<TcpStream>>()?.get_ref().0.as_fd());
        let unix = || Some(io.downcast_ref::<UnixStream>()?.as_fd());
        let Some(socket) = tcp.or_else(tls).or_else(unix) else { return };
        match connections.admit(socket) {
            Some(guard) => drop(data.insert(guard)),
            // Fails if the client has gone already.
            None => drop(shutdown(socket, Shutdown::Both)),
        }
    }
}

/// Marks the connection busy until the answer was handed to it.
pub fn mark_busy<S, B>(
    request: ServiceRequest,
    service: &S,
) -> impl Future<Output = Result<ServiceResponse<BusyBody<B>>, Error>> + use<S, B>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
{
    let busy = request.conn_data::<ConnectionGuard>().map(|it| it.connection().begin());
    let call = service.call(request);
    async move { Ok(call.await?.map_body(|_, body| BusyBody { body, _busy: busy })) }
}

/// A body whose connection is busy until it was sent.
pub struct BusyBody<B> {
    body: B,
    _busy: Option<Busy>,
}

impl<B: MessageBody + Unpin> MessageBody for BusyBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, B::Error>>> {
        Pin::new(&mut self.body).poll_next(context)
    }

    fn try_into_bytes(self) -> Result<Bytes, Self> {
        let BusyBody { body, _busy } = self;
        body.try_into_bytes().map_err(|body| BusyBody { body, _busy })
    }
}

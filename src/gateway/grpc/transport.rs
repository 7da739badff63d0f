//! The bytes of a gRPC connection: of a TCP or a Unix socket, as they are or by TLS.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

/// Below TLS: it reads 4 KiB at a time, which would be a system call each.
const ENCRYPTED_BUFFER_BYTES: usize = 64 << 10;

/// A connection as it was accepted.
pub(super) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsTransport>),
}

impl Transport {
    /// A connection by TLS. The handshake begins when something is read or written, so that it is
    /// the connection's own task that waits for it, for as long as it waits for HTTP/2.
    pub(super) fn tls(stream: TcpStream, config: Arc<ServerConfig>) -> Transport {
        let stream = BufReader::with_capacity(ENCRYPTED_BUFFER_BYTES, stream);
        let accept = TlsAcceptor::from(config).accept(stream);
        Transport::Tls(Box::new(TlsTransport::Handshake(accept)))
    }
}

/// A connection by TLS, at any time of its life.
pub(super) enum TlsTransport {
    Handshake(Accept<BufReader<TcpStream>>),
    Open(TlsStream<BufReader<TcpStream>>),
    /// The handshake has failed.
    Closed,
}

impl TlsTransport {
    /// The connection once its handshake is through.
    fn poll_open(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<BufReader<TcpStream>>>>> {
        if let TlsTransport::Handshake(accept) = self {
            match ready!(Pin::new(accept).poll(context)) {
                Ok(stream) => *self = TlsTransport::Open(stream),
                Err(error) => {
                    *self = TlsTransport::Closed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match self {
            TlsTransport::Open(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => ready!(stream.poll_open(context))?.poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(context, data),
            Transport::Unix(stream) => Pin::new(stream).poll_write(context, data),
            Transport::Tls(stream) => ready!(stream.poll_open(context))?.poll_write(context, data),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, data),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(context, data),
            Transport::Tls(stream) => {
                ready!(stream.poll_open(context))?.poll_write_vectored(context, data)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        // Each of the three is.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => ready!(stream.poll_open(context))?.poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => match &mut **stream {
                TlsTransport::Open(stream) => Pin::new(stream).poll_shutdown(context),
                // Nothing was said that could be ended.
                TlsTransport::Handshake(_) | TlsTransport::Closed => Poll::Ready(Ok(())),
            },
        }
    }
}

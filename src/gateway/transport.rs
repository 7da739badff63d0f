//! The bytes of a connection: of a TCP or a Unix socket, as they are or by TLS.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::ioctl::{Getter, ioctl};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

/// Below TLS: it reads 4 KiB at a time, which would be a system call each.
const ENCRYPTED_BUFFER_BYTES: usize = 64 << 10;

/// `TIOCOUTQ`: bytes of a socket that its peer has not taken. Of TCP, those that were not
/// acknowledged; of a Unix socket, the memory of what is to be read.
const UNSENT_BYTES: u32 = 0x5411;

/// A connection as it was accepted.
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsTransport>),
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Transport {
        Transport::Tcp(stream)
    }
}

impl From<UnixStream> for Transport {
    fn from(stream: UnixStream) -> Transport {
        Transport::Unix(stream)
    }
}

impl Transport {
    /// The same connection by TLS, if there is a `config` and it is of TCP. The handshake begins when
    /// something is read or written, so that it is the connection's own task that waits for it.
    pub(crate) fn encrypted(self, config: Option<&Arc<ServerConfig>>) -> Transport {
        let (stream, config) = match (self, config) {
            (Transport::Tcp(stream), Some(config)) => (stream, config.clone()),
            (plain, _) => return plain,
        };
        let stream = BufReader::with_capacity(ENCRYPTED_BUFFER_BYTES, stream);
        let accept = TlsAcceptor::from(config).accept(stream);
        Transport::Tls(Box::new(TlsTransport::Handshake(accept)))
    }

    /// Waits until the handshake of TLS is through, where there is one.
    pub(crate) async fn handshake(&mut self) -> io::Result<()> {
        match self {
            Transport::Tls(stream) => {
                poll_fn(|context| stream.poll_open(context).map_ok(|_| ())).await
            }
            Transport::Tcp(_) | Transport::Unix(_) => Ok(()),
        }
    }

    /// Waits until something may be read, or the client has gone. To be called when a read had to
    /// wait, or before the first.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Transport::Tcp(stream) => stream.readable().await,
            Transport::Unix(stream) => stream.readable().await,
            Transport::Tls(stream) => match stream.socket() {
                Some(socket) => socket.readable().await,
                None => Ok(()),
            },
        }
    }

    /// Who is at the other end; a Unix socket does not say.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Transport::Tcp(stream) => stream.peer_addr().ok(),
            Transport::Unix(_) => None,
            Transport::Tls(stream) => stream.socket()?.peer_addr().ok(),
        }
    }

    /// Its socket; `None`: TLS has given it up.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Transport::Tcp(stream) => Some(stream.as_fd()),
            Transport::Unix(stream) => Some(stream.as_fd()),
            Transport::Tls(stream) => stream.socket().map(AsFd::as_fd),
        }
    }

    /// What was written and the client has not taken: bytes, or more where the kernel counts its
    /// own memory. It never grows while nothing is written.
    #[allow(unsafe_code, reason = "rustix has no name for this request")]
    pub(crate) fn unsent(&self) -> Option<usize> {
        // SAFETY: the kernel writes one `int` for this request, of any socket.
        let bytes = unsafe { ioctl(self.socket()?, Getter::<UNSENT_BYTES, i32>::new()) };
        usize::try_from(bytes.ok()?).ok()
    }
}

/// A connection by TLS, at any time of its life.
pub(crate) enum TlsTransport {
    Handshake(Accept<BufReader<TcpStream>>),
    Open(TlsStream<BufReader<TcpStream>>),
    /// The handshake has failed.
    Closed,
}

impl TlsTransport {
    /// The socket below.
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            TlsTransport::Handshake(accept) => accept.get_ref().map(BufReader::get_ref),
            TlsTransport::Open(stream) => Some(stream.get_ref().0.get_ref()),
            TlsTransport::Closed => None,
        }
    }

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

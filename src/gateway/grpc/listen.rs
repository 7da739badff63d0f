//! One listening socket, accepted from by several threads.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::stream::{self, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufStream, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Until accepting is tried again when the process has no descriptors left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// HTTP/2 moves 16 KiB at a time: a buffer makes one system call of many frames.
const READ_BUFFER_BYTES: usize = 128 << 10;
const WRITE_BUFFER_BYTES: usize = 128 << 10;

/// A connection with buffers.
pub(super) struct GrpcConnection(BufStream<TcpStream>);

/// A bound socket that does not belong to a runtime yet.
pub(super) struct Listener(std::net::TcpListener);

impl Listener {
    /// Fails if anyone listens there already.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Listener> {
        let socket = std::net::TcpListener::bind(address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Listener(socket))
    }

    /// The address, its port chosen.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The same socket for another thread.
    pub(super) fn share(&self) -> io::Result<Listener> {
        self.0.try_clone().map(Listener)
    }

    /// Connections, on the runtime of this thread.
    pub(super) fn incoming(self) -> io::Result<impl Stream<Item = io::Result<GrpcConnection>>> {
        let listener = TcpListener::from_std(self.0)?;
        Ok(stream::unfold(listener, |listener| async move {
            let connection = accept(&listener).await;
            Some((Ok(connection), listener))
        }))
    }
}

async fn accept(listener: &TcpListener) -> GrpcConnection {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // Fails only for a connection that is gone; reading it says so.
                let _ = connection.set_nodelay(true);
                return GrpcConnection(BufStream::with_capacity(
                    READ_BUFFER_BYTES,
                    WRITE_BUFFER_BYTES,
                    connection,
                ));
            }
            Err(error) if is_of_one_connection(&error) => (),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a gRPC connection");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused)
}

impl Connected for GrpcConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.0.get_ref().connect_info()
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

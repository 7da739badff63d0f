//! One listening socket, accepted from by several threads.

use std::{io, net::SocketAddr, time::Duration};

use futures_util::stream::{self, Stream};
use tokio::net::{TcpListener, TcpStream};

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Until accepting is tried again when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

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
    pub(super) fn incoming(self) -> io::Result<impl Stream<Item = io::Result<TcpStream>>> {
        let listener = TcpListener::from_std(self.0)?;
        Ok(stream::unfold(listener, |listener| async move {
            let connection = accept(&listener).await;
            Some((Ok(connection), listener))
        }))
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // Fails only for a connection that is gone; reading it says so.
                let _ = connection.set_nodelay(true);
                return connection;
            }
            Err(error) if is_of_one_connection(&error) => (),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a gRPC connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused)
}

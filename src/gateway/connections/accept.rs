//! Accepts connections of one socket and hands each to the engine thread that has the least to do.

use std::{
    io, net,
    os::{
        fd::{AsFd, BorrowedFd},
        unix,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use actix_rt::ArbiterHandle;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    runtime::Handle,
    sync::watch,
};

use super::table::{ConnectionGuard, Connections};
use crate::{
    socket::{BoundSocket, ListeningSocket},
    transport::Transport,
};
use troupe_base::log_window::LogWindow;
use troupe_engine::engines::Engines;

/// Between two warnings that nothing can be accepted.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// Until accepting is tried again when the process has no descriptors left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The threads that serve connections, and the one that accepts them: no request delays a
/// connection. Clones share them.
#[derive(Clone)]
pub struct ServingThreads {
    /// Serve.
    pub engines: Engines,
    /// Accepts.
    pub acceptor: ArbiterHandle,
    /// Of the thread that accepts.
    pub acceptor_runtime: Handle,
}

/// A socket that accepts, on the runtime of the thread that does so.
pub(crate) struct Listener {
    acceptor: Acceptor,
    tls: Option<Arc<ServerConfig>>,
}

/// A connection on its way to the thread that will serve it.
pub(crate) struct Accepted {
    guard: ConnectionGuard,
    socket: AcceptedSocket,
    /// Of TCP that is encrypted.
    tls: Option<Arc<ServerConfig>>,
    /// Counts the connections of the thread.
    of_thread: Arc<()>,
}

/// A connection that was admitted, on the thread that serves it.
pub(crate) struct OpenConnection {
    // Before the transport: it goes first.
    pub(crate) guard: ConnectionGuard,
    pub(crate) transport: Transport,
    /// Counts the connections of the thread.
    pub(crate) of_thread: Arc<()>,
}

impl Accepted {
    /// Gives the connection to the runtime of this thread.
    pub(crate) fn open(self) -> io::Result<OpenConnection> {
        let Accepted { guard, socket, tls, of_thread } = self;
        let plain = match socket {
            AcceptedSocket::Tcp(socket) => Transport::from(TcpStream::from_std(socket)?),
            AcceptedSocket::Unix(socket) => Transport::from(UnixStream::from_std(socket)?),
        };
        Ok(OpenConnection { guard, transport: plain.encrypted(tls.as_ref()), of_thread })
    }
}

/// The socket of a connection that does not belong to a runtime.
enum AcceptedSocket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

impl AsFd for AcceptedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            AcceptedSocket::Tcp(socket) => socket.as_fd(),
            AcceptedSocket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A thread that serves connections, as the one that accepts sees it.
pub(crate) struct Target {
    /// Does nothing on a thread that has stopped, as all do soon.
    send: Box<dyn Fn(Accepted) + Send>,
    connections: Arc<()>,
}

impl Target {
    /// The thread that is sent connections so. A channel behind it holds no more than `Connections`
    /// admits.
    pub(crate) fn new(send: impl Fn(Accepted) + Send + 'static) -> Target {
        Target { send: Box::new(send), connections: Arc::default() }
    }

    fn count(&self) -> usize {
        Arc::strong_count(&self.connections) - 1
    }
}

impl Listener {
    /// Gives this socket to the runtime of the thread that will accept; what is encrypted speaks this
    /// protocol. Fails where the kernel does not watch it.
    pub(crate) fn new(
        bound: BoundSocket,
        protocol: &[u8],
        threads: &ServingThreads,
    ) -> io::Result<Listener> {
        let _runtime = threads.acceptor_runtime.enter();
        let acceptor = Acceptor::of(bound.socket)?;
        let tls = bound.tls.map(|it| Arc::new(it.server_config(&[protocol])));
        Ok(Listener { acceptor, tls })
    }

    /// Accepts until `stop` becomes true, on the thread that accepts. Targets are the engine threads
    /// in their order.
    pub(crate) async fn accept(
        self,
        engines: Engines,
        targets: Vec<Target>,
        connections: Arc<Connections>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut warnings = LogWindow::new(1, WARNING_PAUSE);
        let mut counts = Vec::with_capacity(targets.len());
        loop {
            let socket = tokio::select! {
                biased;
                // An error means that the gateway was dropped.
                _ = stop.changed() => return,
                socket = accept(&self.acceptor, &mut warnings) => socket,
            };
            // One that is not admitted is closed by being dropped.
            let Some(guard) = connections.admit(socket.as_fd()) else { continue };
            counts.clear();
            counts.extend(targets.iter().map(Target::count));
            if let Some(target) = targets.get(engines.pick_for_connection(&counts)) {
                let (tls, of_thread) = (self.tls.clone(), target.connections.clone());
                (target.send)(Accepted { guard, socket, tls, of_thread });
            }
        }
    }
}

/// A listening socket of this thread's runtime.
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    fn of(socket: ListeningSocket) -> io::Result<Acceptor> {
        Ok(match socket {
            ListeningSocket::Tcp(socket) => Acceptor::Tcp(TcpListener::from_std(socket)?),
            ListeningSocket::Unix(socket) => Acceptor::Unix(UnixListener::from_std(socket)?),
        })
    }

    /// The next connection, for another thread.
    async fn accept(&self) -> io::Result<AcceptedSocket> {
        Ok(match self {
            Acceptor::Tcp(it) => AcceptedSocket::Tcp(it.accept().await?.0.into_std()?),
            Acceptor::Unix(it) => AcceptedSocket::Unix(it.accept().await?.0.into_std()?),
        })
    }
}

async fn accept(listener: &Acceptor, warnings: &mut LogWindow) -> AcceptedSocket {
    loop {
        match listener.accept().await {
            Ok(socket) => return socket,
            Err(error) if is_of_one_connection(&error) => (),
            Err(error) => {
                // Beyond descriptors, all that is left is to try again: one line says so.
                if warnings.take(Instant::now()).is_some() {
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::{socket::ListenAddress, testing::this_thread};

    #[actix_web::test]
    async fn a_socket_that_the_kernel_does_not_watch_fails_the_start() {
        // As no file is watched.
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let socket = net::TcpListener::from(file);
        socket.set_nonblocking(true).unwrap();
        let bound = BoundSocket {
            socket: ListeningSocket::Tcp(socket),
            address: ListenAddress::Unix("nowhere".into()),
            file: None,
            tls: None,
        };
        let failed = Listener::new(bound, b"h2", &this_thread()).err().unwrap();
        assert_eq!(failed.kind(), io::ErrorKind::PermissionDenied, "{failed}");
    }
}

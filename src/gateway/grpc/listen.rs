//! Accepts gRPC connections and hands each to the thread that has the fewest.

use std::{
    io, net,
    os::{
        fd::{AsFd, BorrowedFd},
        unix,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::stream::{Stream, StreamExt};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{mpsc, watch},
};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::{
    connection::{ConnectionTimes, GrpcConnection},
    windows::{WideWindows, Windows},
};
use crate::{
    connections::{ConnectionGuard, Connections},
    socket::{BoundSocket, ListeningSocket},
    transport::Transport,
};
use troupe_base::budget::Reserved;

/// What gRPC clients ask for in the handshake of TLS.
const HTTP_2: &[u8] = b"h2";

/// Between two warnings that nothing can be accepted.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// Until accepting is tried again when the process has no descriptors left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Connections of one thread that are being opened at a time.
const MAX_OPENING: usize = 1024;

/// A bound socket that does not belong to a runtime yet.
pub(super) struct Listener {
    socket: ListeningSocket,
    tls: Option<Arc<ServerConfig>>,
}

/// A connection on its way to the thread that will serve it.
pub(super) struct Accepted {
    guard: ConnectionGuard,
    socket: AcceptedSocket,
    /// Of TCP that is encrypted.
    tls: Option<Arc<ServerConfig>>,
    /// Counts the connections of the thread.
    of_thread: Arc<()>,
    /// Of one with wide windows.
    window: Option<Reserved>,
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
pub(super) struct Target {
    wide: mpsc::UnboundedSender<Accepted>,
    narrow: mpsc::UnboundedSender<Accepted>,
    connections: Arc<()>,
}

impl Target {
    /// The target, and what it is sent, by the windows that connections get. The channels hold no
    /// more than `Connections` admits.
    pub(super) fn new() -> (Target, [(Windows, mpsc::UnboundedReceiver<Accepted>); 2]) {
        let (wide, wide_ones) = mpsc::unbounded_channel();
        let (narrow, narrow_ones) = mpsc::unbounded_channel();
        let target = Target { wide, narrow, connections: Arc::default() };
        (target, [(Windows::WIDE, wide_ones), (Windows::NARROW, narrow_ones)])
    }

    /// Hands a connection over; it fails for a thread that has stopped, as all do soon.
    fn send(&self, accepted: Accepted) {
        let sender = if accepted.window.is_some() { &self.wide } else { &self.narrow };
        let _ = sender.send(accepted);
    }

    fn count(&self) -> usize {
        Arc::strong_count(&self.connections)
    }
}

impl Listener {
    /// Accepts from this socket.
    pub(super) fn new(bound: BoundSocket) -> Listener {
        let tls = bound.tls.map(|it| Arc::new(it.server_config(&[HTTP_2])));
        Listener { socket: bound.socket, tls }
    }

    /// Accepts until `stop` becomes true, on the runtime of this thread.
    pub(super) async fn accept(
        self,
        targets: Vec<Target>,
        connections: Arc<Connections>,
        wide: Arc<WideWindows>,
        mut stop: watch::Receiver<bool>,
    ) {
        let listener = match Acceptor::of(self.socket) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept gRPC connections"),
        };
        let (mut next, mut warned_at) = (0, None);
        loop {
            let socket = tokio::select! {
                socket = accept(&listener, &mut warned_at) => socket,
                // An error means that the gateway was dropped.
                _ = stop.changed() => return,
            };
            // One that is not admitted is closed by being dropped.
            let Some(guard) = connections.admit(socket.as_fd()) else { continue };
            next = fewest(&targets, next);
            if let Some(target) = targets.get(next) {
                let of_thread = target.connections.clone();
                let tls = self.tls.clone();
                target.send(Accepted { guard, socket, tls, of_thread, window: wide.reserve() });
            }
            next += 1;
        }
    }
}

/// The target with the fewest connections; of several, the first from `start` on.
fn fewest(targets: &[Target], start: usize) -> usize {
    let from_start = (0..targets.len()).map(|it| (start + it) % targets.len());
    from_start.min_by_key(|it| targets[*it].count()).unwrap_or(0)
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

async fn accept(listener: &Acceptor, warned_at: &mut Option<Instant>) -> AcceptedSocket {
    loop {
        match listener.accept().await {
            Ok(socket) => return socket,
            Err(error) if is_of_one_connection(&error) => (),
            Err(error) => {
                // Beyond descriptors, all that is left is to try again: one line says so.
                if warned_at.is_none_or(|it| WARNING_PAUSE <= it.elapsed()) {
                    *warned_at = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept gRPC connections");
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

/// Connections for the runtime of this thread. What one needs until it is open keeps no other
/// waiting.
pub(super) fn incoming(
    received: mpsc::UnboundedReceiver<Accepted>,
    times: ConnectionTimes,
) -> impl Stream<Item = io::Result<GrpcConnection>> {
    let opened = move |accepted: Accepted| open(accepted, times);
    UnboundedReceiverStream::new(received).map(opened).buffer_unordered(MAX_OPENING)
}

async fn open(accepted: Accepted, times: ConnectionTimes) -> io::Result<GrpcConnection> {
    let Accepted { guard, socket, tls, of_thread, window } = accepted;
    let plain = match socket {
        AcceptedSocket::Tcp(socket) => Transport::from(TcpStream::from_std(socket)?),
        AcceptedSocket::Unix(socket) => Transport::from(UnixStream::from_std(socket)?),
    };
    Ok(GrpcConnection::new(plain.encrypted(tls.as_ref()), guard, (of_thread, window), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_evenly_and_gaps_are_filled() {
        let targets: Vec<Target> = (0..4).map(|_| Target::new().0).collect();
        let mut open = Vec::new();
        let mut next = 0;
        for _ in 0..60 {
            next = fewest(&targets, next);
            open.push((next, targets[next].connections.clone()));
            next += 1;
        }
        assert!(targets.iter().all(|it| it.count() == 16));
        open.retain(|(thread, _)| *thread != 2);
        for _ in 0..15 {
            assert_eq!(fewest(&targets, next), 2);
            open.push((2, targets[2].connections.clone()));
            next += 1;
        }
    }
}

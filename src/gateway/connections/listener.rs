//! Binds listening sockets with the TCP options that all accepted connections inherit.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use rustix::net::sockopt;

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 4096;

/// A silent connection is probed after this, and again and again: a peer whose machine is gone does
/// not keep a connection, nor what its requests hold.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;

/// Listens at `address`; port 0 takes a free one. Fails if anyone listens there already.
///
/// The kernel ends a connection whose peer takes nothing of what was sent for `stalled`; zero: it
/// never does.
pub fn bind(address: SocketAddr, stalled: Duration) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    inherit(&socket, stalled)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn inherit(socket: &TcpListener, stalled: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    let millis = u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, millis)?)
}

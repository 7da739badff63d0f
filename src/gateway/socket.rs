//! The sockets that gateways listen on: TCP ports, and Unix sockets by their paths.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{self, FileType, Mode},
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use crate::tls::Tls;
use troupe_options::UNIX_SOCKET;

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 4096;

/// A silent connection is probed after this, and again and again: a peer whose machine is gone does
/// not keep a connection, nor what its requests hold.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;

/// What may connect to a Unix socket: processes of the server's user and of its group.
const UNIX_SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP);

/// Where a gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A port; 0 picks a free one.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address of a port.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(formatter),
            ListenAddress::Unix(path) => write!(formatter, "{UNIX_SOCKET}{}", path.display()),
        }
    }
}

/// Where a gateway listens, and how.
#[derive(Clone)]
pub struct Binding {
    /// Where.
    pub address: ListenAddress,
    /// Other processes may listen on the same port; each gets a part of the connections.
    pub reuse_port: bool,
    /// Encrypted with this; of TCP only.
    pub tls: Option<Arc<Tls>>,
}

impl From<SocketAddr> for Binding {
    /// A port of its own, not encrypted.
    fn from(address: SocketAddr) -> Binding {
        Binding { address: ListenAddress::Tcp(address), reuse_port: false, tls: None }
    }
}

/// A socket that listens and does not belong to a runtime yet. It does not block.
pub(crate) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket that listens, where, and how.
pub(crate) struct BoundSocket {
    pub(crate) socket: ListeningSocket,
    /// Its port chosen.
    pub(crate) address: ListenAddress,
    pub(crate) tls: Option<Arc<Tls>>,
    /// To be kept while it listens.
    pub(crate) file: Option<SocketFile>,
}

impl Binding {
    /// Listens. Fails if anyone listens there already, unless both reuse the port.
    ///
    /// The kernel ends a TCP connection whose peer takes nothing of what was sent for `stalled`;
    /// zero: it never does.
    pub(crate) fn bind(&self, stalled: Duration) -> io::Result<BoundSocket> {
        let tls = self.tls.clone();
        match &self.address {
            ListenAddress::Tcp(address) => {
                let socket = bind_port(*address, self.reuse_port, stalled)?;
                let address = ListenAddress::Tcp(socket.local_addr()?);
                Ok(BoundSocket { socket: ListeningSocket::Tcp(socket), address, tls, file: None })
            }
            ListenAddress::Unix(path) => {
                let socket = bind_path(path)?;
                let file = Some(SocketFile::of(path)?);
                let address = self.address.clone();
                Ok(BoundSocket { socket: ListeningSocket::Unix(socket), address, tls, file })
            }
        }
    }
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(family, SocketType::STREAM, flags, None)?)
}

fn bind_port(address: SocketAddr, reuse_port: bool, stalled: Duration) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = stream_socket(family)?;
    // Connections of a server that has ended do not keep its port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    inherit(&socket, stalled)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Sets the options of TCP that accepted connections inherit.
fn inherit(socket: &OwnedFd, stalled: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    let millis = u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, millis)?)
}

fn bind_path(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    remove_stale(path, &address)?;
    let socket = stream_socket(AddressFamily::UNIX)?;
    net::bind(&socket, &address)?;
    // Nobody can connect before it listens, so nobody can before the mode is set.
    fs::chmod(path, UNIX_SOCKET_MODE)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket of a server that has ended without removing it. Two servers that find the same
/// one at the same moment may both take its place: the path then leads to the second.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let found = match fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        let why = "there is a file of this name that is no socket";
        return Err(io::Error::new(ErrorKind::AlreadyExists, why));
    }
    match net::connect(&stream_socket(AddressFamily::UNIX)?, address) {
        Err(Errno::CONNREFUSED) => Ok(fs::unlink(path)?),
        Ok(()) | Err(Errno::AGAIN) => Err(Errno::ADDRINUSE.into()),
        Err(error) => Err(error.into()),
    }
}

/// The file of a Unix socket: removed when this is dropped, unless another one took its place.
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    number: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let found = fs::lstat(path)?;
        Ok(SocketFile { path: path.to_owned(), device: found.st_dev, number: found.st_ino })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::lstat(&self.path);
        if found.is_ok_and(|it| (it.st_dev, it.st_ino) == (self.device, self.number)) {
            // It stays if the folder was made read-only; the next server replaces it.
            let _ = fs::unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn unix(path: &Path) -> Binding {
        let address = ListenAddress::Unix(path.to_owned());
        Binding { address, reuse_port: false, tls: None }
    }

    /// A path in a folder of its own.
    fn path(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("troupe-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder.join("socket")
    }

    #[test]
    fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
        let path = path("stale");
        let bound = unix(&path).bind(Duration::ZERO).unwrap();
        let error = unix(&path).bind(Duration::ZERO).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok(), "the first still listens");
        // As a server that is killed leaves it.
        std::mem::forget(bound.file);
        drop(bound.socket);
        let again = unix(&path).bind(Duration::ZERO).unwrap();
        assert_eq!(fs::lstat(&path).unwrap().st_mode & 0o777, 0o660);
        drop(again.file);
        assert!(!path.exists(), "it is removed at the end");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn other_files_and_other_sockets_are_left_alone() {
        let path = path("other");
        std::fs::write(&path, "precious").unwrap();
        let error = unix(&path).bind(Duration::ZERO).err().unwrap();
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        let first = unix(&path).bind(Duration::ZERO).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it is not the first one's any more");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_port_is_shared_only_by_those_who_all_say_so() {
        let any: Binding = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        let shared = |address: &ListenAddress| {
            Binding { address: address.clone(), reuse_port: true, tls: None }.bind(Duration::ZERO)
        };
        let first = shared(&any.address).unwrap();
        let second = shared(&first.address).unwrap();
        assert_eq!(first.address, second.address);
        let alone = Binding::from(first.address.tcp().unwrap());
        assert_eq!(alone.bind(Duration::ZERO).err().unwrap().kind(), ErrorKind::AddrInUse);
    }
}

//! Messages of a fork server's control socket, one read each.

use std::{io, os::fd::OwnedFd};

use tokio::net::UnixStream;

/// The same socket for reading. A stream's type does: each read gives one message.
pub(crate) fn messages_of(control: &OwnedFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(control.try_clone()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// One message of the fork server; `None` once it has ended.
///
/// Not by `AsyncRead`: a short read makes it believe that a stream is drained, and it would leave
/// a second message lying until a third comes.
pub(crate) async fn receive(messages: &UnixStream) -> Option<Vec<u8>> {
    let mut message = vec![0; 8192];
    loop {
        messages.readable().await.ok()?;
        match messages.try_read(&mut message) {
            Ok(size) => {
                message.truncate(size);
                return (0 < size).then_some(message);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(_) => return None,
        }
    }
}

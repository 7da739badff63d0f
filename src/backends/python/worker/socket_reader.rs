//! Reads a worker's socket on the runtime of its instance, by the descriptor that others write to.
#![expect(unsafe_code, reason = "the runtime watches a file descriptor we promise to keep open")]

use std::{
    io,
    os::unix::net::UnixStream,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::io::Errno;
use tokio::io::{AsyncRead, Interest, ReadBuf, unix::AsyncFd};

/// A socket that is only read: watched for what arrives, so that nothing wakes us up whenever the
/// worker has read something.
pub(crate) struct SocketReader(AsyncFd<Arc<UnixStream>>);

impl SocketReader {
    /// Of a socket that does not block.
    pub(crate) fn new(stream: Arc<UnixStream>) -> io::Result<SocketReader> {
        // SAFETY: the `AsyncFd` holds the socket, which nothing closes before it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(stream, Interest::READABLE) };
        Ok(SocketReader(watched?))
    }
}

impl AsyncRead for SocketReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let room = buffer.remaining();
            // SAFETY: nothing but the read writes to it, which makes no byte undefined.
            let read = rustix::io::read(self.0.get_ref(), unsafe { buffer.unfilled_mut() });
            let size = match read {
                Ok((filled, _)) => filled.len(),
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            // It is empty if it gave less than there was room for: the runtime's own sockets too
            // save the read that finds nothing.
            if 0 < size && size < room {
                ready.clear_ready();
            }
            // SAFETY: so many bytes were read into it.
            unsafe { buffer.assume_init(size) };
            buffer.advance(size);
            return Poll::Ready(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_comes_is_read_until_the_end_while_the_same_descriptor_writes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = Arc::new(ours);
        let mut reader = SocketReader::new(ours.clone()).unwrap();
        let mut chunk = [0; 4];
        for round in 0..3_u8 {
            // Waits first: nothing is there.
            let read = tokio::spawn(async move {
                let size = reader.read(&mut chunk).await.unwrap();
                (reader, chunk[..size].to_vec())
            });
            tokio::task::yield_now().await;
            (&*ours).write_all(&[round]).unwrap();
            theirs.write_all(&[round; 6]).unwrap();
            let (back, first) = read.await.unwrap();
            reader = back;
            assert_eq!(first, [round; 4]);
            assert_eq!(reader.read(&mut chunk).await.unwrap(), 2);
        }
        let mut heard = [0; 3];
        theirs.read_exact(&mut heard).unwrap();
        assert_eq!(heard, [0, 1, 2]);
        drop(theirs);
        assert_eq!(reader.read(&mut chunk).await.unwrap(), 0);
    }
}

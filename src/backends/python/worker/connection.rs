//! The socket of one worker on the instance's thread: frames out at once, frames in as they come.

use std::{
    cell::RefCell,
    io::{ErrorKind, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe,
    time::timeout,
};

use super::socket_reader::SocketReader;
use crate::python::{
    memory::segments::Segments,
    process::{
        launch::Launched, progress::Progress, worker_events::WorkerEvents, worker_process::Process,
    },
    protocol::frames::FRAME_LIMIT,
};
use troupe_base::{
    error::{Error, Result},
    tensor::SegmentPool,
};

/// How long the rest of a frame may not come on at all; a thread of the model may hold up the one
/// that sends.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Questions a worker may ask while it reads nothing of what it was sent: its threads wait for the
/// answers, and it has at most `MAX_OPEN_CALLS` calls beside them.
const MAX_UNREAD_QUESTIONS: usize = 65_536;

/// A worker that is up.
pub(crate) struct WorkerConnection {
    pub(crate) process: Process,
    writer: Arc<UnixStream>,
    /// What the socket did not take yet; a task writes it.
    unsent: Rc<RefCell<BytesMut>>,
    pub(crate) segments: Segments,
    pub(crate) progress: Progress,
    /// Groups it was given so far.
    pub(crate) given: u64,
    /// The last group whose long execution was told of.
    pub(crate) told_slow: Option<u64>,
    /// Questions since it last had read all that it was sent.
    unread_questions: usize,
}

/// Where a worker's frames come from.
pub(crate) struct FrameSource {
    pub(crate) reader: SocketReader,
    /// What hears the last of them when its instance has gone.
    pub(crate) events: Arc<WorkerEvents>,
}

/// Puts the socket of a ready worker on the runtime of the current thread; from now on its frames
/// are read by whoever has the reader.
pub(crate) fn connect(
    launched: Launched,
    pool: Arc<SegmentPool>,
) -> Result<(WorkerConnection, FrameSource)> {
    let Launched { mut process, stream, passing, progress, .. } = launched;
    let broken = |error: std::io::Error| Error::internal(format!("a worker's socket: {error}"));
    stream.set_nonblocking(true).map_err(broken)?;
    let reader = SocketReader::new(stream.clone()).map_err(broken)?;
    process.is_read = true;
    let events = process.events.clone();
    let connection = WorkerConnection {
        process,
        writer: stream,
        unsent: Rc::default(),
        segments: Segments::new(passing, pool, events.copied.clone()),
        progress,
        given: 0,
        told_slow: None,
        unread_questions: 0,
    };
    Ok((connection, FrameSource { reader, events }))
}

impl WorkerConnection {
    /// The worker asks something, which will be answered. An error is its end.
    pub(crate) fn on_question(&mut self) -> Result<(), String> {
        if self.unsent.borrow().is_empty() {
            self.unread_questions = 0;
        }
        self.unread_questions += 1;
        if MAX_UNREAD_QUESTIONS < self.unread_questions {
            return Err(format!("{} questions and read no answer", self.unread_questions));
        }
        Ok(())
    }

    /// At once if the socket has room; a task writes the rest.
    pub(crate) fn write(&mut self, frame: &[u8]) {
        let mut unsent = self.unsent.borrow_mut();
        if !unsent.is_empty() {
            unsent.extend_from_slice(frame);
            return;
        }
        // A broken socket is noticed by the reader.
        let written = (&*self.writer).write(frame).unwrap_or(0);
        if written < frame.len() {
            unsent.extend_from_slice(&frame[written..]);
            actix_rt::spawn(write_rest(self.writer.clone(), self.unsent.clone()));
        }
    }
}

async fn write_rest(writer: Arc<UnixStream>, unsent: Rc<RefCell<BytesMut>>) {
    // Watched for room only while there is none.
    let room = writer.try_clone().and_then(|it| pipe::Sender::from_owned_fd_unchecked(it.into()));
    let Ok(room) = room else {
        // Without descriptors left half a frame would be all that the worker gets.
        tracing::error!("cannot watch a worker's socket: it is closed");
        let _ = writer.shutdown(Shutdown::Both);
        return unsent.borrow_mut().clear();
    };
    while room.writable().await.is_ok() {
        let mut unsent = unsent.borrow_mut();
        match room.try_write(&unsent) {
            Ok(written) => unsent.advance(written),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(_) => unsent.clear(),
        }
        if unsent.is_empty() {
            *unsent = BytesMut::new();
            return;
        }
    }
}

/// Gives every frame to `handle_frame`, which may end it. Ends well when the socket does, and badly when
/// the worker sends nonsense, or begins a frame and does not go on.
pub(crate) async fn read(
    reader: &mut (impl AsyncRead + Unpin),
    mut handle_frame: impl FnMut(&Bytes) -> Result<(), String>,
) -> Result<(), String> {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    loop {
        let is_half = !buffer.is_empty();
        let arriving = reader.read_buf(&mut buffer);
        let arrived = if is_half {
            let stalled = |_| format!("half a frame and nothing more for {STALL_TIMEOUT:?}");
            timeout(STALL_TIMEOUT, arriving).await.map_err(stalled)?
        } else {
            arriving.await
        };
        if matches!(arrived, Ok(0) | Err(_)) {
            return Ok(());
        }
        let mut missing = 0;
        while let Some(head) = buffer.first_chunk::<8>() {
            let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if !size.is_multiple_of(8) || !(8..=FRAME_LIMIT).contains(&size) {
                return Err(format!("a frame of {size} bytes"));
            }
            if buffer.len() < size {
                missing = size - buffer.len();
                break;
            }
            handle_frame(&buffer.split_to(size).freeze())?;
        }
        // Memory grows with what arrives, not with what a frame claims.
        if buffer.capacity() - buffer.len() < 4096.max(missing.min(1 << 20)) {
            buffer.reserve((64 << 10).max(missing.min(8 << 20)));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::UnixStream};

    use super::*;

    /// What is read when a worker sends `bytes` and then closes its socket, or is silent.
    async fn check(bytes: &[u8], closes: bool, expected: Result<usize, &str>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, _writer) = ours.into_split();
        let (_, mut worker) = theirs.into_split();
        worker.write_all(bytes).await.unwrap();
        let worker = Some(worker).filter(|_| !closes);
        let mut frames = 0;
        let read = read(&mut reader, |_| {
            frames += 1;
            Ok(())
        });
        assert_eq!(read.await.map(|()| frames), expected.map_err(str::to_owned), "{bytes:?}");
        drop(worker);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_read_until_the_worker_ends_or_talks_nonsense() {
        let frame = [16, 0, 0, 0, b'L', 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        check(&frame, true, Ok(1)).await;
        check(&frame.repeat(3), true, Ok(3)).await;
        check(&frame[..9], true, Ok(0)).await;
        check(&[frame, frame].concat()[..20], false, Err("half a frame and nothing more for 30s"))
            .await;
        check(&[12, 0, 0, 0, b'L', 0, 0, 0], true, Err("a frame of 12 bytes")).await;
        check(&[0; 8], true, Err("a frame of 0 bytes")).await;
        check(&[248, 255, 255, 255, 0, 0, 0, 0], true, Err("a frame of 4294967288 bytes")).await;
    }
}

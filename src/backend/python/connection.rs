//! The socket of one worker on the instance's thread: frames out at once, frames in as they come.

use std::{cell::RefCell, rc::Rc};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::AsyncReadExt,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{
    lines::Budget,
    process::{FRAME_LIMIT, Launched, Process},
    segments::Segments,
};
use crate::error::{Error, Result};

/// A worker that is up.
pub(super) struct Connection {
    pub(super) process: Process,
    writer: Rc<OwnedWriteHalf>,
    /// What the socket did not take yet; a task writes it.
    unsent: Rc<RefCell<BytesMut>>,
    pub(super) segments: Segments,
    pub(super) budget: Budget,
}

/// Puts the socket of a ready worker on the runtime of the current thread.
pub(super) fn connect(launched: Launched) -> Result<(Connection, OwnedReadHalf)> {
    let Launched { process, stream, passing, .. } = launched;
    let broken = |error: std::io::Error| Error::internal(format!("a worker's socket: {error}"));
    stream.set_nonblocking(true).map_err(broken)?;
    let (reader, writer) = UnixStream::from_std(stream).map_err(broken)?.into_split();
    let copied = process.copied().clone();
    let connection = Connection {
        process,
        writer: Rc::new(writer),
        unsent: Rc::default(),
        segments: Segments::new(passing, copied),
        budget: Budget::default(),
    };
    Ok((connection, reader))
}

impl Connection {
    /// At once if the socket has room; a task writes the rest.
    pub(super) fn write(&mut self, frame: &[u8]) {
        let mut unsent = self.unsent.borrow_mut();
        if !unsent.is_empty() {
            unsent.extend_from_slice(frame);
            return;
        }
        // A broken socket is noticed by the reader.
        let written = self.writer.try_write(frame).unwrap_or(0);
        if written < frame.len() {
            unsent.extend_from_slice(&frame[written..]);
            actix_rt::spawn(write_rest(self.writer.clone(), self.unsent.clone()));
        }
    }
}

async fn write_rest(writer: Rc<OwnedWriteHalf>, unsent: Rc<RefCell<BytesMut>>) {
    while writer.writable().await.is_ok() {
        let mut unsent = unsent.borrow_mut();
        match writer.try_write(&unsent) {
            Ok(written) => unsent.advance(written),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => (),
            Err(_) => unsent.clear(),
        }
        if unsent.is_empty() {
            *unsent = BytesMut::new();
            return;
        }
    }
}

/// Gives every frame to `obey`, which may end it. Ends well when the socket does, and badly when
/// the worker sends nonsense.
pub(super) async fn read(
    reader: &mut OwnedReadHalf,
    mut obey: impl FnMut(&Bytes) -> Result<(), String>,
) -> Result<(), String> {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    loop {
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => (),
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
            obey(&buffer.split_to(size).freeze())?;
        }
        // Memory grows with what arrives, not with what a frame claims.
        if buffer.capacity() - buffer.len() < 4096.max(missing.min(1 << 20)) {
            buffer.reserve((64 << 10).max(missing.min(8 << 20)));
        }
    }
}

//! The connections of a thread that serves gRPC, as they come from the one that accepts them.

use std::{io, sync::Arc};

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use futures_util::stream::{Stream, StreamExt};

use super::{
    connection::{ConnectionTimes, GrpcConnection},
    windows::{WideWindows, Windows},
};
use crate::connections::{Accepted, Target};
use troupe_base::budget::Reserved;

/// Connections of one thread that are being opened at a time.
const MAX_OPENING: usize = 1024;

/// A connection to be opened, and what it holds of the budget if its windows are wide.
pub(super) type WithWindow = (Accepted, Option<Reserved>);

/// A thread that serves, and what it is sent, by the windows that connections get.
pub(super) fn target(
    wide: &Arc<WideWindows>,
) -> (Target, [(Windows, mpsc::UnboundedReceiver<WithWindow>); 2]) {
    let (wide_sender, wide_ones) = mpsc::unbounded_channel();
    let (narrow_sender, narrow_ones) = mpsc::unbounded_channel();
    let wide = wide.clone();
    let target = Target::new(move |accepted| {
        let window = wide.reserve();
        let sender = if window.is_some() { &wide_sender } else { &narrow_sender };
        let _ = sender.send((accepted, window));
    });
    (target, [(Windows::WIDE, wide_ones), (Windows::NARROW, narrow_ones)])
}

/// Connections for the runtime of this thread. What one needs until it is open keeps no other
/// waiting.
pub(super) fn incoming(
    received: mpsc::UnboundedReceiver<WithWindow>,
    times: ConnectionTimes,
) -> impl Stream<Item = io::Result<GrpcConnection>> {
    let opened = move |(accepted, window)| open(accepted, window, times);
    UnboundedReceiverStream::new(received).map(opened).buffer_unordered(MAX_OPENING)
}

async fn open(
    accepted: Accepted,
    window: Option<Reserved>,
    times: ConnectionTimes,
) -> io::Result<GrpcConnection> {
    Ok(GrpcConnection::new(accepted.open()?, window, times))
}

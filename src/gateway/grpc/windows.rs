//! The windows of HTTP/2: how much a client may send before somebody reads it.

use std::sync::Arc;

use troupe_base::budget::{Budget, Reserved};

/// Of the server's budget, the part that lies beside it: what wide windows may hold.
const WIDE_SHARE_DIVISOR: usize = 8;

/// What a client may have on its way, unread, and so what it can park here beside the budget: a
/// stream whose answers nobody takes is not read. In bytes.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub(super) stream: u32,
    pub(super) connection: u32,
    /// A frame is received whole before anybody can count it.
    pub(super) frame: u32,
}

impl Windows {
    /// They do for 200 MB/s over 10 ms; that of a connection is twice that of a stream, so that one
    /// which is not read holds up no other.
    pub(super) const WIDE: Windows =
        Windows { stream: 2 << 20, connection: 4 << 20, frame: 256 << 10 };

    /// What HTTP/2 begins with; no connection can have less.
    pub(super) const NARROW: Windows =
        Windows { stream: (32 << 10) - 1, connection: (64 << 10) - 1, frame: 16 << 10 };
}

/// Who may have wide windows: as many connections as have room in a part of the budget. The others
/// are served as well; large tensors take them a round trip for each 32 KiB.
pub(super) struct WideWindows(Arc<Budget>);

impl WideWindows {
    /// `cap`: of the server's budget, in bytes.
    pub(super) fn new(cap: usize) -> WideWindows {
        WideWindows(Budget::new(cap / WIDE_SHARE_DIVISOR))
    }

    /// The room of one connection, until it is dropped; `None`: it gets narrow ones.
    pub(super) fn reserve(&self) -> Option<Reserved> {
        self.0.reserve(Windows::WIDE.connection as usize).ok()
    }
}

//! File descriptor passing over sockets, one at a time, without waiting.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// One byte and at most one descriptor, if there is one now.
pub(crate) fn receive_descriptor(passing: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(passing, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags).ok()?;
    ancillary.drain().find_map(|it| match it {
        rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Whether the descriptor went out; it does not while the worker is far behind.
pub(crate) fn send_descriptor(passing: &OwnedFd, descriptor: BorrowedFd<'_>) -> bool {
    let fds = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(passing, &[IoSlice::new(b"s")], &mut ancillary, flags).is_ok()
}

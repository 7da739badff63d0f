//! A timer in microseconds (a timerfd): the runtime's own timers tick once a millisecond.
#![expect(unsafe_code, reason = "the runtime watches a file descriptor we promise to keep open")]

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timerfd watched by the runtime it was made on.
pub(super) struct Timer {
    fd: AsyncFd<OwnedFd>,
}

impl Timer {
    pub(super) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the `AsyncFd` owns the descriptor; nothing closes it before it is deregistered.
        Ok(Timer { fd: unsafe { AsyncFd::register(fd)? } })
    }

    /// Rings at `due`, once; a later call replaces an earlier one.
    pub(super) fn set(&self, due: Instant) -> io::Result<()> {
        // Zero would disarm it.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Returns when it rang.
    pub(super) async fn rung(&self) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut ticks = [0u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut ticks) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

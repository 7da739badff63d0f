//! Timers in microseconds, which share a timerfd on each engine thread: the runtime's own timers
//! tick once a millisecond.
#![expect(unsafe_code, reason = "the runtime watches a file descriptor we promise to keep open")]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    convert::Infallible,
    io,
    os::fd::OwnedFd,
    rc::{Rc, Weak},
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::{io::unix::AsyncFd, sync::Notify, task::JoinHandle};

thread_local! {
    /// What the timers of this thread share, as long as there are some.
    static CLOCK: RefCell<Weak<Clock>> = const { RefCell::new(Weak::new()) };
}

/// Rings on the thread it was made on.
pub(super) struct Timer {
    clock: Rc<Clock>,
    number: u64,
    due: Cell<Option<Instant>>,
    rung: Rc<Notify>,
}

impl Timer {
    /// Rings never, until it is set.
    pub(super) fn new() -> io::Result<Timer> {
        let clock = Clock::of_this_thread()?;
        let number = clock.queue.borrow_mut().new_number();
        Ok(Timer { clock, number, due: Cell::new(None), rung: Rc::default() })
    }

    /// Rings at `due`, once; a later call replaces an earlier one.
    pub(super) fn set(&self, due: Instant) -> io::Result<()> {
        let mut queue = self.clock.queue.borrow_mut();
        queue.is_right()?;
        if let Some(earlier) = self.due.replace(Some(due)) {
            queue.due.remove(&(earlier, self.number));
        }
        queue.due.insert((due, self.number), self.rung.clone());
        queue.arm(&self.clock.fd)
    }

    /// Returns when it rang, or when it never will.
    pub(super) async fn rung(&self) -> io::Result<()> {
        self.rung.notified().await;
        self.clock.queue.borrow().is_right()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(due) = self.due.get() {
            self.clock.queue.borrow_mut().due.remove(&(due, self.number));
        }
    }
}

/// A timerfd that is watched by the runtime of its thread. Dropping it closes it.
struct Clock {
    fd: Rc<AsyncFd<OwnedFd>>,
    queue: Rc<RefCell<Queue>>,
    ringing: JoinHandle<()>,
}

impl Clock {
    fn of_this_thread() -> io::Result<Rc<Clock>> {
        if let Some(clock) = CLOCK.with_borrow(Weak::upgrade) {
            return Ok(clock);
        }
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the `AsyncFd` owns the descriptor; nothing closes it before it is deregistered.
        let fd = Rc::new(unsafe { AsyncFd::register(fd)? });
        let queue = Rc::<RefCell<Queue>>::default();
        let ringing = actix_rt::spawn(ring(fd.clone(), queue.clone()));
        let clock = Rc::new(Clock { fd, queue, ringing });
        CLOCK.set(Rc::downgrade(&clock));
        Ok(clock)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.ringing.abort();
    }
}

/// The timers that are set, the first of which the timerfd is set to.
#[derive(Default)]
struct Queue {
    due: BTreeMap<(Instant, u64), Rc<Notify>>,
    /// When the timerfd rings; it may ring too early, and is then set to the first one.
    armed: Option<Instant>,
    last_number: u64,
    /// The timerfd could not be read or set: none of them rings any more.
    is_broken: bool,
}

impl Queue {
    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Sets the timerfd, unless it rings early enough.
    fn arm(&mut self, fd: &AsyncFd<OwnedFd>) -> io::Result<()> {
        let Some((first, _)) = self.due.first_key_value().map(|(key, _)| *key) else {
            return Ok(());
        };
        if self.armed.is_some_and(|it| it <= first) {
            return Ok(());
        }
        // Zero would disarm it.
        let left = first.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        self.armed = Some(first);
        Ok(())
    }

    /// Rings those that are due, and sets the timerfd to the next one.
    fn ring(&mut self, fd: &AsyncFd<OwnedFd>) -> io::Result<()> {
        self.armed = None;
        let now = Instant::now();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            first.remove().notify_one();
        }
        self.arm(fd)
    }

    fn is_right(&self) -> io::Result<()> {
        match self.is_broken {
            true => Err(io::Error::other("the timers of this thread do not ring any more")),
            false => Ok(()),
        }
    }

    /// Whoever waits is told.
    fn break_down(&mut self) {
        self.is_broken = true;
        for waiting in std::mem::take(&mut self.due).into_values() {
            waiting.notify_one();
        }
    }
}

/// Rings timers, until it is aborted.
async fn ring(fd: Rc<AsyncFd<OwnedFd>>, queue: Rc<RefCell<Queue>>) {
    let Err(error) = keep_ringing(&fd, &queue).await;
    tracing::error!("no timer rings on this thread any more: {error}");
    queue.borrow_mut().break_down();
}

async fn keep_ringing(fd: &AsyncFd<OwnedFd>, queue: &RefCell<Queue>) -> io::Result<Infallible> {
    loop {
        let mut ready = fd.readable().await?;
        let mut ticks = [0u8; 8];
        match rustix::io::read(fd.get_ref(), &mut ticks) {
            Ok(_) => queue.borrow_mut().ring(fd)?,
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What timers, set to so many microseconds from now in turn, ring in which order.
    async fn order(dues: &[&[u64]]) -> Vec<usize> {
        let (rang, begun) = (Rc::<RefCell<Vec<usize>>>::default(), Instant::now());
        let mut heard = Vec::new();
        for (index, dues) in dues.iter().enumerate() {
            let (timer, rang) = (Timer::new().unwrap(), rang.clone());
            for due in *dues {
                timer.set(begun + Duration::from_micros(*due)).unwrap();
            }
            let last = Duration::from_micros(*dues.last().unwrap());
            heard.push(actix_rt::spawn(async move {
                timer.rung().await.unwrap();
                assert!(begun + last <= Instant::now(), "timer {index} rang too early");
                rang.borrow_mut().push(index);
            }));
        }
        for it in heard {
            it.await.unwrap();
        }
        rang.take()
    }

    #[actix_rt::test]
    async fn timers_ring_in_the_order_they_are_due() {
        assert_eq!(order(&[&[9000], &[3000], &[6000], &[0]]).await, [3, 1, 2, 0]);
        // The last call counts, be it earlier or later.
        assert_eq!(order(&[&[2000, 9000], &[60_000_000, 4000]]).await, [1, 0]);
    }

    #[actix_rt::test]
    async fn the_timers_of_a_thread_share_a_descriptor_that_goes_with_the_last_of_them() {
        let (first, second) = (Timer::new().unwrap(), Timer::new().unwrap());
        assert!(Rc::ptr_eq(&first.clock, &second.clock));
        let fd = Rc::downgrade(&first.clock.fd);
        drop(first);
        second.set(Instant::now()).unwrap();
        second.rung().await.unwrap();
        drop(second);
        // Once the task that was aborted has gone.
        while fd.strong_count() != 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(order(&[&[0]]).await, [0]);
    }

    #[actix_rt::test]
    async fn a_timer_that_is_dropped_rings_no_more() {
        let (kept, dropped) = (Timer::new().unwrap(), Timer::new().unwrap());
        let due = Instant::now() + Duration::from_millis(1);
        dropped.set(due).unwrap();
        kept.set(due + Duration::from_millis(1)).unwrap();
        drop(dropped);
        assert_eq!(kept.clock.queue.borrow().due.len(), 1);
        kept.rung().await.unwrap();
    }
}

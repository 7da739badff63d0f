//! Watches whether a client takes what is written to it: not at all, or drop by drop, is too slow.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use super::table::Connection;
use crate::{
    pace::{is_slow, is_slow_for, look_pause},
    transport::Transport,
};

/// Whether what is to be written is taken.
pub(crate) struct WriteWatch {
    connection: Arc<Connection>,
    limit: Duration,
    /// Since a write had to wait.
    blocked: Option<Blocked>,
    /// Of writes that waited since the last look.
    waited: Waited,
}

/// A write that waits for the client.
struct Blocked {
    look: Pin<Box<Sleep>>,
    /// Since it waits, or was found fast enough.
    all: UnsentSince,
    /// Since the last look.
    part: UnsentSince,
}

/// What the client had not taken at a time.
#[derive(Clone, Copy)]
struct UnsentSince {
    at: Instant,
    unsent: usize,
}

/// How long writes waited, and what the client took meanwhile.
#[derive(Default)]
struct Waited {
    time: Duration,
    taken: usize,
}

impl UnsentSince {
    /// `written`: what was added to it meanwhile.
    fn until(self, now: UnsentSince, written: usize) -> Waited {
        let taken = self.unsent.saturating_add(written).saturating_sub(now.unsent);
        Waited { time: now.at - self.at, taken }
    }
}

impl Waited {
    fn add(&mut self, more: Waited) {
        self.time += more.time;
        self.taken += more.taken;
    }
}

impl WriteWatch {
    /// `limit`: how long a client may take too little; zero: for ever.
    pub(crate) fn new(connection: Arc<Connection>, limit: Duration) -> WriteWatch {
        WriteWatch { connection, limit, blocked: None, waited: Waited::default() }
    }

    /// How long a client may take too little; zero: for ever.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Does a write wait for the client?
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// The outcome of a write, or an error in place of one whose client takes too little. That a
    /// write waits says nothing yet: the kernel has megabytes to send before it asks for more.
    pub(crate) fn watch(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        transport: &Transport,
    ) -> Poll<io::Result<usize>> {
        let now = || UnsentSince { at: Instant::now(), unsent: transport.unsent().unwrap_or(0) };
        if written.is_ready() || self.limit.is_zero() {
            if let (Some(blocked), Poll::Ready(Ok(bytes))) = (self.blocked.take(), &written) {
                self.waited.add(blocked.part.until(now(), *bytes));
            }
            return written;
        }
        let WriteWatch { connection, limit, blocked, waited } = self;
        let pause = look_pause(*limit);
        let blocked = blocked.get_or_insert_with(|| {
            let (now, left) = (now(), pause.saturating_sub(waited.time));
            Blocked { look: Box::pin(sleep(left)), all: now, part: now }
        });
        while blocked.look.as_mut().poll(context).is_ready() {
            let now = now();
            waited.add(std::mem::replace(&mut blocked.part, now).until(now, 0));
            let Waited { time, taken } = std::mem::take(waited);
            if connection.held_of_short_memory().is_some_and(|held| is_slow_for(held, taken, time))
            {
                let text = "the client takes too little of an answer while memory is short";
                return Poll::Ready(Err(timed_out(text)));
            }
            let all = blocked.all.until(now, 0);
            if *limit <= all.time {
                if is_slow(all.taken, all.time) {
                    return Poll::Ready(Err(timed_out("the client takes too little of an answer")));
                }
                blocked.all = now;
            }
            blocked.look.as_mut().reset(now.at + pause);
        }
        Poll::Pending
    }

    /// The same of a flush, or of the end.
    pub(crate) fn watch_flush(
        &mut self,
        context: &mut Context<'_>,
        flushed: Poll<io::Result<()>>,
        transport: &Transport,
    ) -> Poll<io::Result<()>> {
        self.watch(context, flushed.map_ok(|()| 0), transport).map_ok(|_| ())
    }
}

/// The error of a connection that is given up.
pub(crate) fn timed_out(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWrite},
        net::UnixStream,
    };

    use super::*;
    use crate::connections::{ConnectionLimits, Connections};
    use troupe_base::budget::{ByteBudget, Kind};

    const LIMIT: Duration = Duration::from_secs(30);
    const MIB: usize = 1 << 20;

    /// A client that reads so much at a time, with a pause before each of at least twenty times, and
    /// for at least twenty seconds: is it waited for?
    async fn is_waited_for(budget: &Arc<ByteBudget>, at_a_time: usize, pause: Duration) -> bool {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let limits = ConnectionLimits::of_process(None);
        let guard = Connections::new(limits, budget).admit(&ours).unwrap();
        let charge = guard.connection().charge().unwrap();
        charge.add_beyond(Kind::Responses, 30 * MIB);
        let mut transport = Transport::from(ours);
        let mut watch = WriteWatch::new(guard.connection().clone(), LIMIT);
        let reading = async {
            let mut place = vec![0; at_a_time];
            for _ in 0..20.max(20_000 / pause.as_millis()) {
                tokio::time::sleep(pause).await;
                theirs.read_exact(&mut place).await.unwrap();
            }
        };
        tokio::select! {
            error = write(&mut transport, &mut watch) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                false
            }
            () = reading => true,
        }
    }

    /// Writes until the other side has to read, and then as long as it may.
    async fn write(transport: &mut Transport, watch: &mut WriteWatch) -> io::Error {
        std::future::poll_fn(|context| {
            loop {
                let written = Pin::new(&mut *transport).poll_write(context, &[7; 1 << 16]);
                match watch.watch(context, written, transport) {
                    Poll::Ready(Ok(_)) => (),
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_some_is_waited_for_and_who_reads_drops_is_not() {
        let budget = ByteBudget::new(160 * MIB);
        for (at_a_time, expected) in [(0, false), (100, false), (64 << 10, true)] {
            let is_patient = is_waited_for(&budget, at_a_time, LIMIT / 2).await;
            assert_eq!(is_patient, expected, "{at_a_time}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_much_of_short_memory_has_to_read_faster() {
        let budget = ByteBudget::new(160 * MIB);
        let _others = budget.keep(Kind::Tensors, 61 * MIB);
        for (at_a_time, pause_ms, expected) in [
            (700, 1000, false),
            (64 << 10, 1000, false),
            (1 << 20, 1000, true),
            // What is written as soon as there is room does not hide what was taken.
            (100 << 10, 100, true),
            (30 << 10, 100, false),
        ] {
            let pause = Duration::from_millis(pause_ms);
            let is_patient = is_waited_for(&budget, at_a_time, pause).await;
            assert_eq!(is_patient, expected, "{at_a_time} in {pause:?}");
        }
    }
}

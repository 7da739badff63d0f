//! Watches whether a client takes what is written to it: not at all, or drop by drop, is too slow.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use crate::{pace::is_slow, transport::Transport};

/// Whether what is to be written is taken.
pub(crate) struct WriteWatch {
    limit: Duration,
    /// Since a write had to wait.
    blocked: Option<Blocked>,
}

struct Blocked {
    until: Pin<Box<Sleep>>,
    /// What the client had not taken when this time began.
    unsent: usize,
}

impl WriteWatch {
    /// `limit`: how long a client may take too little; zero: for ever.
    pub(crate) fn new(limit: Duration) -> WriteWatch {
        WriteWatch { limit, blocked: None }
    }

    /// Does a write wait for the client?
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// The outcome of a write, or an error in place of one whose client takes too little. That a
    /// write waits says nothing yet: the kernel has megabytes to send before it asks for more.
    pub(crate) fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        transport: &Transport,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.limit.is_zero() {
            self.blocked = None;
            return written;
        }
        let limit = self.limit;
        let unsent = || transport.unsent().unwrap_or(0);
        let blocked = self
            .blocked
            .get_or_insert_with(|| Blocked { until: Box::pin(sleep(limit)), unsent: unsent() });
        while blocked.until.as_mut().poll(context).is_ready() {
            let now = unsent();
            if is_slow(blocked.unsent.saturating_sub(now), limit) {
                return Poll::Ready(Err(timed_out("the client takes too little of an answer")));
            }
            blocked.unsent = now;
            blocked.until.as_mut().reset(Instant::now() + limit);
        }
        Poll::Pending
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

    const LIMIT: Duration = Duration::from_secs(30);

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
        for (at_a_time, is_patient) in [(0, false), (100, false), (64 << 10, true)] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut transport = Transport::from(ours);
            let mut watch = WriteWatch::new(LIMIT);
            let reading = async {
                let mut place = vec![0; at_a_time];
                for _ in 0..20 {
                    tokio::time::sleep(LIMIT / 2).await;
                    theirs.read_exact(&mut place).await.unwrap();
                }
            };
            let was_patient = tokio::select! {
                error = write(&mut transport, &mut watch) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    false
                }
                () = reading => true,
            };
            assert_eq!(was_patient, is_patient, "{at_a_time}");
        }
    }
}

//! The deadline of one start of a worker, until its model is initialized.

use std::{
    future::Future,
    io::{self, Read},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use crate::python::limits::INITIALIZE_TIMEOUT;

/// The time that one start has, if it has a limit.
#[derive(Clone, Copy)]
pub(crate) struct StartDeadline(Option<(Duration, Instant)>);

impl StartDeadline {
    /// It begins now.
    pub(crate) fn begin(limit: Option<Duration>) -> StartDeadline {
        StartDeadline(limit.and_then(|it| Some((it, Instant::now().checked_add(it)?))))
    }

    /// Why the worker is to be ended, if its time is over.
    pub(crate) fn overrun(&self) -> Option<String> {
        let (limit, _) = self.0.filter(|(_, end)| *end <= Instant::now())?;
        let ms = limit.as_millis();
        Some(format!(
            "it took longer than the {ms} ms of {INITIALIZE_TIMEOUT} to get ready, so it was ended"
        ))
    }

    /// The future's output, unless the time is over before.
    pub(crate) async fn limit<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some((_, end)) => tokio::time::timeout_at(end.into(), future).await.ok(),
            None => Some(future.await),
        }
    }

    /// The stream, whose reads fail once the time is over.
    pub(crate) fn reader(self, stream: &UnixStream) -> DeadlineReader<'_> {
        DeadlineReader { stream, deadline: self }
    }
}

pub(crate) struct DeadlineReader<'a> {
    stream: &'a UnixStream,
    deadline: StartDeadline,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some((_, end)) = self.deadline.0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

impl Drop for DeadlineReader<'_> {
    fn drop(&mut self) {
        if self.deadline.0.is_some() {
            // Whoever reads it next has all the time; that it was set before means that it can be.
            let _ = self.stream.set_read_timeout(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn reads_end_with_the_time() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut byte = [0];
        near.write_all(b"ab").unwrap();
        let deadline = StartDeadline::begin(Some(Duration::from_millis(20)));
        deadline.reader(&far).read_exact(&mut byte).unwrap();
        assert_eq!((byte, far.read_timeout().unwrap()), (*b"a", None));
        deadline.reader(&far).read_exact(&mut byte).unwrap();
        deadline.reader(&far).read_exact(&mut byte).unwrap_err();
        let text = "it took longer than the 20 ms of INITIALIZE_TIMEOUT_MS to get ready, so it was \
                    ended";
        let late = std::iter::repeat_with(|| deadline.overrun()).flatten().next();
        assert_eq!(late.as_deref(), Some(text));
        let endless = StartDeadline::begin(None);
        near.write_all(b"c").unwrap();
        endless.reader(&far).read_exact(&mut byte).unwrap();
        assert_eq!((byte, endless.overrun()), (*b"c", None));
        assert_eq!(StartDeadline::begin(Some(Duration::MAX)).overrun(), None);
    }
}

//! How long a worker may take until its model is initialized.

use std::{
    future::Future,
    io::{self, Read},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use super::limits::INITIALIZE_TIMEOUT;

/// The time that one start has, if it has a limit.
#[derive(Clone, Copy)]
pub(super) struct Patience(Option<(Duration, Instant)>);

impl Patience {
    /// It begins now.
    pub(super) fn begin(limit: Option<Duration>) -> Patience {
        Patience(limit.and_then(|it| Some((it, Instant::now().checked_add(it)?))))
    }

    /// Why the worker is to be ended, if its time is over.
    pub(super) fn late(&self) -> Option<String> {
        let (limit, _) = self.0.filter(|(_, end)| *end <= Instant::now())?;
        let ms = limit.as_millis();
        Some(format!(
            "it took longer than the {ms} ms of {INITIALIZE_TIMEOUT} to get ready, so it was ended"
        ))
    }

    /// The future's output, unless the time is over before.
    pub(super) async fn keep<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some((_, end)) => tokio::time::timeout_at(end.into(), future).await.ok(),
            None => Some(future.await),
        }
    }

    /// The stream, whose reads fail once the time is over.
    pub(super) fn reads(self, stream: &UnixStream) -> Timed<'_> {
        Timed { stream, patience: self }
    }
}

pub(super) struct Timed<'a> {
    stream: &'a UnixStream,
    patience: Patience,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some((_, end)) = self.patience.0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if self.patience.0.is_some() {
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
        let patience = Patience::begin(Some(Duration::from_millis(20)));
        patience.reads(&far).read_exact(&mut byte).unwrap();
        assert_eq!((byte, far.read_timeout().unwrap()), (*b"a", None));
        patience.reads(&far).read_exact(&mut byte).unwrap();
        patience.reads(&far).read_exact(&mut byte).unwrap_err();
        let text = "it took longer than the 20 ms of INITIALIZE_TIMEOUT_MS to get ready, so it was \
                    ended";
        let late = std::iter::repeat_with(|| patience.late()).flatten().next();
        assert_eq!(late.as_deref(), Some(text));
        let endless = Patience::begin(None);
        near.write_all(b"c").unwrap();
        endless.reads(&far).read_exact(&mut byte).unwrap();
        assert_eq!((byte, endless.late()), (*b"c", None));
        assert_eq!(Patience::begin(Some(Duration::MAX)).late(), None);
    }
}

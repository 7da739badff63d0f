//! The log's writer thread behind a bounded queue: threads that serve never wait for the log's
//! reader.

use std::{
    io::{self, Write},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::drop_queue::{DropQueue, Limits};

/// Bytes of lines that may wait; further lines are dropped and counted.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// A handle of the writer thread, which ends with the process; clones share it.
#[derive(Clone)]
pub(super) struct Writer(Arc<WriterThread>);

#[derive(Default)]
struct WriterThread {
    state: Mutex<WriterState>,
    /// Notified when the queue gets its first line.
    filled: Condvar,
    /// Notified when everything is written.
    written: Condvar,
}

struct WriterState {
    lines: DropQueue<String>,
    is_writing: bool,
    /// There is no thread: lines are discarded.
    is_closed: bool,
}

impl Default for WriterState {
    fn default() -> WriterState {
        let max_weight = MAX_WAITING_BYTES;
        let limits = Limits { max_items: usize::MAX, max_weight, takes_oversized: false };
        WriterState { lines: DropQueue::new(limits), is_writing: false, is_closed: false }
    }
}

impl Writer {
    /// Starts a thread that writes to `to`; `report` makes the line that says how many were
    /// dropped.
    pub(super) fn start(
        to: Box<dyn Write + Send>,
        report: impl Fn(usize) -> String + Send + 'static,
    ) -> io::Result<Writer> {
        let shared = Arc::<WriterThread>::default();
        let of_thread = shared.clone();
        let named = thread::Builder::new().name("log".to_owned());
        named.spawn(move || of_thread.write(to, report))?;
        Ok(Writer(shared))
    }

    /// A writer that discards everything.
    pub(super) fn closed() -> Writer {
        let state = Mutex::new(WriterState { is_closed: true, ..WriterState::default() });
        Writer(Arc::new(WriterThread { state, ..WriterThread::default() }))
    }

    /// Queues a line, or drops it; never waits for the reader.
    pub(super) fn push(&self, line: String) {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return;
        }
        let was_empty = state.lines.is_empty();
        let bytes = line.len();
        let is_queued = state.lines.push(line, bytes);
        drop(state);
        if was_empty && is_queued {
            self.0.filled.notify_one();
        }
    }

    /// Returns once everything is written, or when `grace` is over.
    pub(super) fn flush(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut state = self.0.state.lock();
        while state.is_writing || !state.lines.is_idle() {
            if self.0.written.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }
}

impl WriterThread {
    fn write(&self, mut to: Box<dyn Write + Send>, report: impl Fn(usize) -> String) {
        let mut bytes = Vec::new();
        let mut state = self.state.lock();
        loop {
            while state.lines.is_idle() {
                state.is_writing = false;
                self.written.notify_all();
                self.filled.wait(&mut state);
            }
            let lines = state.lines.take_all();
            let dropped = state.lines.take_dropped().items;
            state.is_writing = true;
            drop(state);
            lines.for_each(|line| bytes.extend_from_slice(line.as_bytes()));
            if 0 < dropped {
                bytes.extend_from_slice(report(dropped).as_bytes());
            }
            // A log that cannot be written has nowhere to say so.
            let _ = to.write_all(&bytes).and_then(|()| to.flush());
            bytes.clear();
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Takes a write only when it is allowed to.
    struct Gate {
        allowed: mpsc::Receiver<()>,
        taken: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.allowed.recv();
            let _ = self.taken.send(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_pipe_stops_nobody_and_what_did_not_fit_is_counted() {
        let (allow, allowed) = mpsc::channel();
        let (taken, written) = mpsc::channel();
        let gate = Gate { allowed, taken };
        let writer =
            Writer::start(Box::new(gate), |dropped| format!("{dropped} dropped\n")).unwrap();
        let line = "x".repeat(1 << 10);
        for _ in 0..5000 {
            writer.push(line.clone());
        }
        writer.flush(Duration::ZERO);
        drop(allow);
        writer.flush(Duration::from_secs(60));
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let (lines, report) = all.split_at(all.iter().take_while(|it| **it == b'x').count());
        let report = String::from_utf8_lossy(report);
        let dropped: usize = report.strip_suffix(" dropped\n").unwrap().parse().unwrap();
        assert_eq!(lines.len() / line.len() + dropped, 5000);
        assert!(lines.len() <= 2 * MAX_WAITING_BYTES, "{} bytes were kept", lines.len());
    }

    #[test]
    fn what_was_pushed_is_written_in_order() {
        let (taken, written) = mpsc::channel();
        let (allow, allowed) = mpsc::channel();
        drop(allow);
        let writer = Writer::start(Box::new(Gate { allowed, taken }), |_| String::new()).unwrap();
        (0..1000).for_each(|it| writer.push(format!("{it}\n")));
        writer.flush(Duration::from_secs(60));
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let expected: String = (0..1000).map(|it| format!("{it}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&all), expected);
    }
}
